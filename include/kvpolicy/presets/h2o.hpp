// Preset h2o: keeps heavy hitters and recent tokens, and evicts one token at each step (H2O).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/accumulated_attention.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// Keeps heavy hitters, the tokens with most attention so far, and recent tokens; evicts one token at each step (Zhang et al.
/// 2023, arXiv 2306.14048).
struct h2o {
  static constexpr char const* name = "h2o";
  static constexpr char const* source =
      "heavy hitters and recent tokens, one evicted at each step (Zhang et al. 2023, arXiv 2306.14048)";

  std::int32_t tokens = 512;      ///< tokens that each KV head keeps, beside the step's own token
  std::optional<double> ratio{};  ///< fraction of the tokens removed, 0 to below 1, in place of `tokens`
  double recent_share = .5;       ///< share of the budget for the most recent tokens, 0 to 1
  /// Sum of the weights that a token got, or their mean over the queries that saw the token.
  scorers::accumulated_attention::reduction reduce = scorers::accumulated_attention::reduction::sum;
  std::int32_t queries = all_queries;  ///< queries at the prompt's end that count
  bool keep_prompt = false;            ///< keep the prompt, beside the budget
  layering layers{};                   ///< first layers that keep everything, and layers that share one choice

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept for each KV head; the step's own token comes on top");
    visit("recent_share", p.recent_share, "share of the budget for the most recent tokens");
    visit("reduce", p.reduce, "how the queries' weights are merged: sum, or mean over the queries that see the token");
    visit("queries", p.queries, "how many of the prompt's last queries count");
    prompt_parameters(p, visit);
    layer_parameters(p, visit);
  }

  constexpr auto parts() const {
    return policy{
        keep{segments::tokens{}, pools::none{},
             scorers::accumulated_attention{.mean = reduce == scorers::accumulated_attention::reduction::mean,
                                            .window = queries},
             budgets::tokens{.count = tokens, .ratio = ratio}, selectors::top{},
             windows::tokens{.recent = 0, .share = recent_share, .prompt = keep_prompt}, triggers::every_step{}, layers},
        keep_all{}};
  }
};

static_assert(policy_like<h2o> && preset<h2o>);

}  // namespace kvpolicy::presets
