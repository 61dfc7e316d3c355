// Memory for rows in blocks of equal size, with a limit. The row stores of any number of sequences share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvpolicy/error.hpp"

namespace kvpolicy {

/// One piece of address space, cut into blocks that may have several holders each.
/// Blocks that were never taken cost nothing, and released memory goes back to the system in pages. Not thread-safe. Compiled
/// (link kvpolicy::store).
class block_arena {
 public:
  /// Reserves the address space.
  /// @param block_bytes  bytes of a block
  /// @param blocks  the most blocks
  /// @throws invalid_value for invalid sizes
  /// @throws error if there is no such address space
  block_arena(std::int64_t block_bytes, std::int64_t blocks);
  block_arena(block_arena const&) = delete;
  block_arena& operator=(block_arena const&) = delete;
  ~block_arena();

  std::byte* base() const noexcept { return base_; }
  std::int64_t block_bytes() const noexcept { return block_bytes_; }
  std::int64_t blocks() const noexcept { return blocks_; }
  /// Returns how many blocks are taken: their holders have not all released them.
  std::int64_t held() const noexcept { return held_; }
  std::int64_t free() const noexcept { return blocks_ - held_; }
  /// Returns the most blocks that were ever taken at once.
  std::int64_t most_held() const noexcept { return most_held_; }

  /// Checks that blocks are free. Takes none.
  /// @param blocks  how many
  /// @throws error with the limit, if fewer are free
  void expect(std::int64_t blocks) const;
  /// Takes the lowest free block, for one holder. Its content is undefined.
  /// @return the block's index
  /// @throws error if no block is free
  std::int32_t take();
  /// Adds a holder to a block.
  /// @param block  an index from take()
  void hold(std::int32_t block) noexcept { ++holders_[static_cast<std::size_t>(block)]; }
  /// Removes a holder; the last one frees the block.
  /// @param block  an index from take()
  void release(std::int32_t block) noexcept;
  /// Returns whether a block has several holders.
  /// @param block  an index from take()
  bool is_shared(std::int32_t block) const noexcept { return holders_[static_cast<std::size_t>(block)] > 1; }

 private:
  void give_back(std::int32_t block) noexcept;
  bool is_free(std::int64_t block) const noexcept {
    return block >= std::ssize(holders_) || holders_[static_cast<std::size_t>(block)] == 0;
  }

  std::int64_t block_bytes_;
  std::int64_t blocks_;
  std::byte* base_ = nullptr;
  std::int64_t held_ = 0;
  std::int64_t most_held_ = 0;
  std::vector<std::int32_t> holders_;  ///< of each block that was ever taken
  std::vector<std::int32_t> free_;     ///< of these blocks, a heap with the lowest index on top
};

}  // namespace kvpolicy
