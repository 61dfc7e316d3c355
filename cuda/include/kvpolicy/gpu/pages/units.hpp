// Which rules list the best units of each step, and what a scorer of theirs is asked.
#pragma once

#include <concepts>

#include "kvpolicy/gpu/step/context.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/pruned_top.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/pages.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::gpu {

/// Of each sequence, or of each of its heads: candidates [first, end), `count` of them.
struct unit_candidates {
  per_sequence first;
  per_sequence count;
  per_sequence end;
  bool by_head = false;
};

template <class Select>
inline constexpr bool is_top = false;
template <scope Finest>
inline constexpr bool is_top<selectors::basic_top<Finest>> = true;

/// Of the best units the tokens that hold a share of the attention.
template <class Rule>
concept prunes_units = std::same_as<typename Rule::select_type, selectors::pruned_top>;
template <class Rule>
concept lists_top_units = Rule::granularity != scope::request && (is_top<typename Rule::select_type> || prunes_units<Rule>);

/// Pages with a window of whole pages: behind another one a page could be listed and reach into it. Or single tokens.
template <class Rule>
concept protects_whole_units = (std::same_as<typename Rule::segment_type, segments::pages> &&
                                std::same_as<typename Rule::window_type, windows::pages>) ||
                               (std::same_as<typename Rule::segment_type, segments::tokens> &&
                                std::same_as<typename Rule::window_type, windows::tokens>);

/// The best units of each step (Quest, InfLLM, OmniKV).
template <class Rule, class D>
concept lists_best_units = lists_top_units<Rule> && protects_whole_units<Rule> &&
    std::same_as<typename Rule::trigger_type, triggers::every_step> && scores_on_device<Rule, D> && budgets_on_device<Rule>;

}  // namespace kvpolicy::gpu
