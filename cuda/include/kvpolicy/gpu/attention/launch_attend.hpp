// Launches of decode attention, and of the weights that it gives.
#pragma once

#include <algorithm>

#include "kvpolicy/gpu/attention/attend.hpp"
#include "kvpolicy/gpu/attention/attend_latent.hpp"
#include "kvpolicy/gpu/attention/attend_tensor.hpp"
#include "kvpolicy/gpu/attention/group_weights.hpp"
#include "kvpolicy/gpu/attention/list_weights.hpp"
#include "kvpolicy/gpu/attention/logits_tensor.hpp"
#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// The attention of a step's tokens of every sequence of a batch, in one layer.
struct decode_attention {
  vector_rows queries;  ///< `[sequences, step, q_heads, head_dim]`
  float scale = 1;
  std::int32_t group = 1;
  std::int32_t step = 1;        ///< tokens that a sequence brings at most
  per_sequence brought{{}, 1};  ///< tokens that it brings: its last ones; the others' output is 0
  batch_rows keys;
  batch_rows values;
  token_lists lists;
  std::int64_t sequences = 1;
  std::int64_t most_tokens = 0;  ///< of any list
  vector_rows out;               ///< as queries, of value_dim channels
  buffer<float> log_sum_exp{};   ///< `[sequences, step, q_heads]`, or none
  attend_terms terms{};
};

/// How many blocks share a list: as many as the device runs at once, none with less than so many tokens to read.
inline std::int32_t splits_of(decode_attention const& a, std::int64_t blocks_wanted, std::int64_t least) noexcept {
  std::int64_t const lists = std::max<std::int64_t>(1, a.sequences * a.keys.heads);
  std::int64_t const tokens = a.lists.about > 0 ? std::min(a.lists.about, a.most_tokens) : a.most_tokens;
  std::int64_t const useful = std::max<std::int64_t>(1, tokens / least);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(blocks_wanted / lists, 1, std::min<std::int64_t>(useful, 256)));
}

/// Splits of each list, tiles of `most` queries at most.
template <class Body, device D>
void launch_attend_splits(D& device, decode_attention const& a, std::int64_t most) {
  auto const tiles = static_cast<std::int32_t>(divided_up(a.group * a.step, most));
  std::int64_t const blocks = a.sequences * a.keys.heads * tiles;  // of one split
  buffer<std::int32_t> const counters = device.counters();
  // What a split of wide rows leaves to be put together is as much as 60 tokens, and 128 heads' tiles fill a device.
  std::int64_t const wanted = device.template blocks_wanted<Body>() / (Body::wide ? tiles : 1);
  std::int32_t const splits = blocks > counters.size ? 1 : splits_of(a, wanted, Body::wide ? 256 : 64);
  std::int64_t const queries = a.sequences * a.step * a.keys.heads * a.group;
  scratch_scope const scope(device);
  buffer<float> const partial =
      splits > 1 ? device.template scratch<float>(queries * splits * (a.values.head_dim + 2)) : buffer<float>{};
  device.template launch<Body>({splits, static_cast<std::int64_t>(a.keys.heads) * tiles, a.sequences},
                               {a.queries, a.scale, a.group, a.step, a.brought, tiles, a.keys, a.values, a.lists, splits, a.out,
                                a.log_sum_exp, partial, counters, a.terms});
}

template <int Group, bool Packed = true, bool Terms = false, device D>
void launch_attend_tiles(D& device, decode_attention const& a) {
  with_type(a.keys.type,
            [&]<element_type E>() { launch_attend_splits<attend_body<E, Group, Packed, Terms>>(device, a, Group); });
}

inline void expect_alike(char const* kernel, batch_rows const& keys, batch_rows const& values) {
  if (values.type == keys.type && values.heads == keys.heads) return;
  throw unsupported(std::string(kernel) + " reads values of the keys' type and heads; got " + std::to_string(values.heads) +
                    " of " + name_of(values.type) + " beside " + std::to_string(keys.heads) + " of " + name_of(keys.type));
}

/// Whether values are the first channels of the keys' rows.
inline bool are_part_of(batch_rows const& values, batch_rows const& keys) noexcept {
  return values.base == keys.base && values.sequence_stride == keys.sequence_stride && values.head_stride == keys.head_stride &&
         values.token_stride == keys.token_stride && values.dim_stride == keys.dim_stride &&
         values.pages.data == keys.pages.data && values.page_table_stride == keys.page_table_stride &&
         values.page_size == keys.page_size && values.page_stride == keys.page_stride &&
         values.indices.data == keys.indices.data && values.rows.rows.data == keys.rows.rows.data;
}

