// Sentences of retained tokens by the running query, filled to a token budget at every step (SentenceKV).
#pragma once

#include <algorithm>
#include <vector>

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/cuda/decode/pages.hpp"
#include "kvpolicy/cuda/kernel/sentence_fill.hpp"
#include "kvpolicy/cuda/launch/attend.hpp"
#include "kvpolicy/pool/unit_mean.hpp"
#include "kvpolicy/score/query_mean_dot.hpp"
#include "kvpolicy/select/fill.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::cuda {

template <class Budget, owning_device D>
class decode_retrieve<
    keep<segment::sentences, pool::unit_mean, score::query_mean_dot, Budget, select::fill, window::tokens, trigger::every_step>,
    D> {
  using act_type = keep<segment::sentences, pool::unit_mean, score::query_mean_dot, Budget, select::fill, window::tokens,
                        trigger::every_step>;

 public:
  /// Sees what is there by index, whatever the retain.
  static constexpr bool by_index = true;

  decode_retrieve(act_type const& act, cache_shape const& shape, std::int64_t sequences, D& device)
      : shape_(shape),
        sequences_(sequences),
        heads_(sequences * shape.kv_heads),
        most_(shape.max_tokens / act.segment.shortest + 1),
        budgets_(device, shape.layers + 1, sequences),
        marks_(static_cast<std::size_t>(sequences)),
        boundary_(device.template allocate<std::uint8_t>(std::max<std::int64_t>(1, std::ssize(act.segment.boundary)))),
        ends_(device.template allocate<std::int32_t>(sequences * most_)),
        state_(device.template allocate<std::int32_t>(3 * sequences)),
        spread_(act.pool.spread),
        vectors_(spread_ ? shape.group() : 1),
        means_(device.template allocate<float>(spread_ ? 1 : shape.layers * heads_ * most_ * shape.head_dim)),
        spreads_(device.template allocate<pack>(spread_ ? shape.layers * layer_size() * size_of(shape.type) / 16 : 1)),
        rank_ends_(device.template allocate<std::int32_t>(shape.layers * heads_ * most_)),
        counts_(device.template allocate<std::int32_t>(shape.layers * 2 * heads_)),
        sums_(device.template allocate<float>(shape.layers * heads_ * vectors_ * shape.head_dim)),
        scores_(device.template allocate<float>(heads_ * most_)),
        standing_(act.score.standing > 0),
        stands_(device.template allocate<std::uint8_t>(standing_ ? shape.layers * heads_ * most_ : 1)),
        of_prompt_(standing_ ? shape.max_tokens : 0, standing_ ? most_ : 0),
        lists_(device.template allocate<std::int32_t>(shape.layers * heads_ * shape.max_tokens)),
        named_(device.template allocate<std::int32_t>(shape.layers * heads_)) {
    KVPOLICY_EXPECTS(act.window.share == 0 && !act.window.generated,
                     "a window that follows the budget or the prompt has no kernel; use sinks and recent tokens");
    KVPOLICY_EXPECTS(act.layers.reuse == 1, "sentences are chosen for each layer; set reuse to 1");
    device.upload(boundary_.get(), act.segment.boundary.data(), std::ssize(act.segment.boundary));
    boundary_size_ = std::ssize(act.segment.boundary);
    std::vector<std::int32_t> const none(static_cast<std::size_t>(std::max(3 * sequences, shape.layers * 2 * heads_)));
    device.upload(state_.get(), none.data(), 3 * sequences);
    device.upload(counts_.get(), none.data(), shape.layers * 2 * heads_);
  }

  /// The prompt's sentences; those of a layer that were there are made anew.
  template <class View, class Exec>
  void prefill(act_type const& act, prompt_piece<View> const& piece, Exec& exec, D& device) {
    std::int64_t const sequence = piece.sequence;
    layer_id const layer = piece.layer;
    prompt_signals const& prompt = piece.prompt;
    segment::sentence_marks& marks = marks_[static_cast<std::size_t>(sequence)];
    if (layer.value == 0) {
      KVPOLICY_EXPECTS(prompt.first <= marks.tokens || prompt.first == 0,
                       "a piece from token " + std::to_string(prompt.first) +
                           " on, behind decoded tokens: which of them ended a "
                           "sentence is known on the device alone, after " +
                           std::to_string(marks.tokens) + " tokens of the prompt; begin the sequence anew with first = 0");
      if (prompt.first == 0) marks = segment::sentence_marks(act.segment, shape_.max_tokens);
      marks.extend(act.segment, prompt.first, prompt.token_ids);
      buffer<std::int32_t> to = ends_.get();
      to.data += sequence * most_;
      device.upload(to, marks.ends.data(), std::ssize(marks.ends));
      put(state_.get(), sequence, static_cast<std::int32_t>(marks.units()), device);
      put(state_.get(), sequences_ + sequence, static_cast<std::int32_t>(marks.open_begin()), device);
      put(state_.get(), 2 * sequences_ + sequence, marks.last_closes() ? 1 : 0, device);
    }
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      std::int64_t const at = layer.value * 2 * heads_ + sequence * shape_.kv_heads + h;
      put(counts_.get(), at, 0, device);
      put(counts_.get(), at + heads_, 0, device);
      if (standing_) mark_standing(act, piece, h, exec, device);
    }
  }

  void plan(act_type const& act, std::int64_t sequence, std::int64_t prompt, std::int64_t tokens) {
    budgets_.set(shape_.layers, sequence, prompt);
    for (std::int64_t l = 0; l < shape_.layers && tokens > 0; ++l) {
      budgets_.set(l, sequence,
                   act.budget.of({.shape = shape_, .layer = {l}, .heads = {0, shape_.kv_heads}, .tokens = tokens}));
    }
  }
  void upload(D& device) const { budgets_.upload(device); }

  /// `ids`: each sequence's current token, where layer is 0.
  void choose(act_type const& act, layer_id layer, batch_rows const& keys, token_lists const& retained,
              buffer<std::int32_t const> ids, vector_rows const& queries, float, per_sequence const& lengths, D& device) {
    if (layer.value == 0) {
      device.template launch<sentence_step_body>({divided_up(sequences_, sentence_step_body::threads), 1, 1},
                                                 {state(),
                                                  lengths,
                                                  ids,
                                                  sequences_,
                                                  {boundary_.get().data, boundary_size_},
                                                  act.segment.longest,
                                                  act.segment.shortest});
    }
    if (act.layers.dense(layer)) return;
    auto const heads = static_cast<std::int32_t>(shape_.kv_heads);
    auto const dim = static_cast<std::int32_t>(shape_.head_dim);
    sentence_units const units = units_of(layer);
    with_type(keys.type, [&]<element_type E>() {
      device.template launch<sentence_means_body<E>>({heads, sequences_, 1}, {keys, retained, state(), units});
    });
    buffer<float> const sums = of_layer(sums_.get(), layer, vectors_ * dim);
    device.template launch<query_sums_body>({heads, sequences_, 1}, {queries,
                                                                     static_cast<std::int32_t>(shape_.group()),
                                                                     heads,
                                                                     dim,
                                                                     act.score.carry,
                                                                     spread_,
                                                                     lengths,
                                                                     open_begin(),
                                                                     {units.folded.data + heads_, heads_},
                                                                     sums});
    if (spread_) score_spreads(layer, sums, device);
    else launch_logits(device, sums_as_queries(sums), means_as_rows(units.means), units_as_lists());
    device.template launch<sentence_fill_body>(
        {heads, sequences_, 1},
        {scores_.get(), most_, state(), units, standing_ ? of_layer(stands_.get(), layer, most_) : buffer<std::uint8_t>{},
         retained, heads, budgets_.of(layer.value), act.window.sinks, act.window.recent, act.select.all_after_boundary,
         budgets_.of(shape_.layers), of_layer(lists_.get(), layer, shape_.max_tokens), shape_.max_tokens,
         of_layer(named_.get(), layer, 1)});
  }

  token_lists lists(act_type const& act, layer_id layer, token_lists const& retained) const noexcept {
    if (act.layers.dense(layer)) return retained;
    token_lists made{};
    made.units = of_layer(lists_.get(), layer, shape_.max_tokens);
    made.stride = shape_.max_tokens;
    made.named = of_layer(named_.get(), layer, 1);
    made.tokens = retained.tokens;
    made.lists = static_cast<std::int32_t>(shape_.kv_heads);
    made.about = act.budget.most_tokens(shape_) + act.segment.longest;
    return made;
  }

 private:
  template <class T>
  static void put(buffer<T> to, std::int64_t at, T value, D& device) {
    device.upload(buffer<T>{to.data + at, 1}, &value, 1);
  }
  template <class T>
  buffer<T> of_layer(buffer<T> all, layer_id layer, std::int64_t stride) const noexcept {
    return {all.data + layer.value * heads_ * stride, heads_ * stride};
  }
  buffer<std::int32_t> open_begin() const noexcept { return {state_.get().data + sequences_, sequences_}; }
  sentence_state state() const noexcept {
    return {
        ends_.get(), {state_.get().data, sequences_}, open_begin(), {state_.get().data + 2 * sequences_, sequences_}, most_};
  }
  sentence_units units_of(layer_id layer) const noexcept {
    return {spread_ ? buffer<float>{} : of_layer(means_.get(), layer, most_ * shape_.head_dim),
            spreads_of(layer),
            of_layer(rank_ends_.get(), layer, most_),
            {counts_.get().data + layer.value * 2 * heads_, heads_}};
  }
  /// Elements of a layer's spreads, a multiple of 8.
  std::int64_t layer_size() const noexcept { return divided_up(heads_ * most_ * 2 * shape_.head_dim, 8) * 8; }
  batch_bounds spreads_of(layer_id layer) const noexcept {
    batch_bounds made{};
    if (!spread_) return made;
    made.base = reinterpret_cast<std::byte*>(spreads_.get().data) + layer.value * layer_size() * size_of(shape_.type);
    made.elements = layer_size();
    made.sequence_stride = shape_.kv_heads * most_ * 2 * shape_.head_dim;
    made.head_stride = most_ * 2 * shape_.head_dim;
    return made;
  }
  void score_spreads(layer_id layer, buffer<float> sums, D& device) const {
    batch_bounds const from = spreads_of(layer);
    batch_rows bounds{};
    bounds.base = from.base;
    bounds.elements = from.elements;
    bounds.type = shape_.type;
    bounds.heads = static_cast<std::int32_t>(shape_.kv_heads);
    bounds.head_dim = static_cast<std::int32_t>(shape_.head_dim);
    bounds.sequence_stride = from.sequence_stride;
    bounds.head_stride = from.head_stride;
    bounds.token_stride = shape_.head_dim;
    launch_score_bounds(device, finished(bounds), static_cast<std::int32_t>(shape_.group()), most_, sequences_, [&](auto& a) {
      a.queries = sums_as_queries(sums);
      a.merged = group_merge::mean;
      a.count.values = state().units;
      a.scores = scores_.get();
      a.sequence_stride = shape_.kv_heads * most_;
      a.head_stride = most_;
    });
  }
  vector_rows sums_as_queries(buffer<float> sums) const noexcept {
    vector_rows made{};
    made.base = sums.data;
    made.elements = sums.size;
    made.sequence_stride = shape_.kv_heads * vectors_ * shape_.head_dim;
    made.head_stride = shape_.head_dim;
    return made;
  }
  batch_rows means_as_rows(buffer<float> means) const noexcept {
    batch_rows made{};
    made.base = means.data;
    made.elements = means.size;
    made.type = element_type::f32;
    made.heads = static_cast<std::int32_t>(shape_.kv_heads);
    made.head_dim = static_cast<std::int32_t>(shape_.head_dim);
    made.sequence_stride = shape_.kv_heads * most_ * shape_.head_dim;
    made.head_stride = most_ * shape_.head_dim;
    made.token_stride = shape_.head_dim;
    return finished(made);
  }
  token_lists units_as_lists() const noexcept {
    token_lists made{};
    made.tail.all = 0;
    made.tokens.values = {state_.get().data, sequences_};
    return made;
  }
  void launch_logits(D& device, vector_rows const& queries, batch_rows const& means, token_lists const& all) const {
    list_weights a{};
    a.queries = queries;
    a.keys = means;
    a.lists = all;
    a.sequences = sequences_;
    a.most_tokens = most_;
    launch_list_logits(device, a, scores_.get());
  }

  /// The prompt's sentences that stand, of one head: chosen on the host, as the verb does.
  template <class View, class Exec>
  void mark_standing(act_type const& act, prompt_piece<View> const& piece, std::int64_t h, Exec& exec, D& device) {
    std::int64_t const tokens = piece.view.tokens();
    std::vector<std::int32_t> ids;
    if (piece.retained.empty()) {
      for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>(t));
    } else {
      for (token_range const& range : piece.retained[piece.retained.size() == 1 ? 0 : static_cast<std::size_t>(h)]) {
        for (std::int32_t t = range.begin; t < range.end; ++t) ids.push_back(t);
      }
    }
    std::vector<std::int32_t> ends;
    for (std::int32_t const end : marks_[static_cast<std::size_t>(piece.sequence)].ends) {
      ends.push_back(static_cast<std::int32_t>(std::ranges::lower_bound(ids, end) - ids.begin()));
    }
    std::vector<std::uint8_t> stands(static_cast<std::size_t>(most_));
    query_window const& all = piece.prompt.queries;
    if (all.tokens > 0) {
      indexed_view<View> const there{piece.view, std::ssize(ids), ids.data(), 0};
      head_range const all_heads{0, shape_.kv_heads};
      standing_units(all.last(std::min<std::int64_t>(all.tokens, act.score.window)).of({h, 1}, shape_.group()),
                     there.keys(piece.layer).of({h, 1}), std::span<std::int32_t const>(ends),
                     act.score.standing_tokens(shape_, piece.layer, all_heads, tokens), of_prompt_,
                     std::span(stands).first(ends.size()), exec);
    }
    buffer<std::uint8_t> to = of_layer(stands_.get(), piece.layer, most_);
    to.data += (piece.sequence * shape_.kv_heads + h) * most_;
    device.upload(to, stands.data(), most_);
  }

  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t heads_;  ///< of all sequences
  std::int64_t most_;   ///< sentences of a sequence
  std::int64_t boundary_size_ = 0;
  step_numbers<D> budgets_;  ///< of each layer; then the prompts' tokens
  std::vector<segment::sentence_marks> marks_;
  array_of<D, std::uint8_t> boundary_;
  array_of<D, std::int32_t> ends_;   ///< `[sequences, sentences]`
  array_of<D, std::int32_t> state_;  ///< `[3, sequences]`: sentences, first token of the open one, whether it closes
  bool spread_;
  std::int64_t vectors_;                 ///< query sums of a KV head: one, or its query heads'
  array_of<D, float> means_;             ///< `[layers, sequences, kv_heads, sentences, head_dim]`, or
  array_of<D, pack> spreads_;            ///< `[layers, sequences, kv_heads, sentences, 2, head_dim]`, of the cache's type
  array_of<D, std::int32_t> rank_ends_;  ///< `[layers, sequences, kv_heads, sentences]`
  array_of<D, std::int32_t> counts_;     ///< `[layers, 2, sequences, kv_heads]`: sentences that are in, queries in the sum
  array_of<D, float> sums_;              ///< `[layers, sequences, kv_heads, vectors, head_dim]`
  array_of<D, float> scores_;            ///< `[sequences, kv_heads, sentences]`
  bool standing_;
  array_of<D, std::uint8_t> stands_;  ///< `[layers, sequences, kv_heads, sentences]`
  standing_units_scratch of_prompt_;
  array_of<D, std::int32_t> lists_;  ///< `[layers, sequences, kv_heads, max_tokens]`
  array_of<D, std::int32_t> named_;  ///< `[layers, sequences, kv_heads]`
};

}  // namespace kvpolicy::cuda
