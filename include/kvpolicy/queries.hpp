// The queries of a token, or of a prompt's last ones, and the rotary embedding of a model's keys.
#pragma once

#include <limits>
#include <string>

#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// A scale that the caller forgot: NaN, which every verb refuses.
inline constexpr float unset_scale = std::numeric_limits<float>::quiet_NaN();

/// The query heads of one token, `[q_heads, head_dim]` floats. Head h reads KV head h / (q_heads / kv_heads).
struct query_heads {
  float const* data = nullptr;
  std::int64_t heads = 0;
  std::int64_t head_stride = 0;  ///< floats
  float scale = unset_scale;     ///< factor of q.k; 1 / sqrt(head_dim) in most models

  /// Returns one query.
  /// @param h  the query head
  /// @return `[head_dim]` floats
  constexpr float const* head(std::int64_t h) const noexcept { return data + h * head_stride; }
  /// Selects the query heads that read some KV heads.
  /// @param kv  the KV heads
  /// @param group  query heads of each KV head
  /// @return these query heads alone
  constexpr query_heads of(head_range kv, std::int64_t group) const noexcept {
    return {data + kv.first * group * head_stride, kv.count * group, head_stride, scale};
  }
};

/// Checks a scale.
/// @param scale  the factor of q.k
/// @param of  whose it is, for the message
/// @throws invalid_value if it was not set, is not finite or not above 0
inline void check_scale(float scale, char const* of) {
  KVPOLICY_EXPECTS(scale > 0 && scale <= std::numeric_limits<float>::max(),
                   std::string(of) + ".scale is " + (scale != scale ? "not set" : std::to_string(scale)) +
                       "; set it to the factor of q.k, in most models 1 / sqrt(head_dim)");
}

/// The query heads of the last `tokens` tokens of a prompt or a step, `[tokens, q_heads, head_dim]` floats, oldest first.
struct query_window {
  float const* data = nullptr;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t token_stride = 0;  ///< floats
  std::int64_t head_stride = 0;   ///< floats
  float scale = unset_scale;      ///< factor of q.k; 1 / sqrt(head_dim) in most models

  /// Returns one query.
  /// @param t  the token, 0 for the oldest
  /// @param h  the query head
  /// @return `[head_dim]` floats
  constexpr float const* at(std::int64_t t, std::int64_t h) const noexcept { return data + t * token_stride + h * head_stride; }
  /// Returns the query heads of one token.
  /// @param t  the token, 0 for the oldest
  /// @return its queries
  constexpr query_heads token(std::int64_t t) const noexcept { return {at(t, 0), heads, head_stride, scale}; }
  /// Returns the query heads of a single token as a window.
  /// @param queries  the token's
  /// @return the window
  static constexpr query_window of_one(query_heads const& queries) noexcept {
    return {queries.data, 1, queries.heads, queries.heads * queries.head_stride, queries.head_stride, queries.scale};
  }
  /// Selects the query heads that read some KV heads.
  /// @param kv  the KV heads
  /// @param group  query heads of each KV head
  /// @return these query heads alone
  constexpr query_window of(head_range kv, std::int64_t group) const noexcept {
    return {data + kv.first * group * head_stride, tokens, kv.count * group, token_stride, head_stride, scale};
  }
  /// Selects the last tokens.
  /// @param count  their number, at most `tokens`
  /// @return the queries of these tokens alone
  constexpr query_window last(std::int64_t count) const noexcept {
    return {data + (tokens - count) * token_stride, count, heads, token_stride, head_stride, scale};
  }
};

/// The rotary embedding of a model's keys. It rotates channel pair i by position * inverse_frequency[i] radians.
struct rotation {
  /// The channels of pair i: (i, i + pairs) for halves, (2i, 2i + 1) for neighbours.
  enum class pairing : std::uint8_t { halves, neighbours };

  float const* inverse_frequency = nullptr;  ///< `[pairs]`
  std::int64_t pairs = 0;                    ///< channels from 2 * pairs on are not rotated
  pairing how = pairing::halves;
};

}  // namespace kvpolicy
