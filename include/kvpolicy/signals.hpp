// What a policy may ask an engine for.
#pragma once

namespace kvpolicy {

/// A set of signals. An adapter provides some; a policy needs some.
enum class signals : unsigned {
  none = 0,
  keys = 1u << 0,            ///< key rows, after rotation
  values = 1u << 1,          ///< value rows
  queries = 1u << 2,         ///< the current token's query heads, at choose
  window_queries = 1u << 3,  ///< the prompt's last queries, at prefill
  rotation = 1u << 4,        ///< the keys' rotary embedding, at prefill
  logits = 1u << 5,          ///< next-token logits, at observe
  token_ids = 1u << 6,       ///< vocabulary ids: of the prompt at prefill, of the current token at choose
};

constexpr signals operator|(signals a, signals b) noexcept {
  return static_cast<signals>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr signals operator&(signals a, signals b) noexcept {
  return static_cast<signals>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
/// Whether every signal of `few` is in `many`.
constexpr bool contains(signals many, signals few) noexcept { return (many & few) == few; }

}  // namespace kvpolicy
