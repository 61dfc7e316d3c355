// Tier: a file. Blocks carry a checksum; what was acknowledged survives the process. Compiled (link kvpolicy::disk).
#pragma once

#include <memory>
#include <string>

#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy::tiers {

struct disk_options {
  /// Wait for the medium at every put. Without, what was acknowledged survives the death of the process, not of the machine.
  bool sync = true;
  /// What the file holds from before is dropped, as of no use to a process that knows no keys of it.
  bool fresh = false;
};

/// A put counts as a whole or not at all, whenever the process ends. A get is read and verified (identity, XXH3) into memory of
/// its own by a worker thread, and copied to its destinations only when every block is right. The file is never mapped: what is
/// damaged or cut, while it is open too, is an error with its name or a miss. A medium that fails refuses a put, and drop()
/// throws error.
class disk {
 public:
  /// Opens or makes the file. Throws error with its name and the reason (another process has it open, it is damaged, it is no
  /// tier's), invalid_value for a file of another block size or of more blocks.
  disk(std::string const& path, std::int64_t block_bytes, std::int64_t capacity, disk_options options = {});
  disk(disk const&) = delete;
  disk& operator=(disk const&) = delete;
  ~disk();

  std::int64_t block_bytes() const noexcept;
  std::int64_t capacity() const noexcept;
  /// With the file's name.
  std::string describe() const;
  bool put(std::span<block_write const> writes);
  ticket get(std::span<block_read const> reads);
  status poll(ticket id);
  status wait(ticket id, clock::time_point deadline);
  /// Throws error where the medium fails: some of them may be there when the file is opened again.
  void drop(std::span<block_key const> keys);
  /// Blocks that are stored are resident, or in flight while a get that names them has not ended.
  usage occupied();

 private:
  class store;
  std::unique_ptr<store> store_;
};

static_assert(tier_like<disk>);

}  // namespace kvpolicy::tiers
