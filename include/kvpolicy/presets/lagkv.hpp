// Preset lagkv: tokens that spread most in the scale of those behind them (Liang et al., 2025, arXiv 2504.04704).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/score/lag.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/lag.hpp"

namespace kvpolicy::presets {

struct lagkv {
  std::int32_t tokens = 512;      ///< kept of the prompt for each KV head; later tokens are all kept
  std::optional<double> ratio{};  ///< fraction removed, in place of `tokens`
  std::int32_t sinks = 4;         ///< first tokens, always kept
  std::int32_t lag = 128;         ///< tokens of a partition
  bool cross = false;             ///< compare scores across partitions, not just ranks within them
  layering layers{};

  constexpr auto parts() const {
    return policy{keep{segment::tokens{}, pool::none{}, score::lag{.sinks = sinks, .size = lag, .cross = cross},
                       budget::tokens{.count = tokens, .ratio = ratio}, select::top{}, window::lag{.sinks = sinks, .size = lag},
                       trigger::prefill{}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<lagkv> && preset<lagkv>);

}  // namespace kvpolicy::presets
