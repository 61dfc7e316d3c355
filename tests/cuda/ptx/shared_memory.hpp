// A block's shared memory, which sees a read of what nobody wrote and two threads that use a word with nothing between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ptx {

class shared_memory {
 public:
  /// Who uses it, and how often the block and the thread's warp have met at a barrier so far.
  struct user {
    std::uint16_t thread;
    std::uint32_t block_time;
    std::uint32_t warp_time;
  };
  enum class use : std::uint8_t { read, write, add };

  /// Makes it unwritten, for the next block.
  void begin(std::int64_t bytes);
  std::int64_t bytes() const { return bytes_; }
  std::byte* data() { return data_.data(); }

  /// @param address bytes from the beginning; a multiple of 4
  /// @param value what is written
  /// @throws fault where a word is read that was never written, or that another thread uses at the same time
  void use_word(std::uint32_t address, use how, user const& by, std::uint32_t value = 0);

 private:
  static constexpr std::uint16_t nobody = 0xffff;
  static constexpr std::uint16_t several = 0xfffe;  ///< threads, or warps
  struct mark {
    std::uint32_t block_time = 0;
    std::uint32_t warp_time = 0;
    std::uint16_t thread = nobody;
    std::uint16_t warp = nobody;

    /// Another thread made it, and no barrier lies between.
    bool hurts(user const& by) const {
      if (block_time != by.block_time || thread == nobody || thread == by.thread) return false;
      return warp != by.thread / 32 || warp_time == by.warp_time;
    }
  };
  struct word {
    mark written, read;
    bool added = false;
  };

  std::vector<std::byte> data_;
  std::vector<word> words_;
  std::int64_t bytes_ = 0;
};

}  // namespace ptx
