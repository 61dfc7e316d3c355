// Preset sentencekv: retains what the prompt's end attends to, reads it sentence by sentence (Zhu et al., SentenceKV).
#pragma once

#include <algorithm>

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/pool/unit_mean.hpp"
#include "kvpolicy/score/query_mean_dot.hpp"
#include "kvpolicy/score/window_attention.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/fill.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

/// The defaults retain no more than a step reads, by a short window and wide neighbourhoods: what keeps answers on small
/// models.
struct sentencekv {
  std::int32_t tokens = 512;      ///< tau: read by each KV head at each step, beside the sentence that is open
  std::optional<double> ratio{};  ///< fraction not read, in place of `tokens`
  double keep = 1;                ///< r: retained of the prompt, in multiples of that
  std::int32_t sinks = 4;         ///< first tokens, always read
  std::int32_t window = 8;        ///< observing queries; as many recent tokens are always read
  smoothing smooth{.how = smoothing::kind::maximum, .width = 31, .of_group = true};
  segment::sentences sentences{};   ///< give it the model's boundary table
  bool all_after_boundary = false;  ///< the authors' code: right behind a boundary all that is retained is read
  layering layers{};

  /// The paper's setting.
  static constexpr sentencekv paper() noexcept {
    return {.keep = 2, .window = 32, .smooth = {.how = smoothing::kind::maximum, .width = 7, .of_group = true}};
  }

  constexpr auto parts() const {
    auto const many = static_cast<std::int32_t>(std::clamp<double>(keep * tokens, 0, INT32_MAX));
    std::optional<double> rest{};
    if (ratio) rest = std::max(0.0, 1 - keep * (1 - *ratio));
    return policy{
        kvpolicy::keep{segment::tokens{}, pool::none{}, score::window_attention{.window = window, .smooth = smooth},
                       budget::tokens{.count = many, .ratio = rest, .at_most = true}, select::top{},
                       window::tokens{.sinks = sinks, .recent = window}, trigger::prefill{}, layers},
        kvpolicy::keep{sentences, pool::unit_mean{}, score::query_mean_dot{}, budget::tokens{.count = tokens, .ratio = ratio},
                       select::fill{.all_after_boundary = all_after_boundary}, window::tokens{.sinks = sinks, .recent = window},
                       trigger::every_step{}, layering{.dense_first = layers.dense_first}}};
  }
};

static_assert(policy_like<sentencekv> && preset<sentencekv>);

}  // namespace kvpolicy::presets
