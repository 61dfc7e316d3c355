// A scorer of one function on the device: the GPU's score_tokens. For nvcc.
#pragma once

#include <thrust/execution_policy.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/transform.h>

#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/gpu/base/row_iterator.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy::gpu {

/// The score of a token by its index, on the device.
template <class Function>
struct score_of_index {
  Function of_token;
  row_iterator keys;
  row_iterator values;
  std::int64_t newest;  ///< the last token's index
  __device__ float operator()(std::int64_t token) const { return of_token(keys[token], values[token], newest - token); }
};

/// Scores a prompt's tokens by `of_token(key, value, age)`, one thread a token; the tokens with the largest scores are kept.
/// It runs while a prompt is taken in, and waits: a captured step needs a kernel over blocks, see docs/adding-a-part.md.
/// Rows must be contiguous, and not indexed: of a retain, or of a retrieve over everything.
/// @tparam Function  takes two rows and an int64 on the device, gives a float; trivially copyable
template <class Function>
struct token_scorer {
  static constexpr signals needs = signals::keys | signals::values;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  using memory = no_memory;

  Function of_token;  ///< the score of one token

  memory start(cache_shape const&) const { return {}; }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    auto& device = exec.device();
    scratch_scope const scope(device);
    device.begin();
    buffer<float> const scores = device.out(out.data, out.rows, out.columns, out.row_stride, false);
    // A page table may lie on the host.
    auto const there = [&](auto rows) {
      if (rows.pages != nullptr) rows.pages = device.in(rows.pages, divided_up(input.tokens, rows.page_size)).data;
      return rows;
    };
    auto const keys = there(input.keys());
    auto const values = there(input.values());
    for (std::int64_t head = 0; head < out.rows; ++head) {
      thrust::counting_iterator<std::int64_t> const first(0);
      thrust::transform(
          thrust::cuda::par_nosync.on(device.on()), first, first + out.columns, scores.data + head * out.row_stride,
          score_of_index<Function>{of_token, rows_begin(keys, {head}), rows_begin(values, {head}), input.tokens - 1});
    }
    device.finish();
  }
};

/// Makes a scorer of a function of one token.
/// @param of_token  `(row key, row value, std::int64_t age)` to float, a `__device__` function object; larger is kept
/// @return a scorer for retain(), and for rules whose trigger is the prompt's end
template <class Function>
constexpr token_scorer<Function> score_tokens(Function of_token) {
  return {of_token};
}

}  // namespace kvpolicy::gpu
