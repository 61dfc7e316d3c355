// What a policy may ask an engine for, and what the verbs get of it.
#pragma once

#include <optional>
#include <span>

#include "kvpolicy/selection.hpp"

namespace kvpolicy {

/// A set of signals. An adapter provides some; a policy needs some.
enum class signals : unsigned {
  none = 0,
  keys = 1u << 0,                 ///< key rows, after rotation
  values = 1u << 1,               ///< value rows
  queries = 1u << 2,              ///< the current token's query heads, at choose
  observation_queries = 1u << 3,  ///< the prompt's last queries, at prefill
  rotation = 1u << 4,             ///< the keys' rotary embedding, at prefill
  logits = 1u << 5,               ///< next-token logits, at observe
  token_ids = 1u << 6,            ///< vocabulary ids: of the prompt at prefill, of the current token at choose
};

/// Every one of them.
inline constexpr signals all_signals{(1u << 7) - 1};

constexpr signals operator|(signals a, signals b) noexcept {
  return static_cast<signals>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr signals operator&(signals a, signals b) noexcept {
  return static_cast<signals>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
/// Whether every signal of `few` is in `many`.
constexpr bool contains(signals many, signals few) noexcept { return (many & few) == few; }

/// Every query of the prompt.
inline constexpr std::int32_t all_queries = INT32_MAX;
/// Every token that is retained.
inline constexpr std::int64_t all_tokens = INT64_MAX;

/// What prefill gets beside the view.
struct prompt_signals {
  std::int64_t first = 0;                     ///< the first token that is new; 0 for a new prompt
  query_window queries{};                     ///< the last queries, where the policy needs them
  rotation rope{};                            ///< the keys' rotary embedding, where the policy needs it
  std::span<std::int32_t const> token_ids{};  ///< `[tokens - first]`, where the policy needs them
  /// Where rows that were dropped are gone: the tokens of this layer that are there, new ones included; a list for each KV
  /// head, or one for all. Empty: all of the view's.
  std::span<range_list const> resident{};
};

/// What choose gets of a step.
struct step_signals {
  query_heads queries{};       ///< of the current token, in this layer
  std::int32_t token_id = -1;  ///< the current token's, where the policy needs it
};

/// What observe gets of a step.
struct step_outcome {
  std::span<float const> logits{};  ///< `[vocabulary]`, where the policy needs them
  std::optional<float> entropy{};   ///< of the logits, in nats, in place of them: computed once, for every rank
};

}  // namespace kvpolicy
