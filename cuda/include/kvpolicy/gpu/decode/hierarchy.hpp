// Pages by their affinity to the recent ones, coarse to fine, one list for all layers, when the model becomes unsure (CHESS).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "kvpolicy/budgets/fractions.hpp"
#include "kvpolicy/gpu/decode/rope_table.hpp"
#include "kvpolicy/gpu/kernel/entropy.hpp"
#include "kvpolicy/gpu/kernel/page_list.hpp"
#include "kvpolicy/gpu/kernel/page_trigger.hpp"
#include "kvpolicy/gpu/launch/units.hpp"
#include "kvpolicy/pools/hierarchical_mean.hpp"
#include "kvpolicy/scorers/anchor_affinity.hpp"
#include "kvpolicy/selectors/cascade.hpp"
#include "kvpolicy/triggers/any_of.hpp"
#include "kvpolicy/triggers/entropy.hpp"
#include "kvpolicy/triggers/every.hpp"
#include "kvpolicy/windows/pages.hpp"

namespace kvpolicy::gpu {

template <owning_device D>
class decode_retrieve<keep<segments::hierarchy, pools::hierarchical_mean, scorers::anchor_affinity, budgets::fractions,
                           selectors::cascade, windows::pages, triggers::any_of<triggers::every, triggers::entropy>>,
                      D> {
  using rule_type = keep<segments::hierarchy, pools::hierarchical_mean, scorers::anchor_affinity, budgets::fractions,
                         selectors::cascade, windows::pages, triggers::any_of<triggers::every, triggers::entropy>>;
  /// Rows of a step's numbers; of levels 0 pages, 1 chunks, 2 grids.
  enum number {
    units,
    complete = 3,
    fraction = 6,
    least = 9,
    most = 12,
    first_unit = 15,
    last_unit = 18,
    sinks = 21,
    tail,
    rows
  };

 public:
  static constexpr bool by_index = false;

  explicit decode_retrieve(decode_stage<rule_type, D> const& stage)
      : stage_(stage),
        dims_(stage.shape.layers * stage.shape.kv_heads * stage.shape.head_dim),
        numbers_(*stage.device, rows, stage.sequences),
        state_(stage.template array<std::int32_t>(state_rows * stage.sequences)),
        moments_(stage.template array<double>(2 * stage.sequences)),
        anchor_(stage.template array<float>(stage.sequences * dims_)),
        entropy_(stage.template array<float>(2 * stage.sequences)),
        rope_(stage.shape, stage.rule.pool.pre_rope, *stage.device) {
    rule_type const& rule = stage.rule;
    if (rule.select.paper_literal) {
      throw unsupported(
          "chess:literal scores units that it has dropped, for comparison; it has no kernels: use the four verbs with "
          "cuda_exec");
    }
    std::int64_t count = stage.shape.max_tokens;
    fan_out_ = {rule.segment.page, rule.segment.pages_per_chunk, rule.segment.chunks_per_grid};
    for (std::size_t l = 0; l < 3; ++l) {
      count = divided_up(count, fan_out_[l]);
      units_[l] = count;
      if (static_cast<std::int32_t>(l) < rule.select.depth)
        means_.push_back(stage.template array<float>(stage.sequences * count * dims_));
    }
    scores_.emplace(stage.template array<float>(stage.sequences * units_[0]));
    lists_.emplace(stage.template array<std::int32_t>(list_rows * stage.sequences * units_[0]));
    for (std::int64_t s = 0; s < stage.sequences; ++s) forget(s);
  }

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec&) {
    std::int64_t const page = stage_.rule.segment.page;
    if (piece.layer.value == 0) {
      if (piece.prompt.first == 0) forget(piece.sequence);
      restart(piece.sequence);
      if (stage_.rule.pool.pre_rope) rope_.take(piece.prompt.rope, *stage_.device);
    }
    pooled_tokens what{};
    what.last.all = piece.view.tokens();
    what.newest = piece.view.tokens() - piece.prompt.first / page * page;
    what.units = divided_up(what.newest, page);
    pool(of_sequence(piece.keys, piece.sequence), what, 1, piece.layer, piece.sequence);
  }

