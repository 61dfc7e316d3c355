// Launches of attention over a whole prompt, one sequence at a time.
#pragma once

#include <algorithm>

#include "kvpolicy/gpu/attention/attend_block.hpp"
#include "kvpolicy/gpu/attention/prompt_attention.hpp"
#include "kvpolicy/gpu/attention/prompt_attention_tensor.hpp"
#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/primitive/window_attention.hpp"

namespace kvpolicy::gpu::detail {

/// Keys of one of the splits that fill the device, where `blocks` share a split: a multiple of `step`.
template <class Body, device D>
std::int64_t keys_of_splits(D& device, std::int64_t keys, std::int64_t step, std::int64_t blocks) {
  std::int64_t const steps = divided_up(keys, step);
  std::int64_t const splits = std::clamp<std::int64_t>(divided_up(device.template blocks_wanted<Body>(), blocks), 1, steps);
  return divided_up(steps, splits) * step;
}

/// Scores of tokens [0, columns) from the window's attention: `set` gives smoothing and where they go.
template <device D, class Set>
void launch_window_attention(D& device, prompt_attention const& what, std::int64_t columns, group_merge merged, Set set) {
  expect_row("window_attention", what.keys.head_dim, what.group, max_wide_dim);
  if (columns <= 0) return;
  scratch_scope const scope(device);
  std::int64_t const heads = what.keys.heads;
  buffer<float> const statistics = device.template scratch<float>(heads * what.rows() * 2);
  buffer<float> const sums = device.template scratch<float>(heads * what.group * columns);
  bool const largest = merged == group_merge::maximum;
  // Launches a body over splits of the keys, as many as fill the device, of `step` keys at least, and merges their statistics.
  auto const statistics_by = [&]<class Body>(std::int64_t blocks, std::int64_t step, auto set_parts) {
    std::int64_t const keys_of_split = keys_of_splits<Body>(device, what.tokens, step, heads * blocks);
    auto const splits = static_cast<std::int32_t>(divided_up(what.tokens, keys_of_split));
    buffer<float> const parts = device.template scratch<float>(heads * what.rows() * splits * 2);
    typename Body::arguments a{};
    a.what = what;
    a.keys_of_split = keys_of_split;
    a.statistics = parts;
    a.splits = splits;
    set_parts(a);
    device.template launch<Body>({blocks, heads, splits}, a);
    device.template launch<merge_statistics_body>({divided_up(heads * what.rows(), merge_statistics_body::threads), 1, 1},
                                                  {parts, splits, heads * what.rows(), statistics});
  };
  bool const on_tensors =
      what.listed.tokens.data == nullptr && with_tensor_rows(what.keys, [&]<element_type E, int Chunks>() {
        using of_rows = window_statistics_tensor_body<E, Chunks>;
        using of_columns = window_sums_tensor_body<E, Chunks>;
        constexpr std::int64_t warps = of_rows::threads / 32;
        std::int64_t const parts = divided_up(what.window, of_rows::queries);
        statistics_by.template operator()<of_rows>(divided_up(what.group * parts, warps), 512,
                                                   [&](auto& a) { a.parts = static_cast<std::int32_t>(parts); });
        std::int64_t const blocks = divided_up(what.group, warps);
        std::int64_t const keys_of_split = keys_of_splits<of_columns>(device, columns, 512, heads * blocks);
        device.template launch<of_columns>({blocks, heads, divided_up(columns, keys_of_split)},
                                           {{what, statistics, columns, sums, columns, largest}, keys_of_split});
      });
  if (!on_tensors) {
    with_type(what.keys.type, [&]<element_type E>() {
      statistics_by.template operator()<window_statistics_body<E>>(divided_up(what.rows(), tile_rows), tile_keys, [](auto&) {});
      device.template launch<window_sums_body<E>>({divided_up(columns, tile_keys), heads, 1},
                                                  {what, statistics, columns, sums, columns, largest});
    });
  }
  smooth_sums_body::arguments a{};
  a.sums = sums;
  a.stride = columns;
  a.group = what.group;
  a.columns = columns;
  a.window = what.window;
  a.tokens = what.tokens;
  a.largest = largest;
  set(a);
  device.template launch<smooth_sums_body>({divided_up(columns, smooth_sums_body::threads), heads, 1}, a);
}

/// A block of queries; `a.what.listed` says what each sees.
template <device D, class Set>
void launch_attend_block(D& device, element_type type, std::int64_t rows, std::int64_t heads, Set set) {
  if (rows <= 0) return;
  with_type(type, [&]<element_type E>() {
    typename attend_block_body<E>::arguments a{};
    set(a);
    expect_row("attend_block", a.values.head_dim);
    expect_alike("attend_block", a.what.keys, a.values);
    device.template launch<attend_block_body<E>>({divided_up(rows, tile_rows), heads, 1}, a);
  });
}

}  // namespace kvpolicy::gpu::detail
