// How rows are brought from a tier, and what happened.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvpolicy::tiers {

struct resident_options {
  std::uint64_t request = 0;
  /// Rows of the tier that a KV head may have in memory too, but for a moment where all of a layer are read; 0: twice as many
  /// as its last step read.
  std::int64_t slots = 0;
  /// Wait for what is missing before a step reads. Without, a step reads what its head last had whole, and newer tokens.
  bool wait = true;
  std::chrono::milliseconds deadline{10000};  ///< of one wait
};

/// What happened so far.
struct resident_statistics {
  std::int64_t wanted = 0;  ///< rows of tier tokens that selections named
  std::int64_t hits = 0;    ///< of them, those that were in fast memory already
  std::int64_t bytes_stored = 0;
  std::int64_t bytes_fetched = 0;
  double stall_seconds = 0;  ///< spent waiting

  resident_statistics& operator+=(resident_statistics const& other) noexcept {
    wanted += other.wanted;
    hits += other.hits;
    bytes_stored += other.bytes_stored;
    bytes_fetched += other.bytes_fetched;
    stall_seconds += other.stall_seconds;
    return *this;
  }
  /// What happened since `earlier`.
  resident_statistics operator-(resident_statistics const& earlier) const noexcept {
    return {wanted - earlier.wanted, hits - earlier.hits, bytes_stored - earlier.bytes_stored,
            bytes_fetched - earlier.bytes_fetched, stall_seconds - earlier.stall_seconds};
  }
};

}  // namespace kvpolicy::tiers