  void plan(std::int64_t sequence, std::int64_t prompt, std::int64_t tokens, auto const&) {
    rule_type const& rule = stage_.rule;
    std::int64_t const known = std::max<std::int64_t>(tokens - 1, 0);  // the choice is made before the step's keys are there
    std::int64_t count = known;
    std::int64_t whole = known;
    for (std::size_t l = 0; l < 3; ++l) {
      count = divided_up(count, fan_out_[l]);
      whole /= fan_out_[l];
      auto const row = static_cast<std::int64_t>(l);
      numbers_.set(units + row, sequence, count);
      numbers_.set(complete + row, sequence, whole);
    }
    auto const depth = static_cast<std::size_t>(rule.select.depth);
    std::array<cascade_level, 3> levels{};  // coarse to fine, as the host's
    for (std::size_t l = 0; l < depth; ++l) {
      levels[depth - 1 - l] = {.vectors = {nullptr, numbers_.get(units + static_cast<std::int64_t>(l), sequence), dims_, dims_},
                               .fan_out = l == 0 ? 1 : fan_out_[l],
                               .fraction = std::array{rule.budget.pages, rule.budget.chunks, rule.budget.grids}[l]};
    }
    protected_tokens const then = rule.window.at(known, prompt);
    bool const any = rule.select.plan(rule, std::span(levels).first(depth), then);
    for (std::size_t l = 0; l < depth; ++l) {
      auto const row = static_cast<std::int64_t>(l);
      cascade_level const& level = levels[depth - 1 - l];
      numbers_.set(fraction + row, sequence, std::bit_cast<std::int32_t>(level.fraction));
      numbers_.set(least + row, sequence, level.least);
      numbers_.set(most + row, sequence, any ? std::min<std::int64_t>(level.most, INT32_MAX) : 0);
      numbers_.set(first_unit + row, sequence, level.first);
      numbers_.set(last_unit + row, sequence, std::min(level.last, level.vectors.rows));
    }
    numbers_.set(sinks, sequence, rule.window.at(tokens, prompt).sink_end / rule.segment.page);
    numbers_.set(tail, sequence, then.recent_begin);
  }
  void upload() const { numbers_.upload(*stage_.device); }

  void choose(decode_step const& step) {
    if (step.layer.value == 0) choose_pages(step.lengths);
    pooled_tokens what{};
    what.last = step.lengths;
    what.newest = 1;
    what.units = 1;
    pool(step.keys, what, stage_.sequences, step.layer, 0);
  }

  void observe(vector_rows const& logits, std::int64_t vocabulary, per_sequence const& lengths) {
    std::int64_t const sequences = stage_.sequences;
    buffer<float> const entropies = part_of(entropy_.get(), 0, sequences);
    stage_.device->template launch<entropy_body>(
        {sequences, 1, 1}, {logits, vocabulary, entropies, part_of(entropy_.get(), sequences, sequences)});
    triggers::entropy const& when = stage_.rule.trigger.second;
    stage_.device->template launch<page_trigger_body>(
        {divided_up(sequences, page_trigger_body::threads), 1, 1},
        {trigger_state(), entropies, lengths, sequences, when.page, when.mean, when.variance});
  }

  token_lists lists(layer_id, token_lists const& retained) const noexcept {
    return {.units = list(step_list),
            .stride = units_[0],
            .named = state(step_named),
            .tail = {state(since)},
            .tokens = retained.tokens,
            .unit_size = stage_.rule.segment.page,
            .about = stage_.rule.budget.tokens};
  }

 private:
  /// Rows of small device state, and of lists of pages.
  enum state_row {
    fired,
    entropies_of_page,
    at,
    since,
    due,
    page_count,
    step_named,
    complete_chunks,
    complete_grids,
    first,
    last,
    level_a,
    level_b = level_a + 3,
    state_rows = level_b + 3
  };
  enum list_row { live_a, live_b, kept_places, chosen_pages, step_list, list_rows };

