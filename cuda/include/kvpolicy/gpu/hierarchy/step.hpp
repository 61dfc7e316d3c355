// Pages chosen coarse to fine, one list for all layers, when a trigger says so (CHESS), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/gpu/base/top_k.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/hierarchy/page_list.hpp"
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
  enum list_row { live_a, live_b, kept_places, chosen_pages, step_list, list_rows };

 public:
  static constexpr bool by_index = false;
  static constexpr bool can_wait = true;

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

  void plan(std::int64_t sequence, std::int64_t prompt, std::int64_t tokens, auto const&) {
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
    bool const reads_all = context_.waits(prompt, tokens);
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
    device.template launch<cascade_due_body>(
        {divided_up(context_.sequences, cascade_due_body::threads), 1, 1},
        {lengths, trigger_.fired(), state(at), trigger_.steps(), trigger_.rest(), context_.sequences, limits(depth_ - 1),
         numbers_.of(tail), numbers_.of(waits), state(due), state(since), state(page_count), counts(level_a)});
    unit_scores_.prepare(state(due));
    buffer<std::int32_t> live{};
    int of_level = level_a;
    for (std::size_t level = depth_; level-- > 0;) {
      rank(level, live, counts(of_level));
      if (level == 0) break;
      int const next = of_level == level_a ? level_b : level_a;
      buffer<std::int32_t> const children = list(next == level_a ? live_a : live_b);
      device.template launch<cascade_children_body>({context_.sequences, 1, 1},
                                                    {counts(of_level), list(kept_places), live, limits(level).first, pages_,
                                                     unit_scores_.fan_out(level), limits(level - 1), children, counts(next)});
      live = children;
      of_level = next;
    }
    device.template launch<cascade_pages_body>({context_.sequences, 1, 1},
                                               {counts(of_level), list(kept_places), live, limits(0).first, pages_, state(due),
                                                list(chosen_pages), state(page_count)});
    device.template launch<page_list_body>({context_.sequences, 1, 1},
                                           {list(chosen_pages), state(page_count), pages_, numbers_.of(sinks), behind(), page(),
                                            list(step_list), state(step_named)});
  }

  /// Scores of a level's live units, and the places of the best among them.
  void rank(std::size_t level, buffer<std::int32_t const> live, level_counts const& of_level) {
    unit_scores_.score(level, live, limits(level).first, of_level.scored, scores_.get());
    if (context_.rule.select.following && level == 0)
      context_.device->template launch<cascade_following_body>({context_.sequences, 1, 1},
                                                               {of_level, live, pages_, scores_.get()});
    top_k_arguments top{};
    top.scores = scores_.get();
    top.score_stride = pages_;
    top.columns.values = of_level.live;
    top.k.values = of_level.kept;
    top.indices = list(kept_places);
    top.index_stride = pages_;
    launch_top_k(*context_.device, top, context_.sequences, unit_scores_.units(level));
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
