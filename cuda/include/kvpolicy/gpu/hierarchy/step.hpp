// Pages chosen coarse to fine, one list for all layers, when a trigger says so (CHESS), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/hierarchy/level.hpp"
#include "kvpolicy/gpu/hierarchy/trigger.hpp"
#include "kvpolicy/selectors/cascade.hpp"
#include "kvpolicy/windows/pages.hpp"

namespace kvpolicy::gpu::detail {

/// Levels of pages, from coarse to fine (CHESS).
template <class Rule, class D>
concept descends =
    std::same_as<typename Rule::select_type, selectors::cascade> && std::same_as<typename Rule::window_type, windows::pages> &&
    scores_on_device<Rule, D> && budgets_on_device<Rule> && triggers_on_device<Rule>;

template <class Rule, owning_device D>
  requires descends<Rule, D>
class decode_retrieve<Rule, D> {
  /// Rows of a step's numbers; of levels 0 pages, 1 chunks, 2 grids.
  enum number { fraction, least = 3, most = 6, first_unit = 9, last_unit = 12, sinks = 15, tail, slid, waits, rows };
  /// Rows of small device state, and of lists of pages.
  enum state_row { at, since, due, page_count, step_named, level_a, level_b = level_a + 3, state_rows = level_b + 3 };
  enum list_row { live_a, live_b, kept_places, kept_pages, step_list, list_rows };

 public:
  static constexpr bool by_index = false;
  static constexpr bool waits_in_steps = true;

  explicit decode_retrieve(decode_context<Rule, D> const& context)
      : context_(context),
        depth_(static_cast<std::size_t>(context.rule.select.depth)),
        trigger_(on_device(context.rule.trigger), context.sequences, context.turns->count, *context.device),
        unit_scores_(context, depth_),
        pages_(unit_scores_.units(0)),
        numbers_(context.numbers(rows)),
        state_(context.template array<std::int32_t>(state_rows * context.sequences)),
        scores_(context.template array<float>(context.sequences * pages_)),
        lists_(context.template array<std::int32_t>(list_rows * context.sequences * pages_)) {
    if (context.rule.select.paper_literal) {
      throw unsupported(
          "paper_literal scores units that it has dropped, for comparison; it has no kernels: use the four verbs with "
          "gpu_exec");
    }
    for (std::int64_t s = 0; s < context.sequences; ++s) restart(s, true);
  }

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    if (piece.layer.value == 0) restart(piece.sequence, piece.prompt.first == 0);
    unit_scores_.prefill(piece, exec);
  }

  void plan(planned_turn const& turn, auto const&) {
    auto const& [sequence, prompt, tokens, reads_all] = turn;
    Rule const& rule = context_.rule;
    std::int64_t const known = std::max<std::int64_t>(tokens - 1, 0);  // the choice is made before the step's keys are there
    unit_scores_.plan(sequence, known);
    std::array<cascade_level, 3> all{};  // coarse to fine, as the host's
    std::span const levels = std::span(all).first(depth_);
    for (std::size_t l = 0; l < depth_; ++l) {
      levels[depth_ - 1 - l] = {.vectors = {nullptr, unit_scores_.planned(l, sequence), 1, 1},
                                .fan_out = l == 0 ? 1 : unit_scores_.fan_out(l),
                                .fraction = selectors::cascade::fractions_of(rule.budget)[l]};
    }
    protected_tokens const then = rule.window.at(known, prompt);
    host_exec none;
    budget_request const request{.shape = context_.shape, .tokens = known, .prompt = prompt};
    bool const any = rule.select.plan(rule, levels, then, request, none);
    for (std::size_t l = 0; l < depth_; ++l) {
      auto const row = static_cast<std::int64_t>(l);
      cascade_level const& level = levels[depth_ - 1 - l];
      numbers_.set(fraction + row, sequence, std::bit_cast<std::int32_t>(level.fraction));
      numbers_.set(least + row, sequence, level.least);
      numbers_.set(most + row, sequence, any ? std::min<std::int64_t>(level.most, INT32_MAX) : 0);
      numbers_.set(first_unit + row, sequence, level.first);
      numbers_.set(last_unit + row, sequence, std::min(level.last, level.vectors.rows));
    }
    protected_tokens const now = reads_all ? protected_tokens{} : rule.window.at(tokens, prompt);
    numbers_.set(sinks, sequence, now.sink_end / page());
    numbers_.set(tail, sequence, then.recent_begin);
    numbers_.set(slid, sequence, now.recent_begin);
    numbers_.set(waits, sequence, reads_all ? 1 : 0);
  }
  void upload() const {
    numbers_.upload(*context_.device);
    unit_scores_.upload();
  }

  void choose(decode_step const& step) {
    if (step.layer.value == 0) choose_pages(step.lengths);
    unit_scores_.take(step);
  }

