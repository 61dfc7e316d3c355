#include "cuda/ptx/memory.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace ptx {

namespace {

void* mapped(void* at, std::size_t bytes, int protection, int flags, int file = -1) {
  void* const made = mmap(at, bytes, protection, flags | MAP_NORESERVE, file, 0);
  if (made == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mapping the device's memory");
  return made;
}

struct sigaction before_trap;

/// The access is done again, and whoever listened before hears of it.
void host_trapped(int, siginfo_t* what, void*) {
  if (memory::device().is_device_only(what->si_addr))
    std::fprintf(stderr, "ptx: the host used device memory at %p\n", what->si_addr);
  sigaction(SIGSEGV, &before_trap, nullptr);
}

/// A test's framework sets its own for each test.
void set_trap() {
  struct sigaction trap {};
  trap.sa_sigaction = host_trapped;
  trap.sa_flags = SA_SIGINFO;
  struct sigaction before {};
  sigaction(SIGSEGV, &trap, &before);
  if (before.sa_sigaction != host_trapped) before_trap = before;
}

}  // namespace

memory& memory::device() {
  static memory& one = *new memory;  // programs free what they hold in destructors of statics
  return one;
}

memory::memory() {
  file_ = memfd_create("device memory", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, arena_bytes) != 0)
    throw std::system_error(errno, std::generic_category(), "making the device's memory");
  seen_by_host_ = static_cast<std::byte*>(mapped(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_));
  seen_by_device_ = static_cast<std::byte*>(mapped(nullptr, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS));
  stamps_ = static_cast<std::uint32_t*>(
      mapped(nullptr, arena_bytes / 32 * 2 * sizeof(std::uint32_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS));
  if (std::getenv("KVPOLICY_PTX_INITCHECK") != nullptr)
    written_ = static_cast<std::uint8_t*>(mapped(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS));
}

void* memory::allocate(std::size_t bytes, owner of) {
  if (of == owner::device) set_trap();
  // An unused page lies between two allocations.
  std::size_t const pages = (bytes + page - 1) / page + 1;
  if (pages > (arena_bytes - used_) / page) return nullptr;
  std::byte* const at = (of == owner::device ? seen_by_device_ : seen_by_host_) + used_;
  range made{reinterpret_cast<std::uint64_t>(at), 0, of == owner::device ? seen_by_host_ - seen_by_device_ : 0, of};
  made.end = made.begin + bytes;
  ranges_[made.begin + (bytes == 0 ? 1 : bytes)] = made;
  used_ += pages * page;
  return at;
}

bool memory::release(void* at) {
  auto const address = reinterpret_cast<std::uint64_t>(at);
  auto const found = ranges_.upper_bound(address);
  if (found == ranges_.end() || found->second.begin != address || found->second.of == owner::host) return false;
  range const gone = found->second;
  std::size_t const offset =
      gone.begin + static_cast<std::uint64_t>(gone.to_host) - reinterpret_cast<std::uint64_t>(seen_by_host_);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>((gone.end - gone.begin + page - 1) / page * page));
  ranges_.erase(found);
  return true;
}

bool memory::add_host(void* at, std::size_t bytes) {
  auto const begin = reinterpret_cast<std::uint64_t>(at);
  auto const next = ranges_.upper_bound(begin);
  if (bytes == 0 || (next != ranges_.end() && next->second.begin < begin + bytes)) return false;
  ranges_[begin + bytes] = {begin, begin + bytes, 0, owner::host};
  return true;
}

bool memory::remove_host(void* at) {
  auto const found = ranges_.upper_bound(reinterpret_cast<std::uint64_t>(at));
  if (found == ranges_.end() || found->second.begin != reinterpret_cast<std::uint64_t>(at)) return false;
  ranges_.erase(found);
  return true;
}

range memory::find(std::uint64_t address) const {
  auto const found = ranges_.upper_bound(address);
  return found != ranges_.end() && found->second.begin <= address ? found->second : range{};
}

void* memory::host_address(void const* address, std::size_t bytes) const {
  auto const at = reinterpret_cast<std::uint64_t>(address);
  range const in = find(at);
  if (!is_device_only(address)) return const_cast<void*>(address);
  return in.holds(at, at + bytes) ? reinterpret_cast<void*>(at + static_cast<std::uint64_t>(in.to_host)) : nullptr;
}

void memory::note_write(range const& in, std::uint64_t address, std::size_t bytes) {
  if (written_ != nullptr && in.of == owner::device)
    std::memset(written_ + (address - reinterpret_cast<std::uint64_t>(seen_by_device_)), 1, bytes);
}
bool memory::is_written(range const& in, std::uint64_t address, std::size_t bytes) const {
  if (written_ == nullptr || in.of != owner::device) return true;
  return std::memchr(written_ + (address - reinterpret_cast<std::uint64_t>(seen_by_device_)), 0, bytes) == nullptr;
}

bool memory::is_device_only(void const* address) const {
  return address >= seen_by_device_ && address < seen_by_device_ + arena_bytes;
}

std::uint32_t* memory::sector_stamps(std::uint64_t address) const {
  for (std::byte const* const arena : {seen_by_device_, seen_by_host_}) {
    std::uint64_t const offset = address - reinterpret_cast<std::uint64_t>(arena);
    if (offset < arena_bytes) return stamps_ + offset / 32 * 2;
  }
  return nullptr;
}

}  // namespace ptx
