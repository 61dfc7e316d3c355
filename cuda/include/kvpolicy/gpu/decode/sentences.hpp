// Sentences of retained tokens by the running query, filled to a token budget at every step (SentenceKV).
#pragma once

#include <algorithm>
#include <vector>

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/gpu/kernel/sentence_fill.hpp"
#include "kvpolicy/gpu/launch/attend.hpp"
#include "kvpolicy/gpu/scorers/upper_bound.hpp"
#include "kvpolicy/pools/unit_mean.hpp"
#include "kvpolicy/scorers/query_mean_dot.hpp"
#include "kvpolicy/selectors/fill.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::gpu {

template <class Budget, owning_device D>
class decode_retrieve<keep<segments::sentences, pools::unit_mean, scorers::query_mean_dot, Budget, selectors::fill,
                           windows::tokens, triggers::every_step>,
                      D> {
  using rule_type = keep<segments::sentences, pools::unit_mean, scorers::query_mean_dot, Budget, selectors::fill,
                         windows::tokens, triggers::every_step>;

 public:
  /// Sees what is there by index, whatever the retain.
  static constexpr bool by_index = true;

  explicit decode_retrieve(decode_stage<rule_type, D> const& stage)
      : stage_(stage),
        most_(stage.shape.max_tokens / stage.rule.segment.shortest + 1),
        budgets_(*stage.device, stage.shape.layers + 1, stage.sequences),
        marks_(static_cast<std::size_t>(stage.sequences)),
        boundary_size_(std::ssize(stage.rule.segment.boundary)),
        boundary_(stage.template array<std::uint8_t>(std::max<std::int64_t>(1, boundary_size_))),
        ends_(stage.template array<std::int32_t>(stage.sequences * most_)),
        state_(stage.template array<std::int32_t>(3 * stage.sequences)),
        spread_(stage.rule.pool.spread),
        vectors_(spread_ ? stage.shape.group() : 1),
        means_(stage.template by_layer<float>(spread_ ? 0 : stage.heads() * most_ * stage.shape.head_dim)),
        spreads_(stage.shape, spread_ ? stage.shape.layers : 0, stage.sequences, most_, *stage.device),
        rank_ends_(stage.template by_layer<std::int32_t>(stage.heads() * most_)),
        counts_(stage.template by_layer<std::int32_t>(2 * stage.heads())),
        sums_(stage.template by_layer<float>(stage.heads() * vectors_ * stage.shape.head_dim)),
        scores_(stage.template array<float>(stage.heads() * most_)),
        standing_(stage.rule.score.standing > 0),
        stands_(stage.template by_layer<std::uint8_t>(standing_ ? stage.heads() * most_ : 0)),
        of_prompt_(standing_ ? stage.shape.max_tokens : 0, standing_ ? most_ : 0),
        lists_(*stage.device, stage.shape.layers, stage.sequences, stage.shape.kv_heads, stage.shape.max_tokens) {
    KVPOLICY_EXPECTS(stage.rule.window.share == 0 && !stage.rule.window.generated,
                     "a window that follows the budget or the prompt has no kernel; use sinks and recent tokens");
    KVPOLICY_EXPECTS(stage.rule.layers.reuse == 1, "sentences are chosen for each layer; set reuse to 1");
    stage.device->upload(boundary_.get(), stage.rule.segment.boundary.data(), boundary_size_);
    std::vector<std::int32_t> const none(
        static_cast<std::size_t>(std::max(3 * stage.sequences, stage.shape.layers * 2 * stage.heads())));
    stage.device->upload(state_.get(), none.data(), 3 * stage.sequences);
    stage.device->upload(counts_.all(), none.data(), stage.shape.layers * 2 * stage.heads());
  }

  /// The prompt's sentences; those of a layer that were there are made anew.
  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    if (piece.layer.value == 0) mark_sentences(piece.sequence, piece.prompt);
    for (std::int64_t h = 0; h < stage_.shape.kv_heads; ++h) {
      std::int64_t const row = piece.sequence * stage_.shape.kv_heads + h;
      stage_.put(folded(piece.layer), row, 0);
      stage_.put(queries_summed(piece.layer), row, 0);
      if (standing_) mark_standing(piece, h, exec);
    }
  }

  void plan(std::int64_t sequence, std::int64_t prompt, std::int64_t tokens, auto const&) {
    cache_shape const& shape = stage_.shape;
    budgets_.set(shape.layers, sequence, prompt);
    for (std::int64_t l = 0; l < shape.layers && tokens > 0; ++l) {
      budgets_.set(l, sequence,
                   stage_.rule.budget.of({.shape = shape, .layer = {l}, .heads = {0, shape.kv_heads}, .tokens = tokens}));
    }
  }
  void upload() const { budgets_.upload(*stage_.device); }

  void choose(decode_step const& step) {
    rule_type const& rule = stage_.rule;
    layer_id const layer = step.layer;
    D& device = *stage_.device;
    if (layer.value == 0) {
      device.template launch<sentence_step_body>({divided_up(stage_.sequences, sentence_step_body::threads), 1, 1},
                                                 {state(),
                                                  step.lengths,
                                                  step.ids,
                                                  stage_.sequences,
                                                  {boundary_.get().data, boundary_size_},
                                                  rule.segment.longest,
                                                  rule.segment.shortest});
    }
    if (rule.layers.dense(layer)) return;
    auto const heads = static_cast<std::int32_t>(stage_.shape.kv_heads);
    sentence_units const units{means_.of(layer), spread_ ? spreads_.to(layer) : batch_bounds{}, rank_ends_.of(layer),
                               folded(layer)};
    with_type(step.keys.type, [&]<element_type E>() {
      device.template launch<sentence_means_body<E>>({heads, stage_.sequences, 1}, {step.keys, step.retained, state(), units});
    });
    device.template launch<query_sums_body>(
        {heads, stage_.sequences, 1},
        {step.queries, static_cast<std::int32_t>(stage_.shape.group()), heads, static_cast<std::int32_t>(stage_.shape.head_dim),
         rule.score.carry, spread_, step.lengths, open_begin(), queries_summed(layer), sums_.of(layer)});
    score(layer);
    device.template launch<sentence_fill_body>(
        {heads, stage_.sequences, 1},
        {scores_.get(), most_, state(), units, standing_ ? stands_.of(layer) : buffer<std::uint8_t>{}, step.retained, heads,
         budgets_.of(layer.value), rule.window.sinks, rule.window.recent, rule.select.all_after_boundary,
         budgets_.of(stage_.shape.layers), lists_.units(layer), lists_.stride(), lists_.named(layer)});
  }

  token_lists lists(layer_id layer, token_lists const& retained) const noexcept {
    if (stage_.rule.layers.dense(layer)) return retained;
    return lists_.of(layer, {{}, token_lists::no_tail}, retained.tokens,
                     stage_.rule.budget.most_tokens(stage_.shape) + stage_.rule.segment.longest);
  }

 private:
  buffer<std::int32_t> open_begin() const noexcept { return part_of(state_.get(), stage_.sequences, stage_.sequences); }
  sentence_state state() const noexcept {
    return {ends_.get(), part_of(state_.get(), 0, stage_.sequences), open_begin(),
            part_of(state_.get(), 2 * stage_.sequences, stage_.sequences), most_};
  }
  buffer<std::int32_t> folded(layer_id layer) const noexcept { return part_of(counts_.of(layer), 0, stage_.heads()); }
  buffer<std::int32_t> queries_summed(layer_id layer) const noexcept {
    return part_of(counts_.of(layer), stage_.heads(), stage_.heads());
  }

  /// Sentences by the sums of the queries of the open one.
  void score(layer_id layer) {
    cache_shape const& shape = stage_.shape;
    auto const heads = static_cast<std::int32_t>(shape.kv_heads);
    auto const dim = static_cast<std::int32_t>(shape.head_dim);
    vector_rows sums{};
    sums.base = sums_.of(layer).data;
    sums.elements = sums_.of(layer).size;
    sums.sequence_stride = shape.kv_heads * vectors_ * dim;
    sums.head_stride = dim;
    if (spread_) {
      launch_score_bounds(*stage_.device,
                          {spreads_.rows(layer), static_cast<std::int32_t>(shape.group()), most_, stage_.sequences},
                          [&](auto& a) {
                            a.queries = sums;
                            a.merged = group_merge::mean;
                            a.count.values = state().units;
                            a.scores = scores_.get();
                            a.sequence_stride = shape.kv_heads * most_;
                            a.head_stride = most_;
                          });
      return;
    }
    batch_rows means{};
    means.base = means_.of(layer).data;
    means.elements = means_.of(layer).size;
    means.type = element_type::f32;
    means.heads = heads;
    means.head_dim = dim;
    means.sequence_stride = shape.kv_heads * most_ * dim;
    means.head_stride = most_ * dim;
    means.token_stride = dim;
    list_weights a{};
    a.queries = sums;
    a.keys = finished(means);
    a.lists = all_of({state().units});
    a.sequences = stage_.sequences;
    a.most_tokens = most_;
    launch_list_logits(*stage_.device, a, scores_.get());
  }

  /// Where the prompt's sentences end, on the host and the device.
  void mark_sentences(std::int64_t sequence, prompt_signals const& prompt) {
    segments::sentence_marks& marks = marks_[static_cast<std::size_t>(sequence)];
    KVPOLICY_EXPECTS(prompt.first <= marks.tokens || prompt.first == 0,
                     "a piece from token " + std::to_string(prompt.first) +
                         " on, behind decoded tokens: which of them ended a "
                         "sentence is known on the device alone, after " +
                         std::to_string(marks.tokens) + " tokens of the prompt; begin the sequence anew with first = 0");
    if (prompt.first == 0) marks = segments::sentence_marks(stage_.rule.segment, stage_.shape.max_tokens);
    marks.extend(stage_.rule.segment, prompt.first, prompt.token_ids);
    stage_.device->upload(part_of(ends_.get(), sequence * most_, most_), marks.ends.data(), std::ssize(marks.ends));
    stage_.put(state().units, sequence, static_cast<std::int32_t>(marks.units()));
    stage_.put(open_begin(), sequence, static_cast<std::int32_t>(marks.open_begin()));
    stage_.put(part_of(state_.get(), 2 * stage_.sequences, stage_.sequences), sequence, marks.last_closes() ? 1 : 0);
  }

  /// The prompt's sentences that stand, of one head: chosen on the host, as the verb does.
  template <class View, class Exec>
  void mark_standing(prompt_piece<View> const& piece, std::int64_t h, Exec& exec) {
    rule_type const& rule = stage_.rule;
    cache_shape const& shape = stage_.shape;
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
      head_range const all_heads{0, shape.kv_heads};
      standing_units(all.last(std::min<std::int64_t>(all.tokens, rule.score.window)).of({h, 1}, shape.group()),
                     there.keys(piece.layer).of({h, 1}), std::span<std::int32_t const>(ends),
                     rule.score.standing_tokens(shape, piece.layer, all_heads, tokens), of_prompt_,
                     std::span(stands).first(ends.size()), exec);
    }
    std::int64_t const row = piece.sequence * shape.kv_heads + h;
    stage_.device->upload(part_of(stands_.of(piece.layer), row * most_, most_), stands.data(), most_);
  }

  decode_stage<rule_type, D> stage_;
  std::int64_t most_;        ///< sentences of a sequence
  step_numbers<D> budgets_;  ///< of each layer; then the prompts' tokens
  std::vector<segments::sentence_marks> marks_;
  std::int64_t boundary_size_;
  array_of<D, std::uint8_t> boundary_;
  array_of<D, std::int32_t> ends_;   ///< `[sequences, sentences]`
  array_of<D, std::int32_t> state_;  ///< `[3, sequences]`: sentences, first token of the open one, whether it closes
  bool spread_;
  std::int64_t vectors_;                    ///< query sums of a KV head: one, or its query heads'
  layer_array<D, float> means_;             ///< `[sequences, kv_heads, sentences, head_dim]`, or
  unit_bounds<D> spreads_;                  ///< of the cache's type
  layer_array<D, std::int32_t> rank_ends_;  ///< `[sequences, kv_heads, sentences]`
  layer_array<D, std::int32_t> counts_;     ///< `[2, sequences, kv_heads]`: sentences that are in, queries in the sum
  layer_array<D, float> sums_;              ///< `[sequences, kv_heads, vectors, head_dim]`
  array_of<D, float> scores_;               ///< `[sequences, kv_heads, sentences]`
  bool standing_;
  layer_array<D, std::uint8_t> stands_;  ///< `[sequences, kv_heads, sentences]`
  standing_units_scratch of_prompt_;
  list_store<D> lists_;
};

}  // namespace kvpolicy::gpu
