// Preset infllm: reads the blocks whose representative tokens match the query, with one ranking for a layer (InfLLM).
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

/// Reads the blocks whose representative tokens match this step's query, with one ranking for a layer (Xiao et al. 2024, arXiv
/// 2402.04617).
struct infllm {
  static constexpr char const* name = "infllm";
  static constexpr char const* source =
      "blocks by their representative tokens, one ranking a layer (Xiao et al. 2024, arXiv 2402.04617)";

  std::int32_t tokens = 512;         ///< tokens that each layer reads at each step; the open block counts as whole
  std::optional<double> ratio{};     ///< fraction of the tokens not read, 0 to below 1, in place of `tokens`
  std::int32_t block = 16;           ///< tokens of a block; the paper: 128
  std::int32_t representatives = 4;  ///< representative tokens of a block
  std::int32_t local = 128;          ///< queries behind a token that decide whether it is representative
  std::int32_t sink_blocks = 1;      ///< first blocks, always read
  std::int32_t recent_blocks = 2;    ///< last blocks, always read; the open block is one
  bool pre_rope = true;              ///< rank by keys before their rotary embedding, with the query `local` tokens behind
  layering layers{};                 ///< first layers that keep everything, and layers that share one choice

  /// Returns the paper's setting: blocks of 128 tokens.
  static constexpr infllm paper() noexcept { return {.block = 128, .recent_blocks = 1, .pre_rope = true}; }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "read in each layer at each step, the open block counted as whole");
    visit("block", p.block, "tokens of a block; the paper's 128 leave four blocks of 512 tokens");
    visit("representatives", p.representatives, "tokens that stand for a block");
    visit("local", p.local, "following queries that rank the representatives");
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
