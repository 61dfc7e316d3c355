// Tier: an LMDB file. Blocks carry a checksum; what was acknowledged survives the process. Compiled (link kvpolicy::disk).
#pragma once

#include <memory>
#include <string>

#include "kvpolicy/tier/tier.hpp"

namespace kvpolicy::tier {

struct disk_options {
  /// Wait for the medium at every put. Without, what was acknowledged survives the death of the process, not of the machine.
  bool sync = true;
};

/// A put is one transaction. A get is read and verified (identity, length, XXH3) into memory of its own by a worker thread, and
/// copied to its destinations only when every block is right. A file that another version or block size wrote is refused.
/// A medium that fails refuses a put; where LMDB then gives the file up, puts are refused, gets miss, and drop() and
/// occupied() throw error until a new tier opens it.
class disk {
 public:
  /// Opens or makes the file. Throws error with LMDB's reason, invalid_value for a file of another block size.
  disk(std::string const& path, std::int64_t block_bytes, std::int64_t capacity, disk_options options = {});
  disk(disk const&) = delete;
  disk& operator=(disk const&) = delete;
  ~disk();

  std::int64_t block_bytes() const noexcept;
  std::int64_t capacity() const noexcept;
  bool put(std::span<block_write const> writes);
  ticket get(std::span<block_read const> reads);
  status poll(ticket id);
  status wait(ticket id, clock::time_point deadline);
  /// One transaction.
  void drop(std::span<block_key const> keys);
  /// Blocks that are stored are resident, or in flight while a get that names them has not ended.
  usage occupied();

 private:
  class store;
  std::unique_ptr<store> store_;
};

static_assert(tier_like<disk>);

}  // namespace kvpolicy::tier
