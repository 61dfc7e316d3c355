// Pages by the bounds of their keys, chosen at every step (Quest), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "kvpolicy/cuda/decode/retained.hpp"
#include "kvpolicy/cuda/launch/units.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/pool/bounds.hpp"
#include "kvpolicy/score/upper_bound.hpp"
#include "kvpolicy/segment/pages.hpp"
#include "kvpolicy/select/top.hpp"

namespace kvpolicy::cuda {

/// What a retrieve's part is told of a layer of one sequence's prompt.
template <class View>
struct prompt_piece {
  std::int64_t sequence = 0;
  View const& view;  ///< of the sequence alone
  batch_rows keys;   ///< of all sequences
  layer_id layer{};
  prompt_signals const& prompt;
  std::span<range_list const> retained{};  ///< what the retain left, where it is not everything
};

/// A retrieve's part of a decoder: one specialisation for each kind of act.
/// Requires: as decode_retain, but `prefill(act, piece, exec, device)`; `choose(act, layer, keys, queries, scale, lengths,
/// device)`, which enqueues the choice; `observe` where it needs logits; `listed` as there. Semantics: `plan` is told of one
/// new token at a time.
template <class Act, owning_device D>
class decode_retrieve;

template <owning_device D>
class decode_retrieve<keep_all, D> {
 public:
  static constexpr bool by_index = false;

  decode_retrieve(keep_all const&, cache_shape const&, std::int64_t, D&) {}
  template <class View, class Exec>
  void prefill(keep_all const&, prompt_piece<View> const&, Exec&, D&) {}
  void plan(keep_all const&, std::int64_t, std::int64_t, std::int64_t) noexcept {}
  void upload(D&) const {}
};

/// The rows of one sequence of a batch, as a batch of one.
constexpr batch_rows of_sequence(batch_rows rows, std::int64_t sequence) noexcept {
  std::int64_t const first = sequence * rows.sequence_stride;
  rows.base = static_cast<std::byte const*>(rows.base) + first * size_of(rows.type);
  rows.elements -= first;
  rows.pages.data += rows.pages.data == nullptr ? 0 : sequence * rows.page_table_stride;
  rows.pages.size -= rows.pages.data == nullptr ? 0 : sequence * rows.page_table_stride;
  return rows;
}

/// Of units between sinks and recent ones: where they begin, how many there are, and how many of them a list takes.
struct unit_candidates {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t taken = 0;
  std::int64_t tail = 0;  ///< first token behind them
};

/// As select::top counts them, for a budget that does not read scores.
template <class Act>
unit_candidates candidates_of(Act const& act, cache_shape const& shape, layer_id layer, std::int64_t tokens,
                              std::int64_t prompt) {
  static_assert(!Act::budget_type::reads_scores, "a budget that reads scores is decided on the host");
  std::int64_t const size = act.segment.unit_size();
  protected_tokens const safe = act.window.at(tokens, prompt);
  unit_candidates made{.first = safe.sink_end / size, .tail = safe.recent_begin};
  made.count = std::max<std::int64_t>(0, (safe.recent_begin + size - 1) / size - made.first);
  budget_request const request{.shape = shape,
                               .layer = layer,
                               .heads = {0, shape.kv_heads},
                               .tokens = tokens,
                               .prompt = prompt,
                               .forced = safe.counted,
                               .recent = safe.recent,
                               .unit_size = size};
  if (made.count == 0 || (act.budget.of(request) <= safe.counted && safe.counted > 0)) return made;
  std::array<std::int32_t, 1> units{};
  host_exec none;
  act.budget.allocate(request, {}, units, none);
  made.taken = std::min({static_cast<std::int64_t>(units[0]), made.count, act.select.max_ranges(act, shape)});
  return made;
}

template <class Budget, class Window, owning_device D>
class decode_retrieve<keep<segment::pages, pool::bounds, score::upper_bound, Budget, select::top, Window, trigger::every_step>,
                      D> {
  using act_type = keep<segment::pages, pool::bounds, score::upper_bound, Budget, select::top, Window, trigger::every_step>;

 public:
  static constexpr bool by_index = false;

  decode_retrieve(act_type const& act, cache_shape const& shape, std::int64_t sequences, D& device)
      : shape_(shape),
        sequences_(sequences),
        units_((shape.max_tokens + act.segment.unit_size() - 1) / act.segment.unit_size()),
        numbers_(device, shape.layers * 4, sequences),
        bounds_(device.template allocate<pack>(divided_up(shape.layers * layer_size() * size_of(shape.type), 16))),
        moments_(device.template allocate<float>(
            act.pool.how == pool::bounds::kind::mean_deviation ? shape.layers * moments_size() : 0)),
        scores_(device.template allocate<float>(sequences * shape.kv_heads * units_)),
        chosen_(device.template allocate<std::int32_t>(shape.layers * sequences * shape.kv_heads * units_)),
        named_(device.template allocate<std::int32_t>(shape.layers * sequences * shape.kv_heads)) {}

  /// Bounds of a prompt's pages; a page that was open is made anew.
  template <class View, class Exec>
  void prefill(act_type const& act, prompt_piece<View> const& piece, Exec&, D& device) {
    std::int64_t const tokens = piece.view.tokens();
    std::int64_t const page = act.segment.unit_size();
    pooled_tokens what{};
    what.last.all = tokens;
    what.newest = tokens - piece.prompt.first / page * page;
    what.unit_size = static_cast<std::int32_t>(page);
    what.units = divided_up(what.newest, page);
    pool(act, of_sequence(piece.keys, piece.sequence), what, 1, piece.layer, piece.sequence, device);
  }

  void plan(act_type const& act, std::int64_t sequence, std::int64_t prompt, std::int64_t tokens) {
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      unit_candidates found{};
      if (tokens > 0 && !act.layers.dense({l})) found = candidates_of(act, shape_, {l}, tokens, prompt);
      numbers_.set(l * 4, sequence, found.first);
      numbers_.set(l * 4 + 1, sequence, found.count);
      numbers_.set(l * 4 + 2, sequence, found.taken);
      numbers_.set(l * 4 + 3, sequence, found.tail);
    }
  }
  void upload(D& device) const { numbers_.upload(device); }

