// Memory for rows in blocks of equal size, with a limit: what the row stores of any number of sequences share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvpolicy/error.hpp"

namespace kvpolicy {

/// One piece of address space, cut into blocks; what no block was taken of costs nothing, and what is released goes back to the
/// system by pages. A block may have several holders. Not thread-safe. Compiled (link kvpolicy::store).
class block_arena {
 public:
  /// Throws invalid_value for sizes that can't be, error where there is no such address space.
  block_arena(std::int64_t block_bytes, std::int64_t blocks);
  block_arena(block_arena const&) = delete;
  block_arena& operator=(block_arena const&) = delete;
  ~block_arena();

  std::byte* base() const noexcept { return base_; }
  std::int64_t block_bytes() const noexcept { return block_bytes_; }
  std::int64_t blocks() const noexcept { return blocks_; }
  /// Taken and not released by all of their holders; now, and the most that there ever were.
  std::int64_t held() const noexcept { return held_; }
  std::int64_t free() const noexcept { return blocks_ - held_; }
  std::int64_t most_held() const noexcept { return most_held_; }

  /// Throws error, with the limit, where fewer than `blocks` are free; nothing is taken.
  void expect(std::int64_t blocks) const;
  /// The lowest free block, for one holder; what is in it is not defined. Throws as expect(1).
  std::int32_t take();
  void hold(std::int32_t block) noexcept { ++holders_[static_cast<std::size_t>(block)]; }
  void release(std::int32_t block) noexcept;
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
  std::vector<std::int32_t> free_;     ///< of those, a heap with the lowest on top
};

}  // namespace kvpolicy
