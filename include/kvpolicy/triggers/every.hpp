// Trigger every: the choice is made again after a fixed number of steps.
#pragma once

#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::triggers {

/// Makes the choice again after a fixed number of steps (CHESS's baseline: every 6 pages).
struct every {
  static constexpr signals needs = signals::none;
  static constexpr bool while_decoding = true;

  std::int32_t steps = 1;  ///< steps from one choice to the next; 0: never

  static constexpr signals wants() noexcept { return signals::none; }
  struct state {
    void restart() noexcept {}
  };
  constexpr state start(cache_shape const&) const {
    KVPOLICY_EXPECTS(steps >= 0, "a choice every " + std::to_string(steps) + " steps; 0 is never, and it can't be negative");
    return {};
  }
  constexpr bool due(state const&, layer_id, head_id, std::int64_t since) const noexcept { return steps > 0 && since >= steps; }
};

static_assert(trigger_part<every>);

}  // namespace kvpolicy::triggers
