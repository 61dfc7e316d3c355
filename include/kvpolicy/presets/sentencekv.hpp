// Preset sentencekv: retains the tokens that the prompt's end attends to, and reads them by sentences (SentenceKV).
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

/// Retains the tokens that the prompt's end attends to, and reads the sentences near the one that is being generated
/// (SentenceKV, Zhu et al.). The defaults retain three times the tokens that a step reads, by a short window and wide
/// neighbourhoods. Most of a step's tokens are in standing sentences, which the prompt's end attends to most. The other
/// sentences come and go, ranked by the mean and the spread of their keys.
struct sentencekv {
  static constexpr char const* name = "sentencekv";
  static constexpr char const* source = "sentences near the one that is being generated (SentenceKV, Zhu et al.)";

  std::int32_t tokens = 512;      ///< tau, tokens that each KV head reads at each step, beside the open sentence
  std::optional<double> ratio{};  ///< fraction of the tokens not read, 0 to below 1, in place of `tokens`
  double keep = 3;                ///< r, tokens of the prompt that are retained, as a multiple of `tokens`; the paper: 2
  std::int32_t sinks = 4;         ///< first tokens, always read
  std::int32_t window = 8;        ///< observing queries; as many recent tokens are always read; the paper: 32
  /// Smoothing of the attention over neighbouring tokens; the paper: maximum over 7.
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63, .of_group = group_merge::mean};
  segments::sentences sentences{};  ///< boundary table, and the lengths of sentences in tokens
  bool spread = true;               ///< summarise a sentence by mean -/+ one deviation of its keys; the paper: by the mean
  float carry = .5f;                ///< share of the earlier queries' sum that counts; the paper: 1, a sum for each sentence
  double standing = .75;            ///< share of `tokens` for standing sentences, which every step reads; the paper: 0
  bool all_after_boundary = false;  ///< read everything retained right behind a boundary, as the authors' code does
  bool all_heads = false;   ///< all heads of a layer retain the same tokens, by the sum of their attention; the paper: 1
  bool generated = false;   ///< read every generated token, and rank the prompt's sentences alone; the paper: 1
  layering layers{};        ///< first layers that keep everything, and layers that retain by one choice
  std::int32_t after = 16;  ///< tokens of the answer that the choice waits for; the paper: 0
  bool next_step = false;   ///< a choice serves the step after, so that its rows can come from a tier meanwhile

  /// Returns the paper's setting: attention summed over all heads, no sinks, the prompt's sentences by their mean keys.
  static constexpr sentencekv paper() noexcept {
    return {.keep = 2,
            .sinks = 0,
            .window = 32,
            .smooth = {},
            .sentences = {.shortest = 1},
            .spread = false,
            .carry = 1,
            .standing = 0,
            .all_heads = true,
            .generated = true,
            .after = 0};
  }
  /// Returns the setting of the authors' code: a list for each head, by a maximum over 7 tokens, and 32 sinks.
  static constexpr sentencekv code() noexcept {
    return {.keep = 2,
            .sinks = 32,
            .window = 32,
            .smooth = {.how = smoothing::kind::maximum, .width = 7, .of_group = group_merge::mean},
            .sentences = {.shortest = 1},
            .spread = false,
            .carry = 1,
            .standing = 0,
            .all_after_boundary = true,
            .after = 0};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "tau: read by each KV head at each step, beside the open sentence");
    visit("keep", p.keep, "r: a head retains r x tokens of the prompt");
    visit("sinks", p.sinks, "first tokens, always read");
    visit("window", p.window, "observing queries; as many recent tokens are always read");
    visit("kernel", p.smooth.width, "neighbouring tokens to smooth a score over; odd");
    visit("smooth", p.smooth.how, "none, average or maximum");
    visit("longest", p.sentences.longest, "tokens of the longest sentence");
    visit("shortest", p.sentences.shortest, "tokens of the shortest sentence");
    visit("spread", p.spread, "rank a sentence by its keys' mean plus one deviation towards the query; the paper: by the mean");
    visit("carry", p.carry, "weight of the earlier queries of the open sentence; the paper: 1, their mean");
    visit("standing", p.standing,
          "share of the budget for sentences that the prompt's end attends to most, read at every step; the paper: 0");
    visit("all_after_boundary", p.all_after_boundary, "as the authors' code: read all retained tokens right after a boundary");
    visit("all_heads", p.all_heads, "all heads of a layer retain the same tokens, by the sum of their attention; the paper: 1");
    visit("generated", p.generated, "read every generated token, and rank the prompt's sentences alone; the paper: 1");
    waiting_parameters(p, visit);
    next_step_parameters(p, visit);
    layer_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "r = 2, window 32, attention summed over all heads, the prompt's sentences alone");
    visit("code", code(), "the authors' code: a list for each head, maximum over 7, 32 sinks");
  }

  constexpr auto parts() const {
    auto const many = static_cast<std::int32_t>(std::clamp<double>(keep * tokens, 0, INT32_MAX));
    std::optional<double> rest{};
    if (ratio) rest = std::max(0.0, 1 - keep * (1 - *ratio));
    budgets::tokens const read{.count = tokens, .ratio = ratio};
    segments::sentences units = sentences;
    units.prompt_ends = generated;
    return policy{
        kvpolicy::keep{segments::tokens{}, pools::none{},
                       scorers::window_attention{.window = window, .smooth = smooth, .all_heads = all_heads},
                       budgets::tokens{.count = many, .ratio = rest}, selectors::top{},
                       windows::tokens{.sinks = sinks, .recent = window}, triggers::prefill{after}, layers},
        kvpolicy::keep{units, pools::unit_mean{.spread = spread},
                       scorers::query_mean_dot{.carry = carry, .standing = standing, .window = window, .budget = read}, read,
                       selectors::fill{.all_after_boundary = all_after_boundary},
                       windows::tokens{.sinks = sinks, .recent = window, .generated = generated}, triggers::every_step{},
                       layering{.dense_first = layers.dense_first}, next_step}};
  }
};

static_assert(policy_like<sentencekv> && preset<sentencekv>);

}  // namespace kvpolicy::presets
