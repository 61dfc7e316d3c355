// Preset sentencekv: retains what the prompt's end attends to, reads it sentence by sentence (Zhu et al., SentenceKV).
#pragma once

#include <algorithm>

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/pools/unit_mean.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/query_mean_dot.hpp"
#include "kvpolicy/scorers/window_attention.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/fill.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// The defaults retain three times what a step reads, by a short window and wide neighbourhoods. Of that most stands, and the
/// rest comes and goes, ranked by how far a sentence's keys spread.
struct sentencekv {
  static constexpr char const* name = "sentencekv";
  static constexpr char const* source = "sentences near the one that is being generated (SentenceKV, Zhu et al.)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  double keep = 3;
  std::int32_t sinks = 4;
  std::int32_t window = 8;
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63, .of_group = true};
  segments::sentences sentences{};
  bool spread = true;
  float carry = .5f;
  double standing = .75;
  bool all_after_boundary = false;
  layering layers{};
  std::int32_t after = 16;

  /// The paper's setting.
  static constexpr sentencekv paper() noexcept {
    return {.keep = 2,
            .window = 32,
            .smooth = {.how = smoothing::kind::maximum, .width = 7, .of_group = true},
            .spread = false,
            .carry = 1,
            .standing = 0,
            .after = 0};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "tau: read by each KV head at each step, beside the open sentence");
    visit("keep", p.keep, "r: retained of the prompt, in multiples of tokens");
    visit("sinks", p.sinks, "first tokens, always read");
    visit("window", p.window, "observing queries; as many recent tokens are always read");
    visit("kernel", p.smooth.width, "tokens that one score is smoothed over, odd");
    visit("smooth", p.smooth.how, "none, average or maximum");
    visit("longest", p.sentences.longest, "tokens of the longest sentence");
    visit("shortest", p.sentences.shortest, "tokens of the shortest");
    visit("spread", p.spread,
          "rank sentences by the mean of their keys and one deviation towards the query; the paper: the mean");
    visit("carry", p.carry, "of the queries before, what the next one's score keeps; 1, the paper: the open sentence's mean");
    visit("standing", p.standing,
          "of tokens, the share of sentences that the prompt's end attends to most, read at every step; the paper: 0");
    visit("all_after_boundary", p.all_after_boundary,
          "the authors' code: right behind a boundary all that is retained is read");
    waiting_parameters(p, visit);
    layer_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "r = 2, window 32, maximum over 7; mean keys, mean query of the open sentence");
  }

  constexpr auto parts() const {
    auto const many = static_cast<std::int32_t>(std::clamp<double>(keep * tokens, 0, INT32_MAX));
    std::optional<double> rest{};
    if (ratio) rest = std::max(0.0, 1 - keep * (1 - *ratio));
    budgets::tokens const read{.count = tokens, .ratio = ratio};
    return policy{
        kvpolicy::keep{segments::tokens{}, pools::none{}, scorers::window_attention{.window = window, .smooth = smooth},
                       budgets::tokens{.count = many, .ratio = rest, .at_most = true}, selectors::top{},
                       windows::tokens{.sinks = sinks, .recent = window}, triggers::prefill{after}, layers},
        kvpolicy::keep{sentences, pools::unit_mean{.spread = spread},
                       scorers::query_mean_dot{.carry = carry, .standing = standing, .window = window, .budget = read}, read,
                       selectors::fill{.all_after_boundary = all_after_boundary},
                       windows::tokens{.sinks = sinks, .recent = window}, triggers::every_step{},
                       layering{.dense_first = layers.dense_first}}};
  }
};

static_assert(policy_like<sentencekv> && preset<sentencekv>);

}  // namespace kvpolicy::presets
