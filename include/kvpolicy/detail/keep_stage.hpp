// What a retain and a retrieve at work have in common.
#pragma once

#include <span>
#include <utility>

#include "kvpolicy/detail/stage.hpp"

namespace kvpolicy {

/// The parts of a keep at work in one request, and what is kept, list by list.
template <class Act>
class keep_stage {
 public:
  std::span<range_list const> lists(layer_id layer) const noexcept { return kept_.of(layer); }
  /// What the scorer remembers.
  auto& memory() noexcept { return memory_; }
  /// What the trigger remembers.
  auto const& trigger() const noexcept { return trigger_; }

  template <class Exec>
  void observe(std::int64_t tokens, step_outcome const& outcome, Exec& exec) {
    if constexpr (contains(Act::trigger_type::needs, signals::logits)) act_.trigger.observe(trigger_, tokens, outcome, exec);
  }

  void tell(listener const& listen) const {
    if constexpr (requires { act_.trigger.tell(trigger_, listen); }) act_.trigger.tell(trigger_, listen);
  }

 protected:
  using memory_type = memory_of<typename Act::score_type>;
  using summaries_type = summaries_of<typename Act::pool_type, typename Act::segment_type>;
  template <class View>
  using input_type = score_input<View, summaries_type, memory_type>;

  /// `further`: the most ranges of a list, beside those that the selector makes.
  keep_stage(Act const& act, cache_shape const& shape, std::int64_t further)
      : act_(act),
        shape_(shape),
        summaries_(act_.pool.start(shape, act_.segment)),
        trigger_(act_.trigger.start(shape)),
        memory_(act_.score.start(shape)),
        scratch_(act_.select.start(act_, shape)),
        kept_(Act::granularity, shape, static_cast<std::size_t>(act_.select.max_ranges(act_, shape) + further)) {}

  template <class Archive>
  void archive_parts(Archive& a) {
    archive_if(a, summaries_, true, "pool");
    archive_if(a, trigger_, Act::trigger_type::needs != signals::none, "trigger");
    archive_if(a, memory_, memory_type::hears_prompts || memory_type::hears_steps, "scorer");
  }

  Act act_;
  cache_shape shape_;
  summaries_type summaries_;
  decltype(std::declval<Act const&>().trigger.start(cache_shape{})) trigger_;
  memory_type memory_;
  decltype(std::declval<Act const&>().select.start(std::declval<Act const&>(), cache_shape{})) scratch_;
  layer_lists kept_;
};

}  // namespace kvpolicy
