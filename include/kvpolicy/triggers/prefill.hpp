// Trigger: the choice is made when the prompt ends, or a few tokens later, and stands.
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::triggers {

/// A question's own tokens seldom say where its answer stands: a chat ends in its template's tokens, an instruction may come
/// behind the question, and the question may stand before the text. The answer's first tokens do, so a retain may wait for
/// them.
struct prefill {
  /// Tokens of the answer that the retain waits for. Until then all of the prompt is kept and read; then their queries are the
  /// last of those that the scorer observes.
  std::int32_t after = 0;

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