  buffer<std::int32_t> state(int row) const noexcept { return part_of(state_.get(), row * stage_.sequences, stage_.sequences); }
  buffer<std::int32_t> list(int row) const noexcept {
    std::int64_t const size = stage_.sequences * units_[0];
    return part_of(lists_->get(), row * size, size);
  }
  level_counts counts(int row) const noexcept { return {state(row), state(row + 1), state(row + 2)}; }
  page_trigger trigger_state() const noexcept {
    return {part_of(moments_.get(), 0, stage_.sequences), part_of(moments_.get(), stage_.sequences, stage_.sequences),
            state(entropies_of_page), state(fired)};
  }
  /// How a level is cut; of level 0 pages, 1 chunks, 2 grids.
  level_limits limits(std::size_t level) const noexcept {
    auto const row = static_cast<std::int64_t>(level);
    return {numbers_.of(fraction + row), numbers_.of(least + row), numbers_.of(most + row), numbers_.of(first_unit + row),
            numbers_.of(last_unit + row)};
  }

  void restart(std::int64_t sequence) {
    stage_.put(state(at), sequence, -1);
    for (int const row : {entropies_of_page, complete_chunks, complete_grids}) stage_.put(state(row), sequence, 0);
    for (std::int64_t row = 0; row < 2; ++row) stage_.put(moments_.get(), row * stage_.sequences + sequence, 0.0);
  }
  void forget(std::int64_t sequence) {
    for (int const row : {fired, page_count, since}) stage_.put(state(row), sequence, 0);
    restart(sequence);
  }

  void pool(batch_rows const& keys, pooled_tokens what, std::int64_t sequences, layer_id layer, std::int64_t first_sequence) {
    what.unit_size = stage_.rule.segment.page;
    auto const set = [&](auto& a) {
      a.rotated = rope_.get();
      std::int64_t const from =
          first_sequence * units_[0] * dims_ + layer.value * stage_.shape.kv_heads * stage_.shape.head_dim;
      a.means = part_of(means_[0].get(), from, means_[0].get().size - from);
      a.sequence_stride = units_[0] * dims_;
      a.unit_stride = dims_;
      a.head_stride = stage_.shape.head_dim;
    };
    if (rope_.get().pairs > 0) launch_pool<pool_pre_rope_body>(*stage_.device, keys, what, sequences, set);
    else launch_pool<pool_mean_body>(*stage_.device, keys, what, sequences, set);
  }

  /// Chunks from pages, grids from chunks: those whose units changed since the last choice.
  void refresh(std::size_t level) {
    std::int64_t const finer = static_cast<std::int64_t>(level) - 1;
    stage_.device->template launch<refresh_range_body>(
        {divided_up(stage_.sequences, refresh_range_body::threads), 1, 1},
        {state(due), state(level == 1 ? complete_chunks : complete_grids), numbers_.of(units + finer),
         numbers_.of(complete + finer), fan_out_[level], stage_.sequences, state(first), state(last)});
    batch_rows from{};
    from.base = means_[level - 1].get().data;
    from.elements = means_[level - 1].get().size;
    from.type = element_type::f32;
    from.heads = 1;
    from.head_dim = static_cast<std::int32_t>(dims_);
    from.sequence_stride = units_[level - 1] * dims_;
    from.token_stride = dims_;
    pooled_tokens what{};
    what.last.values = state(last);
    what.begin.values = state(first);
    what.unit_size = fan_out_[level];
    what.units = units_[level];
    launch_pool<pool_mean_body>(*stage_.device, finished(from), what, stage_.sequences, [&](auto& a) {
      a.means = means_[level].get();
      a.sequence_stride = units_[level] * dims_;
      a.unit_stride = dims_;
    });
  }

