// Primitive window_attention: how much the last tokens of a prompt attended to the tokens before them.
#pragma once

#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// How neighbouring tokens' attention is merged: stride 1, centred, `width` odd. Average counts the zeros that pad both
/// ends; maximum pads with nothing.
struct smoothing {
  enum class kind : std::uint8_t { none, average, maximum };
  kind how = kind::none;
  std::int64_t width = 1;  ///< tokens
};

/// scores(h, t) for the tokens t before the window, `[kv_heads, n - w]` with n = keys.tokens and w = queries.tokens:
/// attention of the w last queries, each softmax over all keys that it may see (causal, window included), then mean over
/// the window, then smoothed, then mean over KV head h's query heads (SnapKV, sec. 4; reading of kvpress).
/// Needs 1 <= w <= n. O(w n q_heads head_dim); exponentials in fp32, sums of at least fp32.
template <class Memory, class Exec>
void window_attention(query_window const& queries, basic_rows<Memory> const& keys, smoothing smooth, table<float> scores,
                      Exec& exec) {
  exec.window_attention(queries, keys, smooth, scores);
}

}  // namespace kvpolicy