  void choose(act_type const& act, layer_id layer, batch_rows const& keys, vector_rows const& queries, float,
              per_sequence const& lengths, D& device) {
    if (act.layers.dense(layer) || act.layers.leader(layer) != layer) return;
    pooled_tokens what{};
    what.last = lengths;
    what.newest = 1;
    what.unit_size = static_cast<std::int32_t>(act.segment.unit_size());
    what.units = 1;
    pool(act, keys, what, sequences_, layer, 0, device);
    std::int64_t const heads = shape_.kv_heads;
    batch_rows bounds{};
    bounds.base = bounds_.get().data + layer.value * layer_size() * size_of(shape_.type) / 16;
    bounds.elements = layer_size();
    bounds.type = shape_.type;
    bounds.heads = static_cast<std::int32_t>(heads);
    bounds.head_dim = static_cast<std::int32_t>(shape_.head_dim);
    bounds.sequence_stride = heads * head_size();
    bounds.head_stride = head_size();
    bounds.token_stride = shape_.head_dim;
    launch_score_bounds(device, finished(bounds), static_cast<std::int32_t>(shape_.group()), units_, sequences_, [&](auto& a) {
      a.queries = queries;
      a.merged = act.score.merged;
      a.first = numbers_.of(layer.value * 4);
      a.count = numbers_.of(layer.value * 4 + 1);
      a.scores = scores_.get();
      a.sequence_stride = heads * units_;
      a.head_stride = units_;
    });
    top_k_body<1>::arguments top{};
    top.scores = scores_.get();
    top.score_stride = units_;
    top.first = numbers_.of(layer.value * 4);
    top.columns = numbers_.of(layer.value * 4 + 1);
    top.k = numbers_.of(layer.value * 4 + 2);
    top.rows_of_number = static_cast<std::int32_t>(heads);
    top.indices = of_layer(chosen_.get(), layer, units_);
    top.index_stride = units_;
    top.tokens = of_layer(named_.get(), layer, 1);
    top.unit_size = static_cast<std::int32_t>(act.segment.unit_size());
    launch_top_k(device, top, sequences_ * heads, units_);
  }

