// Trigger every_step: the choice is made again at every step.
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::triggers {

/// Makes the choice again at every step.
struct every_step {
  static constexpr signals needs = signals::none;
  static constexpr bool while_decoding = true;
  static constexpr signals wants() noexcept { return signals::none; }
  struct state {
    void restart() noexcept {}
  };
  static constexpr state start(cache_shape const&) noexcept { return {}; }
  static constexpr bool due(state const&, layer_id, head_id, std::int64_t) noexcept { return true; }
};

static_assert(trigger_part<every_step>);

}  // namespace kvpolicy::triggers
