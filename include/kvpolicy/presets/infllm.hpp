// Preset infllm: blocks by their representative tokens, one ranking for a layer (Xiao et al., 2024, arXiv 2402.04617).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/representatives.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/pages.hpp"

namespace kvpolicy::presets {

struct infllm {
  static constexpr char const* name = "infllm";
  static constexpr char const* source =
      "blocks by their representative tokens, one ranking a layer (Xiao et al. 2024, arXiv 2402.04617)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  std::int32_t block = 16;
  std::int32_t representatives = 4;
  std::int32_t local = 128;
  std::int32_t sink_blocks = 1;
  std::int32_t recent_blocks = 2;
  bool pre_rope = true;
  layering layers{};

  /// The paper's blocks.
  static constexpr infllm paper() noexcept { return {.block = 128, .recent_blocks = 1, .pre_rope = true}; }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "read in each layer at each step, the open block counted as whole");
    visit("block", p.block, "tokens of a block; the paper's 128 leave four blocks of 512 tokens");
    visit("representatives", p.representatives, "tokens that stand for a block");
    visit("local", p.local, "queries behind a token that say whether it does");
    visit("sink_blocks", p.sink_blocks, "first blocks, always read");
    visit("recent_blocks", p.recent_blocks, "last blocks, always read; the open block is one");
    visit("pre_rope", p.pre_rope, "rank blocks by keys before their rotary embedding, as from `local` tokens behind them");
    layer_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "blocks of 128, ranked by pre-rope keys");
  }

  constexpr auto parts() const {
    return policy{keep_all{},
                  keep{segments::pages{block}, pools::none{},
                       scorers::representatives{.block = block, .count = representatives, .local = local, .pre_rope = pre_rope},
                       budgets::tokens{.count = tokens, .ratio = ratio}, selectors::top_of_layer{},
                       windows::pages{.size = block, .sink_pages = sink_blocks, .recent_pages = recent_blocks},
                       triggers::every_step{}, layers}};
  }
};

static_assert(policy_like<infllm> && preset<infllm>);

}  // namespace kvpolicy::presets
