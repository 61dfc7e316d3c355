// Preset h2o: heavy hitters and recent tokens, one evicted at each step (Zhang et al., 2023, arXiv 2306.14048).
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

struct h2o {
  static constexpr char const* name = "h2o";
  static constexpr char const* source =
      "heavy hitters and recent tokens, one evicted at each step (Zhang et al. 2023, arXiv 2306.14048)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  double recent_share = .5;
  scorers::accumulated_attention::reduction reduce = scorers::accumulated_attention::reduction::sum;
  std::int32_t queries = all_queries;
  layering layers{};

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept for each KV head; the step's own token comes on top");
    visit("recent_share", p.recent_share, "of the budget, for the most recent tokens");
    visit("reduce", p.reduce, "of the queries' weights: sum, or mean over those that saw the token");
    visit("queries", p.queries, "of the prompt's, the last ones that count");
    layer_parameters(p, visit);
  }

  constexpr auto parts() const {
    return policy{keep{segments::tokens{}, pools::none{},
                       scorers::accumulated_attention{.mean = reduce == scorers::accumulated_attention::reduction::mean,
                                                      .window = queries},
                       budgets::tokens{.count = tokens, .ratio = ratio}, selectors::top{},
                       windows::tokens{.recent = 0, .share = recent_share}, triggers::every_step{}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<h2o> && preset<h2o>);

}  // namespace kvpolicy::presets
