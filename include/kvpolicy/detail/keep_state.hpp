// What a retain and a retrieve at work have in common.
#pragma once

#include <span>
#include <utility>

#include "kvpolicy/detail/rule_state.hpp"

namespace kvpolicy {

/// The parts of a keep at work in one request, and what is kept, list by list.
template <class Rule>
class keep_state {
 public:
  std::span<range_list const> lists(layer_id layer) const noexcept { return kept_.of(layer); }
  std::span<range_list const> ahead(layer_id layer) const noexcept { return kept_.of(layer); }
  /// Makes room for a sequence of so many tokens, and for so many ranges in each list beside those that the selector makes.
  void reserve(std::int64_t tokens, std::int64_t further) {
    make_room(summaries_, tokens);
    make_room(trigger_, tokens);
    make_room(memory_, tokens);
    cache_shape const room = room_of(shape_, tokens);
    if constexpr (!one_size) scratch_ = rule_.select.start(rule_, room);
    list_room_ = rule_.select.max_ranges(rule_, room) + further;
    for (range_list& list : kept_.all()) list.reserve(static_cast<std::size_t>(list_room_));
  }
  /// The most ranges of a list, within the room that was made.
  std::int64_t max_ranges() const noexcept { return list_room_; }
  /// What the scorer remembers.
  auto& memory() noexcept { return memory_; }
  /// What the trigger remembers.
  auto const& trigger() const noexcept { return trigger_; }

  template <class Exec>
  void observe(std::int64_t tokens, step_outcome const& outcome, Exec& exec) {
    if constexpr (contains(Rule::trigger_type::needs, signals::logits)) rule_.trigger.observe(trigger_, tokens, outcome, exec);
  }

  void visit_statistics(statistic_visitor const& visit) const {
    if constexpr (requires { rule_.trigger.visit_statistics(trigger_, visit); })
      rule_.trigger.visit_statistics(trigger_, visit);
  }

 protected:
  using memory_type = memory_of<typename Rule::score_type>;
  using summaries_type = summaries_of<typename Rule::pool_type, typename Rule::segment_type>;
  template <class View>
  using input_type = score_input<View, summaries_type, memory_type>;

  keep_state(Rule const& rule, cache_shape const& shape)
      : rule_(rule),
        shape_(shape),
        summaries_(rule_.pool.start(shape, rule_.segment)),
        trigger_(rule_.trigger.start(shape)),
        memory_(rule_.score.start(shape)),
        scratch_(rule_.select.start(rule_, one_size ? shape : room_of(shape, 0))),
        kept_(Rule::granularity, shape) {}

  template <class Archive>
  void archive_parts(Archive& a) {
    archive_if(a, summaries_, true, "pool");
    archive_if(a, trigger_, Rule::trigger_type::needs != signals::none, "trigger");
    archive_if(a, memory_, memory_type::hears_prompts || memory_type::hears_steps, "scorer");
  }

  static constexpr bool one_size = requires { Rule::select_type::one_size; };
  static cache_shape room_of(cache_shape shape, std::int64_t tokens) noexcept {
    shape.max_tokens = tokens;
    return shape;
  }

  Rule rule_;
  cache_shape shape_;
  summaries_type summaries_;
  decltype(std::declval<Rule const&>().trigger.start(cache_shape{})) trigger_;
  memory_type memory_;
  decltype(std::declval<Rule const&>().select.start(std::declval<Rule const&>(), cache_shape{})) scratch_;
  layer_lists kept_;
  std::int64_t list_room_ = 0;
};

}  // namespace kvpolicy
