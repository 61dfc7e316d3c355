#include "cuda/ptx/shared_memory.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "cuda/ptx/instruction.hpp"

namespace ptx {

void shared_memory::begin(std::int64_t bytes) {
  bytes_ = bytes;
  auto const words = static_cast<std::size_t>((bytes + 3) / 4);
  if (data_.size() < words * 4) data_.resize(words * 4), words_.resize(words);
  std::fill_n(words_.begin(), words, word{});
}

void shared_memory::use_word(std::uint32_t address, use how, user const& by, std::uint32_t value) {
  word& at = words_[address / 4];
  mark const now{by.block_time, by.warp_time, by.thread, static_cast<std::uint16_t>(by.thread / 32)};
  auto const wrong = [&](char const* what) {
    throw fault(std::string(what) + ": thread " + std::to_string(by.thread) + ", byte " + std::to_string(address));
  };
  if (how != use::write && at.written.thread == nobody) wrong("a read of shared memory that no thread of the block wrote");
  if (at.written.hurts(by) && !(how == use::add && at.added)) {
    if (how != use::write) wrong("a race in shared memory, a read of what another thread wrote with no barrier between");
    std::uint32_t had = 0;
    std::memcpy(&had, data_.data() + address, sizeof had);
    if (had != value) wrong("a race in shared memory, two threads that write with no barrier between");
  }
  if (how == use::read) {
    // A mark names one thread. Where a second one reads, what it says is that a write by either of them hurts.
    if (at.read.block_time != now.block_time || at.read.thread == nobody) at.read = now;
    else if (at.read.warp != now.warp) at.read.thread = several, at.read.warp = several;
    else if (at.read.warp_time != now.warp_time) at.read = now;
    else if (at.read.thread != now.thread) at.read.thread = several;
    return;
  }
  if (at.read.hurts(by)) wrong("a race in shared memory, a write of what another thread reads with no barrier between");
  at.written = now;
  at.added = how == use::add;
}

}  // namespace ptx
