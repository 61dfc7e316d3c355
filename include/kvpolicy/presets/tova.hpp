// Preset tova: keeps the tokens that the last query attends to, and evicts one token at each step (TOVA).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/last_attention.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// Keeps the tokens that the last query attends to, the same for all heads of a layer; evicts one token at each step (Oren et
/// al. 2024, arXiv 2401.06104).
struct tova {
  static constexpr char const* name = "tova";
  static constexpr char const* source =
      "what the last query attends to, one evicted at each step (Oren et al. 2024, arXiv 2401.06104)";

  std::int32_t tokens = 512;      ///< tokens that each layer keeps, beside the step's own token
  std::optional<double> ratio{};  ///< fraction of the tokens removed, 0 to below 1, in place of `tokens`
  bool keep_prompt = false;       ///< keep the prompt, beside the budget
  layering layers{};              ///< first layers that keep everything, and layers that share one choice

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept in each layer; the step's own token comes on top");
    prompt_parameters(p, visit);
    layer_parameters(p, visit);
  }

  constexpr auto parts() const {
    return policy{
        keep{segments::tokens{}, pools::none{}, scorers::last_attention{}, budgets::tokens{.count = tokens, .ratio = ratio},
             selectors::top_of_layer{}, windows::tokens{.recent = 1, .prompt = keep_prompt}, triggers::every_step{}, layers},
        keep_all{}};
  }
};

static_assert(policy_like<tova> && preset<tova>);

}  // namespace kvpolicy::presets
