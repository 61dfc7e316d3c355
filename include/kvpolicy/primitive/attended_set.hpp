// Which tokens a query attends to most, neighbours taken together: the sets that HeteroCache compares, offline and online.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "kvpolicy/primitive/list_attention.hpp"
#include "kvpolicy/primitive/top_k.hpp"
#include "kvpolicy/primitive/window_attention.hpp"

namespace kvpolicy {

/// Buffers for sequences of up to `tokens` tokens.
struct attended_set_scratch {
  std::vector<float> weights;
  std::vector<float> smoothed;
  std::vector<std::int32_t> set;
  range_list all;

  explicit attended_set_scratch(std::int64_t tokens = 0)
      : weights(static_cast<std::size_t>(tokens)), smoothed(weights.size()), set(weights.size()) {
    all.reserve(1);
  }
};

/// The `count` tokens of [0, tokens) that one query group attends to most: ascending, in `scratch`. Softmax over those tokens,
/// mean over the group, average over `width` tokens (odd; zero padded, pads counted), top-k. `keys` are one head's.
template <class Memory, class Exec>
std::span<std::int32_t const> attended_set(query_heads const& queries, basic_rows<Memory> const& keys, std::int64_t tokens,
                                           std::int64_t count, std::int64_t width, attended_set_scratch& scratch, Exec& exec) {
  scratch.all.clear();
  append(scratch.all, 0, tokens, reason::scored);
  list_attention(queries, keys, std::span<range_list const>(&scratch.all, 1),
                 table<float>{scratch.weights.data(), 1, tokens, tokens}, exec);
  auto const size = static_cast<std::size_t>(tokens);
  smooth_row(std::span<float const>(scratch.weights).first(size), {.how = smoothing::kind::average, .width = width},
             std::span(scratch.smoothed).first(size));
  std::array const k{static_cast<std::int32_t>(std::min(count, tokens))};
  top_k(table<float const>{scratch.smoothed.data(), 1, tokens, tokens}, k,
        table<std::int32_t>{scratch.set.data(), 1, k[0], k[0]}, exec);
  return std::span(scratch.set).first(static_cast<std::size_t>(k[0]));
}

}  // namespace kvpolicy
