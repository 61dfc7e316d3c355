// Signals: what a policy may need of an engine, and the structs in which the verbs receive it.
#pragma once

#include <optional>
#include <span>

#include "kvpolicy/queries.hpp"
#include "kvpolicy/selection.hpp"

namespace kvpolicy {

/// A set of signals. An adapter provides some, a policy needs some.
enum class signals : unsigned {
  none = 0,
  keys = 1u << 0,                 ///< key rows, after rotation
  values = 1u << 1,               ///< value rows
  queries = 1u << 2,              ///< the current token's query heads, at choose
  observation_queries = 1u << 3,  ///< the prompt's last queries, at prefill
  rotation = 1u << 4,             ///< the keys' rotary embedding, at prefill
  logits = 1u << 5,               ///< next-token logits, at observe
  token_ids = 1u << 6,            ///< vocabulary ids: the prompt's at prefill, the current token's at choose
  repetition = 1u << 7,           ///< the queries of a repetition of earlier tokens, at prefill
};

/// Every signal.
inline constexpr signals all_signals{(1u << 8) - 1};

/// Unites two sets.
/// @param a  signals
/// @param b  signals
/// @return the signals that are in `a` or `b`
constexpr signals operator|(signals a, signals b) noexcept {
  return static_cast<signals>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
/// Intersects two sets.
/// @param a  signals
/// @param b  signals
/// @return the signals that are in both
constexpr signals operator&(signals a, signals b) noexcept {
  return static_cast<signals>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
/// Says whether one set contains another.
/// @param many  signals
/// @param few  signals
/// @return whether every signal of `few` is in `many`
constexpr bool contains(signals many, signals few) noexcept { return (many & few) == few; }

/// As a number of queries: every query of the prompt.
inline constexpr std::int32_t all_queries = INT32_MAX;
/// As a number of tokens: every retained token.
inline constexpr std::int64_t all_tokens = INT64_MAX;

/// Consecutive tokens of a sequence.
struct token_span {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  constexpr bool empty() const noexcept { return begin == end; }
};

/// The signals of a prompt, for prefill. Queries are what the engine's attention multiplies with the cached keys: after the
/// rotary embedding, if keys are cached after theirs.
struct prompt_signals {
  std::int64_t first = 0;  ///< the first new token; 0 for a new prompt
  /// The last queries, if the policy needs them: as many as it looks at, of earlier pieces of the prompt too.
  query_window queries{};
  rotation rope{};                            ///< the keys' rotary embedding, if the policy needs it
  std::span<std::int32_t const> token_ids{};  ///< `[tokens - first]`, if the policy needs them
  /// The tokens of this layer whose rows still exist, new tokens included: a list for each KV head, or one for all heads.
  /// Empty: every token of the view.
  std::span<range_list const> resident{};
  /// For a policy that needs a repetition: the earlier tokens that the new tokens repeat; empty: the new tokens repeat none.
  /// The new tokens are an instruction and a copy of these tokens, and `queries` has the queries of all of them. Each piece's
  /// `repeats` begins where the previous piece's ended. With the piece whose `repeats.end` is `first` the policy chooses. After
  /// each piece the engine removes the new tokens, so the next verb begins at `first` again.
  token_span repeats{};
  /// The first token whose query the engine still has: behind tokens that another request computed, or that gpu::decoder
  /// stepped over. `queries` may then lack the queries of tokens before it.
  std::int64_t observed_from = 0;
};

/// The signals of a step, for choose. Queries are as in prompt_signals.
struct step_signals {
  query_heads queries{};       ///< the current token's, in this layer, if the policy needs them
  std::int32_t token_id = -1;  ///< the current token's, if the policy needs it
};

/// The signals of a step of several tokens, for choose: the token that was sampled, and drafts of those behind it.
struct step_window {
  std::int64_t tokens = 1;                    ///< the view's last ones; at most most_step_tokens
  query_window queries{};                     ///< theirs, in this layer, if the policy needs them
  std::span<std::int32_t const> token_ids{};  ///< `[tokens]`, if the policy needs them

  /// Returns the signals of the first token.
  constexpr step_signals first() const noexcept {
    return {queries.data == nullptr ? query_heads{} : queries.token(0), token_ids.empty() ? -1 : token_ids.front()};
  }
};

/// The outcome of a step, for observe.
struct step_outcome {
  std::span<float const> logits{};  ///< `[vocabulary]`, if the policy needs them
  std::optional<float> entropy{};   ///< entropy of the logits in nats, instead of them: compute it once, for every rank
};

}  // namespace kvpolicy
