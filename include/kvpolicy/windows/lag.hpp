// Window: the first tokens, and everything from the last whole partition on.
#pragma once

#include <algorithm>
#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::windows {

/// Protects the first tokens, and every token from the last whole partition on (LagKV, Liang et al. 2025, arXiv 2504.04704).
/// Partitions begin after the first tokens.
struct lag {
  std::int32_t sinks = 4;   ///< first tokens
  std::int32_t size = 128;  ///< tokens of a partition

  void check(std::int64_t) const {
    KVPOLICY_EXPECTS(sinks >= 0 && size >= 1, "a window of " + std::to_string(sinks) + " sinks and partitions of " +
                                                  std::to_string(size) + " tokens; sinks must be at least 0, size at least 1");
  }

  /// A sequence with fewer than two whole partitions is protected whole.
  constexpr protected_tokens at(std::int64_t count, std::int64_t = 0, std::int64_t = 0) const noexcept {
    std::int64_t const sink_end = std::min<std::int64_t>(sinks, count);
    std::int64_t const whole = (count - sink_end) / size;
    std::int64_t const begin = whole < 2 ? sink_end : sink_end + (whole - 1) * size;
    return {.sink_end = sink_end,
            .recent_begin = begin,
            .open_begin = count,
            .counted = sink_end + count - begin,
            .recent = count - begin};
  }
};

static_assert(window_part<lag>);

}  // namespace kvpolicy::windows
