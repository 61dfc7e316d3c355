// Preset infllm: blocks by their representative tokens, one ranking for a layer (Xiao et al., 2024, arXiv 2402.04617).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/score/representatives.hpp"
#include "kvpolicy/segment/pages.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/window/pages.hpp"

namespace kvpolicy::presets {

struct infllm {
  std::int32_t tokens = 512;         ///< read in each layer at each step, the open block counted as whole
  std::optional<double> ratio{};     ///< fraction not read, in place of `tokens`
  std::int32_t block = 32;           ///< tokens; the paper's 128 leave four blocks of 512 tokens
  std::int32_t representatives = 4;  ///< tokens of a block that stand for it
  std::int32_t local = 128;          ///< queries behind a token that say whether it represents its block
  std::int32_t sink_blocks = 1;      ///< always read
  std::int32_t recent_blocks = 2;    ///< the open block is one of them
  layering layers{};

  /// The paper's blocks.
  static constexpr infllm paper() noexcept { return {.block = 128, .recent_blocks = 1}; }

  constexpr auto parts() const {
    return policy{keep_all{}, keep{segment::pages{block}, pool::none{},
                                   score::representatives{.block = block, .count = representatives, .local = local},
                                   budget::tokens{.count = tokens, .ratio = ratio}, select::top_of_layer{},
                                   window::pages{.size = block, .sink_pages = sink_blocks, .recent_pages = recent_blocks},
                                   trigger::every_step{}, layers}};
  }
};

static_assert(policy_like<infllm> && preset<infllm>);

}  // namespace kvpolicy::presets