/// Calls `work.template operator()<E, Split>()` for rows that attend_latent_body takes; or says false. Queries of another type
/// than the rows' are split.
template <class Work>
bool with_latent_rows(decode_attention const& a, Work work) {
  batch_rows const& keys = a.keys;
  if (!keys.packed || (keys.type != element_type::f16 && keys.type != element_type::bf16) || !are_part_of(a.values, keys) ||
      a.values.head_dim != latent::value_dim || keys.head_dim < latent::value_dim || keys.head_dim % 32 != 0 ||
      keys.head_dim > latent::max_key_dim)
    return false;
  auto const of_type = [&]<element_type E>() {
    if (a.queries.type == E) work.template operator()<E, false>();
    else work.template operator()<E, true>();
  };
  if (keys.type == element_type::f16) of_type.template operator()<element_type::f16>();
  else of_type.template operator()<element_type::bf16>();
  return true;
}

template <device D>
void launch_attend(D& device, decode_attention const& a) {
  bool const wide = a.keys.head_dim > max_head_dim || a.values.head_dim != a.keys.head_dim;
  expect_row("attend", std::max(a.keys.head_dim, a.values.head_dim), 1, max_wide_dim);
  expect_alike("attend", a.keys, a.values);
  if (wide) {
    bool const on_tensors = with_latent_rows(a, [&]<element_type E, bool Split>() {
      launch_attend_splits<attend_latent_body<E, Split>>(device, a, attend_latent_body<E, Split>::heads_of_tile);
    });
    if (!on_tensors) {
      with_type(a.keys.type,
                [&]<element_type E>() { launch_attend_splits<attend_body<E, 1, false, true, true>>(device, a, 1); });
    }
    return;
  }
  bool const packed = a.keys.packed && a.values.packed;
  if (a.terms.change_logits())
    return packed ? launch_attend_tiles<4, true, true>(device, a) : launch_attend_tiles<1, false, true>(device, a);
  if (packed && with_tensor_rows(a.keys, [&]<element_type E, int Chunks>() {
        launch_attend_splits<attend_tensor_body<E, Chunks>>(device, a, 8);
      })) {
    return;
  }
  if (!packed) launch_attend_tiles<1, false>(device, a);
  else if (a.group * a.step == 1) launch_attend_tiles<1>(device, a);
  else if (a.group * a.step == 2) launch_attend_tiles<2>(device, a);
  else if (a.group * a.step <= 4) launch_attend_tiles<4>(device, a);
  else launch_attend_tiles<8>(device, a);
}

/// out(s, h, i): the mean over KV head h's query heads of the softmax weight of the (first + i)-th token of its list.
struct list_weights {
  vector_rows queries;
  float scale = 1;
  std::int32_t group = 1;
  batch_rows keys;
  token_lists lists;
  std::int64_t first = 0;
  std::int64_t sequences = 1;
  std::int64_t most_tokens = 0;  ///< of any list, from `first` on
  std::int32_t window = 1;       ///< rows of query groups of each KV head: queries are (s, h, w, g), out is (s, h, w, i)
  buffer<float> out;
  std::int64_t sequence_stride = 0;
  std::int64_t head_stride = 0;
  bool maximum = false;  ///< of the query heads, not their mean
};

/// For each row of logits `[sequences, kv_heads, window, group, stride]`: its maximum, and 1 / sum of e^(logit - maximum).
template <device D>
void launch_softmax_rows(D& device, buffer<float const> logits, std::int64_t stride, list_weights const& a,
                         buffer<float> statistics) {
  std::int32_t const rows_of_head = a.group * a.window;
  std::int32_t const rows = a.keys.heads * rows_of_head;
  buffer<std::int32_t> const counters = device.counters();
  std::int64_t const rows_in_all = a.sequences * rows;
  std::int64_t const parts =
      rows_in_all > counters.size
          ? 1
          : std::min<std::int64_t>(
                softmax_rows_body::most_parts,
                blocks_of_row<softmax_rows_body>(device, a.most_tokens, softmax_rows_body::threads * softmax_rows_body::at_once,
                                                 rows_in_all));
  buffer<float> const partial = parts > 1 ? device.template scratch<float>(rows_in_all * parts * 2) : buffer<float>{};
  device.template launch<softmax_rows_body>(
      {parts, rows, a.sequences},
      {logits, stride, a.lists, a.first, rows, rows_of_head, statistics, static_cast<std::int32_t>(parts), partial, counters});
}

