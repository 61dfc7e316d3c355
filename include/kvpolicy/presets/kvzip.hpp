// Preset kvzip: keeps the tokens that the model attends to while it repeats the text (KVzip).
#pragma once

#include "kvpolicy/budgets/global.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/repetition_attention.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// Keeps the tokens that the model attends to while it repeats the text (Kim et al. 2025, arXiv 2505.23416). The choice does
/// not depend on a question: a text is compressed once and asked many times. The engine decodes the repetition
/// (prompt_signals::repeats); until then everything is kept.
struct kvzip {
  static constexpr char const* name = "kvzip";
  static constexpr char const* source =
      "what the model attends to while it repeats the text (Kim et al. 2025, arXiv 2505.23416)";

  std::int32_t tokens = 512;      ///< tokens of the text that a KV head keeps, mean over all heads of all layers
  std::optional<double> ratio{};  ///< fraction of the text's tokens removed, 0 to below 1, in place of `tokens`
  std::int32_t sinks = 4;         ///< first tokens, always kept, and read by each softmax
  std::int32_t recent = 0;        ///< last tokens of the text, always kept

  /// Returns the published setting: 30 % of the tokens are kept.
  static constexpr kvzip paper() noexcept { return {.ratio = .7}; }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept by a KV head, mean over all heads of all layers");
    visit("sinks", p.sinks, "first tokens, always kept");
    visit("recent", p.recent, "last tokens of the text, always kept");
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "the published setting: 30 % of the text's tokens");
  }

  constexpr auto parts() const {
    return policy{keep{segments::tokens{}, pools::none{}, scorers::repetition_attention{sinks},
                       budgets::global{{.count = tokens, .ratio = ratio}}, selectors::top{},
                       windows::tokens{.sinks = sinks, .recent = recent}, triggers::prefill{}},
                  keep_all{}};
  }
};

static_assert(policy_like<kvzip> && preset<kvzip>);

}  // namespace kvpolicy::presets
