// Tier: a file. Blocks carry a checksum, and acknowledged blocks survive the process. Compiled (link kvpolicy::disk).
#pragma once

#include <memory>
#include <string>

#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy::tiers {

/// How a disk tier treats its file.
struct disk_options {
  /// Whether each put waits for the medium. If not, acknowledged blocks survive the death of the process, but not of the
  /// machine.
  bool sync = true;
  /// Whether to drop what the file holds, for a process that knows none of its keys.
  bool fresh = false;
};

/// Keeps blocks in a file that is never mapped into memory. Models tier_like.
/// A put counts as a whole or not at all, whenever the process ends. For a get, a worker thread reads the blocks into memory of
/// its own and verifies them (identity, XXH3); it copies them to their destinations only if every block is right. Damage to the
/// file, even while it is open, is an error with the file's name or a miss. If the medium fails, put() refuses and drop()
/// throws.
class disk {
 public:
  /// Opens or makes the file.
  /// @param path  the file; one process at a time has it open
  /// @param block_bytes  bytes of a block
  /// @param capacity  the most blocks
  /// @param options  how to treat the file
  /// @throws error with the file's name and the reason: another process has it open, it is damaged, it is not a tier's, it
  ///        can't be written
  /// @throws invalid_value for invalid sizes, or a file with another block size or more blocks
  disk(std::string const& path, std::int64_t block_bytes, std::int64_t capacity, disk_options options = {});
  disk(disk const&) = delete;
  disk& operator=(disk const&) = delete;
  ~disk();

  std::int64_t block_bytes() const noexcept;
  std::int64_t capacity() const noexcept;
  /// Returns a text with the file's name.
  std::string describe() const;
  bool put(std::span<block_write const> writes);
  ticket get(std::span<block_read const> reads);
  status poll(ticket id);
  status wait(ticket id, clock::time_point deadline);
  /// Drops blocks.
  /// @param keys  the blocks; absent ones are ignored
  /// @throws error if the medium fails: the file may then hold some of them when it is opened again
  void drop(std::span<block_key const> keys);
  /// Counts blocks: in flight while a get that names them has not ended, else resident.
  usage occupied();

 private:
  class store;
  std::unique_ptr<store> store_;
};

static_assert(tier_like<disk>);

}  // namespace kvpolicy::tiers