/// What rows of logits with their statistics become: a.out; `set` may ask for smoothing, or for another head's logits.
template <device D, class Set>
void launch_group_weights(D& device, buffer<float const> logits, std::int64_t stride, buffer<float const> statistics,
                          list_weights const& a, Set set) {
  group_weights_body::arguments w{};
  w.logits = logits;
  w.stride = stride;
  w.statistics = statistics;
  w.lists = a.lists;
  w.first = a.first;
  w.group = a.group;
  w.heads = a.keys.heads * a.window;
  w.per_list = a.window;
  w.out = a.out;
  w.sequence_stride = a.sequence_stride;
  w.head_stride = a.head_stride;
  w.maximum = a.maximum;
  set(w);
  w.blocks = blocks_of_row<group_weights_body>(device, a.most_tokens, group_weights_body::threads, w.heads * a.sequences);
  device.template launch<group_weights_body>({w.blocks, w.heads, a.sequences}, w);
}

/// scale q.k of the listed tokens: `[sequences, kv_heads, window, group, most_tokens]`; and if there is room for them each
/// row's statistics. Keys are read once for as many queries as fit in shared memory.
template <device D>
void launch_list_logits(D& device, list_weights const& a, buffer<float> logits, buffer<float> statistics = {}) {
  std::int32_t const rows = a.group * a.window;
  bool const on_tensors = with_tensor_rows(a.keys, [&]<element_type E, int Chunks>() {
    auto const tiles = static_cast<std::int32_t>(divided_up(rows, 8));
    std::int64_t const lists = a.sequences * a.keys.heads * tiles;
    auto const launch = [&]<class Body>(auto set) {
      std::int32_t const blocks = blocks_of_row<Body>(device, a.most_tokens, Body::threads / 4, lists);
      typename Body::arguments l{a.queries, a.scale, rows, tiles, a.keys, a.lists, a.first, logits, a.most_tokens, blocks};
      set(l);
      device.template launch<Body>({blocks, static_cast<std::int64_t>(a.keys.heads) * tiles, a.sequences}, l);
    };
    if (statistics.data != nullptr && a.keys.places.data == nullptr && lists <= device.counters().size) {
      return launch.template operator()<list_statistics_tensor_body<E, Chunks>>([&](auto& l) {
        l.statistics = statistics;
        l.partial = device.template scratch<float>(a.sequences * a.keys.heads * rows * l.blocks * 2);
        l.counters = device.counters();
      });
    }
    auto const nothing = [](auto&) {};
    if (a.keys.places.data != nullptr) launch.template operator()<unit_logits_tensor_body<E, Chunks>>(nothing);
    else launch.template operator()<list_logits_tensor_body<E, Chunks>>(nothing);
    if (statistics.data != nullptr) launch_softmax_rows(device, logits, a.most_tokens, a, statistics);
  });
  if (on_tensors) return;
  std::int32_t const at_once = 16 * max_head_dim / a.keys.head_dim;
  with_type(a.keys.type, [&]<element_type E>() {
    auto const launch = [&]<class Body>() {
      std::int64_t const tokens_of_block = Body::threads / 32 * row_lanes(a.keys.parts()).rows_of_warp();
      for (std::int32_t first = 0; first < rows; first += at_once) {
        device.template launch<Body>({divided_up(a.most_tokens, tokens_of_block), a.keys.heads, a.sequences},
                                     {a.queries, a.scale, std::min(at_once, rows - first), rows, first, a.keys, a.lists,
                                      a.first, logits, a.most_tokens});
      }
    };
    if (a.keys.head_dim > max_head_dim) launch.template operator()<list_logits_body<E, true>>();
    else launch.template operator()<list_logits_body<E>>();
  });
  if (statistics.data != nullptr) launch_softmax_rows(device, logits, a.most_tokens, a, statistics);
}

/// Both: a.out is what the listed tokens weigh. `set` as launch_group_weights takes it.
template <device D, class Set>
void launch_list_weights(D& device, list_weights const& a, Set set) {
  expect_row("list_attention", a.keys.head_dim, a.group, max_wide_dim);
  if (a.most_tokens <= 0) return;
  scratch_scope const scope(device);
  std::int64_t const rows = a.sequences * a.keys.heads * a.group * a.window;
  buffer<float> const logits = device.template scratch<float>(rows * a.most_tokens);
  buffer<float> const statistics = device.template scratch<float>(rows * 2);
  launch_list_logits(device, a, logits, statistics);
  launch_group_weights(device, logits, a.most_tokens, statistics, a, set);
}
template <device D>
void launch_list_weights(D& device, list_weights const& a) {
  launch_list_weights(device, a, [](auto&) {});
}

}  // namespace kvpolicy::gpu::detail
