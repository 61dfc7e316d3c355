// Vectors of pages, chunks and grids, and their affinity to the recent pages (CHESS), of every sequence of a batch.
#pragma once

#include <array>
#include <vector>

#include "kvpolicy/gpu/hierarchy/anchor.hpp"
#include "kvpolicy/gpu/pooling/launch_pool.hpp"
#include "kvpolicy/gpu/pooling/score_dot.hpp"
#include "kvpolicy/gpu/step/context.hpp"
#include "kvpolicy/gpu/step/rope_table.hpp"
#include "kvpolicy/pools/hierarchical_mean.hpp"
#include "kvpolicy/scorers/anchor_affinity.hpp"

namespace kvpolicy::gpu {

/// For selectors::cascade: `units(level)` of a sequence at most; `plan(sequence, tokens)`, how many there are; `take(step)`,
/// the step's token; `refreshed(levels)`, what a choice changes, and `prepare(due)`, before it; `scored(level)`, how a level's
/// units are scored. Level 0 is the finest.
template <class Rule, owning_device D>
  requires pools_and_scores<Rule, pools::hierarchical_mean, scorers::anchor_affinity>
class unit_scores<Rule, D> {
  /// Rows of numbers, each of three levels.
  enum number { here, complete = 3, rows = 6 };
  enum state_row { complete_units, first = 2, last = 4, state_rows = 6 };  ///< of chunks, then of grids

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
      for (int const level : {0, 1}) context_.put(state(complete_units + level), piece.sequence, 0);
    }
    detail::pooled_tokens what{};
    what.last.all = piece.view.tokens();
    what.newest = piece.view.tokens() - piece.prompt.first / page * page;
    what.units = divided_up(what.newest, page);
    pool(piece.keys, what, 1, piece.layer, piece.sequence);
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

  /// Units of chunks and grids that a choice changes. Returns how many of these levels there are.
  std::int32_t refreshed(detail::level_refresh (&levels)[2]) const noexcept {
    for (int l = 0; l < coarser(); ++l) {
      levels[l] = {state(complete_units + l), numbers_.of(here + l), numbers_.of(complete + l), state(first + l),
                   state(last + l)};
    }
    return coarser();
  }
  void prepare(buffer<std::int32_t const> due) {
    D& device = *context_.device;
    using body = detail::prepare_descent_body;
    body::arguments a{};
    a.pages = means_[0].get();
    a.page_stride = units_[0];
    a.dims = dims_;
    a.here = numbers_.of(here);
    a.due = due;
    a.recent = context_.rule.score.recent_pages;
    a.standardised = context_.rule.score.standardised;
    a.min_deviation = scorers::anchor_affinity::min_deviation;
    a.anchor = anchor_.get();
    a.levels = coarser();
    for (int l = 0; l < coarser(); ++l) {
      std::size_t const level = static_cast<std::size_t>(l) + 1;
      a.level[l] = {means_[level].get(), units_[level], fan_out_[level], state(first + l), state(last + l)};
    }
    a.anchor_blocks = divided_up(dims_, body::threads);
    a.blocks =
        a.levels == 0 ? 0 : blocks_of_row<body>(device, units_[means_.size() - 1] * dims_, body::threads, context_.sequences);
    device.template launch<body>({a.anchor_blocks + a.blocks, context_.sequences, 1}, a);
  }

  detail::score_dot_body::arguments scored(std::size_t level) const noexcept {
    detail::score_dot_body::arguments dot{};
    dot.anchor = anchor_.get();
    dot.anchor_stride = dims_;
    dot.vectors = means_[level].get();
    dot.vector_sequence_stride = units_[level] * dims_;
    dot.vector_stride = dims_;
    dot.dims = dims_;
    dot.stride = units_[0];
    return dot;
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

  /// Levels above the pages.
  int coarser() const noexcept { return static_cast<int>(means_.size()) - 1; }

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
