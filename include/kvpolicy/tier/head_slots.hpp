// The slots of fast memory that one KV head has: which token is in which, and which was read least recently.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kvpolicy/error.hpp"

namespace kvpolicy::tier {

class head_slots {
 public:
  static constexpr std::int32_t nowhere = -1;

  explicit head_slots(std::int64_t slots) : tokens_(static_cast<std::size_t>(slots), nowhere), used_(tokens_.size()) {}

  void clear() noexcept {
    std::ranges::fill(tokens_, nowhere);
    next_ = 0;
  }

  /// What take() did.
  struct taken {
    std::int32_t slot = nowhere;
    std::int32_t evicted = nowhere;  ///< token that was there
  };

  /// An empty slot for a token, or that of the least recently read one which `now` does not read. O(slots) where all are full.
  /// Throws invalid_value where every slot is needed.
  taken take(std::int32_t token, std::int64_t now) {
    auto const count = std::ssize(tokens_);
    std::int64_t best = nowhere;
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t const s = (next_ + i) % count;
      if (tokens_[at(s)] == nowhere) {
        best = s;
        break;
      }
      if (used_[at(s)] < now && (best == nowhere || used_[at(s)] < used_[at(best)])) best = s;
    }
    KVPOLICY_EXPECTS(best != nowhere, "a head reads more than the " + std::to_string(count) +
                                          " rows that it may have in fast memory, generated tokens included; raise slots");
    next_ = (best + 1) % count;
    taken const result{static_cast<std::int32_t>(best), tokens_[at(best)]};
    tokens_[at(best)] = token;
    used_[at(best)] = now;
    return result;
  }

  void touch(std::int32_t slot, std::int64_t now) noexcept { used_[at(slot)] = now; }
  /// Not to be taken until touched.
  void hold(std::int32_t slot) noexcept { used_[at(slot)] = INT64_MAX; }
  void empty(std::int32_t slot) noexcept { tokens_[at(slot)] = nowhere; }

 private:
  static std::size_t at(std::int64_t slot) noexcept { return static_cast<std::size_t>(slot); }

  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> used_;  ///< length of the sequence when the slot was last read
  std::int64_t next_ = 0;           ///< first slot to look at
};

}  // namespace kvpolicy::tier