  void choose_pages(per_sequence const& lengths) {
    rule_type const& rule = stage_.rule;
    std::int64_t const few = divided_up(stage_.sequences, 32);
    auto const depth = static_cast<std::size_t>(rule.select.depth);
    stage_.device->template launch<cascade_due_body>(
        {few, 1, 1}, {lengths, state(fired), state(at), rule.trigger.first.steps, rule.trigger.second.rest, stage_.sequences,
                      limits(depth - 1), numbers_.of(tail), state(due), state(since), counts(level_a)});
    for (std::size_t level = 1; level < depth; ++level) refresh(level);
    stage_.device->template launch<page_anchor_body>(
        {divided_up(dims_, page_anchor_body::threads), stage_.sequences, 1},
        {means_[0].get(), units_[0] * dims_, dims_, numbers_.of(units), state(due), rule.score.recent_pages,
         rule.score.standardised, scorers::anchor_affinity::min_deviation, anchor_.get()});
    buffer<std::int32_t> live{};
    int of_level = level_a;
    for (std::size_t level = depth; level-- > 0;) {
      score(level, live, counts(of_level));
      if (level == 0) break;
      int const next = of_level == level_a ? level_b : level_a;
      buffer<std::int32_t> const children = list(next == level_a ? live_a : live_b);
      stage_.device->template launch<cascade_children_body>(
          {stage_.sequences, 1, 1}, {counts(of_level), list(kept_places), live, limits(level).first, units_[0], fan_out_[level],
                                     limits(level - 1), children, counts(next)});
      live = children;
      of_level = next;
    }
    stage_.device->template launch<cascade_pages_body>(
        {stage_.sequences, 1, 1}, {counts(of_level), list(kept_places), live, limits(0).first, units_[0], state(due),
                                   list(chosen_pages), state(page_count)});
    per_sequence tail_now{};
    tail_now.values = state(since);
    stage_.device->template launch<page_list_body>(
        {stage_.sequences, 1, 1}, {list(chosen_pages), state(page_count), units_[0], numbers_.of(sinks), tail_now,
                                   rule.segment.page, list(step_list), state(step_named)});
  }

  /// Scores of a level's live units, and the places of the best among them.
  void score(std::size_t level, buffer<std::int32_t const> live, level_counts const& of_level) {
    score_dot_body::arguments dot{};
    dot.anchor = anchor_.get();
    dot.anchor_stride = dims_;
    dot.vectors = means_[level].get();
    dot.vector_sequence_stride = units_[level] * dims_;
    dot.vector_stride = dims_;
    dot.dims = dims_;
    dot.units = live;
    dot.first = limits(level).first;
    dot.count.values = of_level.scored;
    dot.scores = scores_->get();
    dot.stride = units_[0];
    launch_score_dot(*stage_.device, dot, units_[level], stage_.sequences);
    if (stage_.rule.select.following && level == 0)
      stage_.device->template launch<cascade_following_body>({stage_.sequences, 1, 1},
                                                             {of_level, live, units_[0], scores_->get()});
    top_k_body<1>::arguments top{};
    top.scores = scores_->get();
    top.score_stride = units_[0];
    top.columns.values = of_level.live;
    top.k.values = of_level.kept;
    top.indices = list(kept_places);
    top.index_stride = units_[0];
    launch_top_k(*stage_.device, top, stage_.sequences, units_[level]);
  }

  decode_stage<rule_type, D> stage_;
  std::int64_t dims_;
  std::array<std::int32_t, 3> fan_out_{};
  std::array<std::int64_t, 3> units_{};  ///< of a sequence, at most; every list has room for as many pages
  step_numbers<D> numbers_;
  std::vector<array_of<D, float>> means_;           ///< of each level `[sequences, units, dims]`
  array_of<D, std::int32_t> state_;                 ///< `[state_rows, sequences]`
  array_of<D, double> moments_;                     ///< `[2, sequences]`
  array_of<D, float> anchor_;                       ///< `[sequences, dims]`
  array_of<D, float> entropy_;                      ///< `[2, sequences]`
  device_rope_table<D> rope_;                       ///< for pre-rope keys
  std::optional<array_of<D, float>> scores_;        ///< `[sequences, pages]`
  std::optional<array_of<D, std::int32_t>> lists_;  ///< `[list_rows, sequences, pages]`
};

}  // namespace kvpolicy::gpu
