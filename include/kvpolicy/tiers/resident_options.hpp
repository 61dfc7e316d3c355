// How rows come from a tier, and what happened so far.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvpolicy::tiers {

/// How resident_rows uses its tier.
struct resident_options {
  std::uint64_t request = 0;  ///< block_key::request of the sequence's blocks
  /// The most rows of the tier that a KV head has in memory too; 0: twice as many as its last step read, at least 64.
  /// Exceeded for a moment while all rows of a layer are read.
  std::int64_t slots = 0;
  /// Whether a step waits for missing rows. If not, it reads the last selection that its head had whole, and newer tokens.
  bool wait = true;
  std::chrono::milliseconds deadline{10000};  ///< of one wait
};

/// What happened so far.
struct resident_statistics {
  std::int64_t wanted = 0;  ///< rows that selections named among the tier's tokens
  std::int64_t hits = 0;    ///< of these, the rows that were in memory already
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
  /// Returns what happened since `earlier`.
  resident_statistics operator-(resident_statistics const& earlier) const noexcept {
    return {wanted - earlier.wanted, hits - earlier.hits, bytes_stored - earlier.bytes_stored,
            bytes_fetched - earlier.bytes_fetched, stall_seconds - earlier.stall_seconds};
  }
};

}  // namespace kvpolicy::tiers
