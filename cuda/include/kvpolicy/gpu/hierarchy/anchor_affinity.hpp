// Vectors of pages, chunks and grids, and their affinity to the recent pages (CHESS), of every sequence of a batch.
#pragma once

#include <array>
#include <vector>

#include "kvpolicy/gpu/hierarchy/anchor.hpp"
#include "kvpolicy/gpu/hierarchy/descent.hpp"
#include "kvpolicy/gpu/pooling/launch_pool.hpp"
#include "kvpolicy/gpu/pooling/score_dot.hpp"
#include "kvpolicy/gpu/step/context.hpp"
#include "kvpolicy/gpu/step/rope_table.hpp"
#include "kvpolicy/pools/hierarchical_mean.hpp"
#include "kvpolicy/scorers/anchor_affinity.hpp"

namespace kvpolicy::gpu {

/// For selectors::cascade: `units(level)` of a sequence at most; `plan(sequence, tokens)`, how many there are; `take(step)`,
/// the step's token; `prepare(due)`, before a choice; `score(level, live, first, count, out)`. Level 0 is the finest.
template <class Rule, owning_device D>
  requires pools_and_scores<Rule, pools::hierarchical_mean, scorers::anchor_affinity>
class unit_scores<Rule, D> {
  /// Rows of numbers, each of three levels.
  enum number { here, complete = 3, rows = 6 };
  enum state_row { complete_chunks, complete_grids, first, last, state_rows };

 public:
  unit_scores(decode_context<Rule, D> const& context, std::size_t depth)
      : context_(context),
        dims_(context.shape.layers * context.shape.kv_heads * context.shape.head_dim),
        numbers_(context.numbers(rows)),
        state_(context.template array<std::int32_t>(state_rows * context.sequences)),
        anchor_(context.template array<float>(context.sequences * dims_)),
        rope_(context.shape, context.rule.pool.pre_rope, *context.device) {
    auto const& segment = context.rule.segment;
    fan_out_ = {segment.page, segment.pages_per_chunk, segment.chunks_per_grid};
    std::int64_t count = context.shape.max_tokens;
    for (std::size_t l = 0; l < 3; ++l) {
      count = divided_up(count, fan_out_[l]);
      units_[l] = count;
      if (l < depth) means_.push_back(context.template array<float>(context.sequences * count * dims_));
    }
  }

  std::int64_t units(std::size_t level) const noexcept { return units_[level]; }
  std::int32_t fan_out(std::size_t level) const noexcept { return fan_out_[level]; }
  std::int64_t planned(std::size_t level, std::int64_t sequence) const noexcept {
    return numbers_.get(here + static_cast<std::int64_t>(level), sequence);
  }

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec&) {
    std::int64_t const page = fan_out_[0];
    if (piece.layer.value == 0) {
      if (context_.rule.pool.pre_rope) rope_.take(piece.prompt.rope, *context_.device);
      for (int const row : {complete_chunks, complete_grids}) context_.put(state(row), piece.sequence, 0);
    }
    detail::pooled_tokens what{};
    what.last.all = piece.view.tokens();
    what.newest = piece.view.tokens() - piece.prompt.first / page * page;
    what.units = divided_up(what.newest, page);
    pool(of_sequence(piece.keys, piece.sequence), what, 1, piece.layer, piece.sequence);
  }

  void plan(std::int64_t sequence, std::int64_t tokens) {
    std::int64_t count = tokens;
    std::int64_t whole = tokens;
    for (std::size_t l = 0; l < 3; ++l) {
      count = divided_up(count, fan_out_[l]);
      whole /= fan_out_[l];
      numbers_.set(here + static_cast<std::int64_t>(l), sequence, count);
      numbers_.set(complete + static_cast<std::int64_t>(l), sequence, whole);
    }
  }
  void upload() const { numbers_.upload(*context_.device); }

  void take(decode_step const& step) {
    detail::pooled_tokens what{};
    what.last = step.lengths;
    what.newest = 1;
    what.units = 1;
    pool(step.keys, what, context_.sequences, step.layer, 0);
  }

