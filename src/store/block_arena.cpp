#include "kvpolicy/store/block_arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

namespace kvpolicy {
namespace {

constexpr std::int64_t most_bytes = std::int64_t{1} << 46;

std::int64_t page_bytes() noexcept {
  static std::int64_t const bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

}  // namespace

block_arena::block_arena(std::int64_t block_bytes, std::int64_t blocks) : block_bytes_(block_bytes), blocks_(blocks) {
  KVPOLICY_EXPECTS(block_bytes > 0 && blocks > 0 && blocks <= INT32_MAX && blocks <= most_bytes / block_bytes,
                   "an arena of " + std::to_string(blocks) + " blocks of " + std::to_string(block_bytes) +
                       " bytes; both must be above 0, and 64 TiB at most");
  void* const made = mmap(nullptr, static_cast<std::size_t>(block_bytes * blocks), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) {
    throw error("no address space for an arena of " + std::to_string(block_bytes * blocks) + " bytes: " + std::strerror(errno));
  }
  base_ = static_cast<std::byte*>(made);
}

block_arena::~block_arena() { munmap(base_, static_cast<std::size_t>(block_bytes_ * blocks_)); }

void block_arena::expect(std::int64_t blocks) const {
  if (blocks <= free()) return;
  throw error("the row store's memory is exhausted: " + std::to_string(blocks) + " more blocks of " +
              std::to_string(block_bytes_) + " bytes are needed, " + std::to_string(free()) + " of " + std::to_string(blocks_) +
              " are free; raise its limit, or end a sequence");
}

std::int32_t block_arena::take() {
  expect(1);
  if (free_.empty()) {
    if (free_.capacity() <= holders_.size()) free_.reserve(2 * holders_.size() + 64);  // so that release() never allocates
    holders_.push_back(0);
    free_.push_back(static_cast<std::int32_t>(holders_.size() - 1));
  }
  std::ranges::pop_heap(free_, std::greater{});
  std::int32_t const block = free_.back();
  free_.pop_back();
  holders_[static_cast<std::size_t>(block)] = 1;
  most_held_ = std::max(most_held_, ++held_);
  return block;
}

void block_arena::release(std::int32_t block) noexcept {
  if (--holders_[static_cast<std::size_t>(block)] > 0) return;
  --held_;
  free_.push_back(block);
  std::ranges::push_heap(free_, std::greater{});
  give_back(block);
}

/// The pages that lie in this block, and those at its edges that only free blocks share.
void block_arena::give_back(std::int32_t block) noexcept {
  std::int64_t const page = page_bytes();
  auto const unused = [&](std::int64_t first_byte) {
    std::int64_t const last = std::min(first_byte + page, block_bytes_ * blocks_) - 1;
    for (std::int64_t b = first_byte / block_bytes_; b <= last / block_bytes_; ++b) {
      if (!is_free(b)) return false;
    }
    return true;
  };
  std::int64_t first = block * block_bytes_ / page * page;
  std::int64_t last = ((block + 1) * block_bytes_ + page - 1) / page * page;
  if (!unused(first)) first += page;
  if (last - page >= first && !unused(last - page)) last -= page;
  if (first < last) madvise(base_ + first, static_cast<std::size_t>(last - first), MADV_DONTNEED);
}

}  // namespace kvpolicy
