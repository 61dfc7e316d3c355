// A block's shared memory, which sees a read of what nobody wrote and two threads that use a word with nothing between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
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
  void use_word(std::uint32_t address, use how, user const& by, std::uint32_t value = 0) {
    word& at = words_[address / 4];
    if (how != use::write && at.written.thread == nobody)
      refuse("a read of shared memory that no thread of the block wrote", address, by);
    if (at.written.hurts(by) && !(how == use::add && at.added)) {
      if (how != use::write)
        refuse("a race in shared memory, a read of what another thread wrote with no barrier between", address, by);
      std::uint32_t had = 0;
      std::memcpy(&had, data_.data() + address, sizeof had);
      if (had != value) refuse("a race in shared memory, two threads that write with no barrier between", address, by);
    }
    auto const warp = static_cast<std::uint16_t>(by.thread / 32);
    mark const now{by.block_time, by.warp_time, by.thread, warp};
    if (how == use::read) {
      // A mark names one thread. Where a second one reads, what it says is that a write by either of them hurts.
      if (at.read.block_time != now.block_time || at.read.thread == nobody) at.read = now;
      else if (at.read.warp != warp) at.read.thread = several, at.read.warp = several;
      else if (at.read.warp_time != now.warp_time) at.read = now;
      else if (at.read.thread != now.thread) at.read.thread = several;
      return;
    }
    if (at.read.hurts(by))
      refuse("a race in shared memory, a write of what another thread reads with no barrier between", address, by);
    at.written = now;
    at.added = how == use::add;
  }

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

  [[noreturn]] static void refuse(char const* what, std::uint32_t address, user const& by);

  std::vector<std::byte> data_;
  std::vector<word> words_;
  std::int64_t bytes_ = 0;
};

}  // namespace ptx