  void prepare(buffer<std::int32_t const> due) {
    for (std::size_t level = 1; level < means_.size(); ++level) refresh(level, due);
    context_.device->template launch<detail::page_anchor_body>(
        {divided_up(dims_, detail::page_anchor_body::threads), context_.sequences, 1},
        {means_[0].get(), units_[0] * dims_, dims_, numbers_.of(here), due, context_.rule.score.recent_pages,
         context_.rule.score.standardised, scorers::anchor_affinity::min_deviation, anchor_.get()});
  }

  void score(std::size_t level, buffer<std::int32_t const> live, per_sequence const& from, buffer<std::int32_t> count,
             buffer<float> scores) {
    detail::score_dot_body::arguments dot{};
    dot.anchor = anchor_.get();
    dot.anchor_stride = dims_;
    dot.vectors = means_[level].get();
    dot.vector_sequence_stride = units_[level] * dims_;
    dot.vector_stride = dims_;
    dot.dims = dims_;
    dot.units = live;
    dot.first = from;
    dot.count.values = count;
    dot.scores = scores;
    dot.stride = units_[0];
    detail::launch_score_dot(*context_.device, dot, units_[level], context_.sequences);
  }

 private:
  buffer<std::int32_t> state(int row) const noexcept {
    return part_of(state_.get(), row * context_.sequences, context_.sequences);
  }

  void pool(batch_rows const& keys, detail::pooled_tokens what, std::int64_t sequences, layer_id layer,
            std::int64_t first_sequence) {
    what.unit_size = fan_out_[0];
    auto const set = [&](auto& a) {
      a.rotated = rope_.get();
      std::int64_t const from =
          first_sequence * units_[0] * dims_ + layer.value * context_.shape.kv_heads * context_.shape.head_dim;
      a.means = part_of(means_[0].get(), from, means_[0].get().size - from);
      a.sequence_stride = units_[0] * dims_;
      a.unit_stride = dims_;
      a.head_stride = context_.shape.head_dim;
    };
    if (context_.rule.pool.pre_rope)
      detail::launch_pool<detail::pool_pre_rope_body>(*context_.device, keys, what, sequences, set);
    else detail::launch_pool<detail::pool_mean_body>(*context_.device, keys, what, sequences, set);
  }

  /// Chunks from pages, grids from chunks: those whose units changed since the last choice.
  void refresh(std::size_t level, buffer<std::int32_t const> due) {
    std::int64_t const finer = static_cast<std::int64_t>(level) - 1;
    context_.device->template launch<detail::refresh_range_body>(
        {divided_up(context_.sequences, detail::refresh_range_body::threads), 1, 1},
        {due, state(level == 1 ? complete_chunks : complete_grids), numbers_.of(here + finer), numbers_.of(complete + finer),
         fan_out_[level], context_.sequences, state(first), state(last)});
    detail::pooled_tokens what{};
    what.last.values = state(last);
    what.begin.values = state(first);
    what.unit_size = fan_out_[level];
    what.units = units_[level];
    detail::launch_pool<detail::pool_mean_body>(*context_.device,
                                                summary_rows(means_[level - 1].get(), 1, units_[level - 1], dims_), what,
                                                context_.sequences, [&](auto& a) {
                                                  a.means = means_[level].get();
                                                  a.sequence_stride = units_[level] * dims_;
                                                  a.unit_stride = dims_;
                                                });
  }

  decode_context<Rule, D> context_;
  std::int64_t dims_;
  std::array<std::int32_t, 3> fan_out_{};
  std::array<std::int64_t, 3> units_{};
  step_numbers<D> numbers_;
  std::vector<array_of<D, float>> means_;  ///< of each level `[sequences, units, dims]`
  array_of<D, std::int32_t> state_;        ///< `[state_rows, sequences]`
  array_of<D, float> anchor_;              ///< `[sequences, dims]`
  detail::device_rope_table<D> rope_;
};

}  // namespace kvpolicy::gpu
