// Trigger: the choice is made when the prompt ends, and stands.
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::trigger {

struct prefill {
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

}  // namespace kvpolicy::trigger