  void read(vector_rows const& logits, std::int64_t vocabulary, per_sequence const& brought) {
    trigger_.read(logits, vocabulary, brought);
  }
  void observe(std::int64_t nth, per_sequence const& lengths) { trigger_.observe(nth, lengths); }

  token_lists lists(layer_id, token_lists const& retained) const noexcept {
    return {.units = list(step_list),
            .stride = pages_,
            .named = state(step_named),
            .tail = behind(),
            .tokens = retained.tokens,
            .unit_size = page(),
            .about = about()};
  }

 private:
  /// Tokens that a list names, where the budget says it; 0: not known.
  std::int64_t about() const noexcept {
    if constexpr (budgets::shares_levels<typename Rule::budget_type>) return context_.rule.budget.tokens;
    else return context_.rule.budget.most_tokens(context_.shape);
  }
  std::int32_t page() const noexcept { return context_.rule.segment.page; }
  /// Where each sequence's recent pages begin that a step reads.
  per_sequence behind() const noexcept { return context_.rule.window.slides ? numbers_.of(slid) : per_sequence{state(since)}; }
  buffer<std::int32_t> state(int row) const noexcept {
    return part_of(state_.get(), row * context_.sequences, context_.sequences);
  }
  buffer<std::int32_t> list(int row) const noexcept {
    std::int64_t const size = context_.sequences * pages_;
    return part_of(lists_.get(), row * size, size);
  }
  level_counts counts(int row) const noexcept { return {state(row), state(row + 1), state(row + 2)}; }
  /// How a level is cut; of level 0 pages, 1 chunks, 2 grids.
  level_limits limits(std::size_t level) const noexcept {
    auto const row = static_cast<std::int64_t>(level);
    return {numbers_.of(fraction + row), numbers_.of(least + row), numbers_.of(most + row), numbers_.of(first_unit + row),
            numbers_.of(last_unit + row)};
  }

  void restart(std::int64_t sequence, bool anew) {
    trigger_.restart(sequence, anew);
    context_.put(state(at), sequence, -1);
    if (!anew) return;
    for (int const row : {page_count, since}) context_.put(state(row), sequence, 0);
  }

  void choose_pages(per_sequence const& lengths) {
    D& device = *context_.device;
    cascade_due_body::arguments when{lengths,
                                     trigger_.fired(),
                                     state(at),
                                     trigger_.steps(),
                                     trigger_.rest(),
                                     context_.sequences,
                                     limits(depth_ - 1),
                                     numbers_.of(tail),
                                     numbers_.of(waits),
                                     state(due),
                                     state(since),
                                     state(page_count),
                                     counts(level_a),
                                     {},
                                     0};
    when.levels = unit_scores_.refreshed(when.refresh);
    device.template launch<cascade_due_body>({divided_up(context_.sequences, cascade_due_body::threads), 1, 1}, when);
    unit_scores_.prepare(state(due));
    buffer<std::int32_t> live{};
    int of_level = level_a;
    for (std::size_t level = depth_; level-- > 0;) {
      int const next = of_level == level_a ? level_b : level_a;
      cascade_level_body::arguments a{};
      a.score = unit_scores_.scored(level);
      a.score.units = live;
      a.score.first = limits(level).first;
      a.score.count.values = counts(of_level).scored;
      a.score.scores = scores_.get();
      a.counts = counts(of_level);
      a.top.score_stride = pages_;
      a.top.columns.values = a.counts.live;
      a.top.k.values = a.counts.kept;
      a.top.indices = list(kept_places);
      a.top.index_stride = pages_;
      a.finest = level == 0;
      if (a.finest) {
        a.following = context_.rule.select.following;
        a.pages = {state(due), list(kept_pages), state(page_count), pages_,           numbers_.of(sinks),
                   behind(),   page(),           list(step_list),   state(step_named)};
      } else {
        live = list(next == level_a ? live_a : live_b);
        a.fan_out = unit_scores_.fan_out(level);
        a.finer = limits(level - 1);
        a.children = live;
        a.next = counts(next);
      }
      launch_cascade_level(device, a, unit_scores_.units(level), context_.sequences);
      of_level = next;
    }
  }

  decode_context<Rule, D> context_;
  std::size_t depth_;
  page_uncertainties<D> trigger_;
  unit_scores<Rule, D> unit_scores_;
  std::int64_t pages_;  ///< of a sequence, at most; every list has room for as many
  step_numbers<D> numbers_;
  array_of<D, std::int32_t> state_;  ///< `[state_rows, sequences]`
  array_of<D, float> scores_;        ///< `[sequences, pages]`
  array_of<D, std::int32_t> lists_;  ///< `[list_rows, sequences, pages]`
};

}  // namespace kvpolicy::gpu::detail
