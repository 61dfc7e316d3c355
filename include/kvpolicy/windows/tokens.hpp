// Window: the first tokens and the most recent ones.
#pragma once

#include <algorithm>
#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::windows {

/// Protects the first tokens and the most recent ones.
struct tokens {
  std::int32_t sinks = 0;   ///< first tokens
  std::int32_t recent = 1;  ///< last tokens; a retrieve needs at least 1, the current one
  double share = 0;         ///< at least this share of the budget goes to the last tokens (H2O: .5)
  bool generated = false;   ///< while decoding, protect all tokens after the prompt instead; they do not use the budget
  bool prompt = false;      ///< of a retain: protect the prompt too, and all before it; that does not use the budget

  void check(std::int64_t) const {
    KVPOLICY_EXPECTS(sinks >= 0 && recent >= 0, "a window of " + std::to_string(sinks) + " sinks and " +
                                                    std::to_string(recent) + " recent tokens; neither can be negative");
    KVPOLICY_EXPECTS(share >= 0 && share <= 1, "a window of " + std::to_string(share) + " of the budget; it must be in 0..1");
  }

  constexpr protected_tokens at(std::int64_t count, std::int64_t prompts = INT64_MAX, std::int64_t budget = 0) const noexcept {
    std::int64_t const wanted = std::max<std::int64_t>(recent, static_cast<std::int64_t>(share * static_cast<double>(budget)));
    bool const behind = generated && count > prompts;  // the choice at the prompt's end covers the prompt's own recent tokens
    std::int64_t const beside = prompt ? std::min(count, prompts) : 0;
    std::int64_t const begin = behind ? prompts : std::max(beside, count - wanted);
    std::int64_t const sink_end = std::max<std::int64_t>(beside, std::min<std::int64_t>(sinks, begin));
    return {.sink_end = sink_end,
            .recent_begin = begin,
            .open_begin = count,
            .counted = sink_end - beside + (behind ? 0 : count - begin),
            .recent = count - begin,
            .beside = beside};
  }
};

static_assert(window_part<tokens>);

}  // namespace kvpolicy::windows
