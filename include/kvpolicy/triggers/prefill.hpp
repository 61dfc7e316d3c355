// Trigger prefill: the choice is made once, when the prompt ends or a few tokens later.
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::triggers {

/// Makes the choice once, when the prompt ends or `after` tokens later.
/// The prompt's last tokens seldom show where the answer stands: a chat ends in its template's tokens, an instruction may come
/// behind the question, and the question may stand before the text. The answer's first tokens show it, so a retain may wait for
/// them.
struct prefill {
  /// Tokens of the answer that the retain waits for; a retrieve's trigger has 0. Until then everything is kept and read. Then
  /// the scorer observes the queries of these tokens too, as the last ones.
  std::int32_t after = 0;
  /// A retain drops nothing: what it does not choose is hidden, and can be chosen when the next prompt ends (RocketKV's turns).
  bool hide = false;

  static constexpr signals needs = signals::none;
  static constexpr bool while_decoding = false;
  static constexpr signals wants() noexcept { return signals::none; }
  struct state {
    void restart() noexcept {}
  };
  static constexpr state start(cache_shape const&) noexcept { return {}; }
  static constexpr bool due(state const&, layer_id, head_id, std::int64_t) noexcept { return false; }
};

static_assert(trigger_part<prefill>);

}  // namespace kvpolicy::triggers