  std::int64_t listed(act_type const& act, layer_id layer, std::int64_t sequence, head_id, std::int64_t tokens) const noexcept {
    std::int64_t const tail = tokens - numbers_.get(layer.value * 4 + 3, sequence);
    if (tokens == 0 || act.layers.dense(layer)) return tokens;
    std::int64_t const from = act.layers.leader(layer).value * 4;
    return (numbers_.get(from, sequence) + numbers_.get(from + 2, sequence)) * act.segment.unit_size() + tail;
  }

  token_lists lists(act_type const& act, layer_id layer, per_sequence const& lengths) const noexcept {
    token_lists made{};
    made.tokens = lengths;
    made.tail = numbers_.of(layer.value * 4 + 3);
    if (act.layers.dense(layer)) return made;
    layer_id const leader = act.layers.leader(layer);
    made.about = act.budget.most_tokens(shape_);
    made.units = of_layer(chosen_.get(), leader, units_);
    made.stride = units_;
    made.named = of_layer(named_.get(), leader, 1);
    made.lists = static_cast<std::int32_t>(shape_.kv_heads);
    made.unit_size = static_cast<std::int32_t>(act.segment.unit_size());
    return made;
  }

 private:
  /// Elements of a KV head's bounds, and of a layer's, which is a multiple of 8.
  std::int64_t head_size() const noexcept { return units_ * 2 * shape_.head_dim; }
  std::int64_t moments_size() const noexcept { return sequences_ * shape_.kv_heads * 2 * shape_.head_dim; }
  std::int64_t layer_size() const noexcept { return divided_up(sequences_ * shape_.kv_heads * head_size(), 8) * 8; }
  template <class T>
  buffer<T> of_layer(buffer<T> all, layer_id layer, std::int64_t stride) const noexcept {
    std::int64_t const size = sequences_ * shape_.kv_heads * stride;
    return {all.data + layer.value * size, size};
  }

  void pool(act_type const& act, batch_rows const& keys, pooled_tokens const& what, std::int64_t sequences, layer_id layer,
            std::int64_t first_sequence, D& device) {
    std::int64_t const first = layer.value * layer_size() + first_sequence * shape_.kv_heads * head_size();
    batch_bounds to{};
    to.base = reinterpret_cast<std::byte*>(bounds_.get().data) + first * size_of(shape_.type);
    to.elements = layer_size() - first_sequence * shape_.kv_heads * head_size();
    to.sequence_stride = shape_.kv_heads * head_size();
    to.head_stride = head_size();
    if (act.pool.how == pool::bounds::kind::range) {
      launch_pool<pool_bounds_body>(device, keys, what, sequences, [&](auto& a) { a.bounds = to; });
    } else {
      launch_pool<pool_mean_deviation_body>(device, keys, what, sequences, [&](auto& a) {
        a.bounds = to;
        std::int64_t const skipped = first_sequence * shape_.kv_heads * 2 * shape_.head_dim;
        a.moments = {moments_.get().data + layer.value * moments_size() + skipped, moments_size() - skipped};
        a.open_alone = true;
      });
    }
  }

  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t units_;                ///< of a sequence, at most
  step_numbers<D> numbers_;           ///< of each layer: first candidate, candidates, taken, first token of the tail
  array_of<D, pack> bounds_;          ///< `[layers, sequences, kv_heads, units, 2, head_dim]`, of the cache's type
  array_of<D, float> moments_;        ///< `[layers, sequences, kv_heads, 2, head_dim]` of open pages, where bounds are spreads
  array_of<D, float> scores_;         ///< `[sequences, kv_heads, units]`
  array_of<D, std::int32_t> chosen_;  ///< `[layers, sequences, kv_heads, units]`
  array_of<D, std::int32_t> named_;   ///< `[layers, sequences, kv_heads]` tokens
};

}  // namespace kvpolicy::cuda
