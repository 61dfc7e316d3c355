// The disk tier on a medium that fails: its writes and syncs come by here, and every 32nd fails or is cut short.
#include <dlfcn.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>

#include "kvpolicy/tiers/disk.hpp"
#include "tiers/blocks.hpp"

namespace {

/// What fails, and how often; 0: nothing.
struct medium {
  std::atomic<std::uint64_t> state = 1;
  std::atomic<std::uint64_t> one_in = 0;
  std::atomic<std::int64_t> failed = 0;

  std::uint64_t random() noexcept {
    std::uint64_t const x = state.fetch_add(0x9e3779b97f4a7c15u, std::memory_order_relaxed);
    std::uint64_t const y = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    return y ^ y >> 29;
  }
  /// 0: works; EIO, ENOSPC, or -1: a write is cut short.
  int fault(bool can_be_short) noexcept {
    std::uint64_t const every = one_in.load(std::memory_order_relaxed);
    if (every == 0 || random() % every != 0) return 0;
    failed.fetch_add(1, std::memory_order_relaxed);
    switch (random() % (can_be_short ? 3 : 2)) {
      case 0:
        return EIO;
      case 1:
        return ENOSPC;
      default:
        return -1;
    }
  }
};
medium the_medium;

template <class Function>
Function* real(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// Calls write(count) unless the medium fails.
template <class Write>
ssize_t perhaps(std::size_t count, Write write) {
  int const fault = the_medium.fault(count > 1);
  if (fault == 0) return write(count);
  if (fault == -1) return write(count / 2);
  errno = fault;
  return -1;
}
template <class Sync>
int perhaps_sync(Sync sync) {
  if (int const fault = the_medium.fault(false); fault != 0) {
    errno = fault;
    return -1;
  }
  return sync();
}

}  // namespace

extern "C" {
ssize_t pwrite(int file, void const* from, std::size_t count, off_t offset) {
  static auto* const next = real<ssize_t(int, void const*, std::size_t, off_t)>("pwrite");
  return perhaps(count, [&](std::size_t n) { return next(file, from, n, offset); });
}
ssize_t writev(int file, iovec const* pieces, int count) {
  static auto* const next = real<ssize_t(int, iovec const*, int)>("writev");
  return perhaps(static_cast<std::size_t>(count), [&](std::size_t n) { return next(file, pieces, static_cast<int>(n)); });
}
int fdatasync(int file) {
  static auto* const next = real<int(int)>("fdatasync");
  return perhaps_sync([&] { return next(file); });
}
int fsync(int file) {
  static auto* const next = real<int(int)>("fsync");
  return perhaps_sync([&] { return next(file); });
}
int msync(void* at, std::size_t length, int flags) {
  static auto* const next = real<int(void*, std::size_t, int)>("msync");
  return perhaps_sync([&] { return next(at, length, flags); });
}
}

using namespace kvpolicy_test;

namespace {

constexpr std::int64_t bytes = 700;
constexpr std::int64_t batch = 4;
constexpr std::int64_t groups = 16;
constexpr std::int64_t capacity = batch * groups;

tiers::block_key key_of(std::int64_t group, std::int64_t i) {
  return {static_cast<std::uint64_t>(group % 3), static_cast<std::int32_t>(group), static_cast<std::int32_t>(i),
          static_cast<std::int32_t>(7 * i), 1};
}

bool put_group(tiers::disk& made, std::int64_t group, std::uint64_t version) {
  std::vector<std::vector<std::byte>> sources;
  std::vector<tiers::block_write> writes;
  for (std::int64_t i = 0; i < batch; ++i) sources.push_back(block_of(key_of(group, i), version, bytes));
  for (std::int64_t i = 0; i < batch; ++i) writes.push_back({key_of(group, i), sources[static_cast<std::size_t>(i)].data()});
  return made.put(writes);
}

enum class found { old_version, new_version, miss, wrong };

/// What a whole batch reads as; a batch that is neither one version nor untouched is wrong.
found read_group(tiers::disk& made, std::int64_t group, std::uint64_t old_version, std::uint64_t new_version) {
  std::vector<std::byte> to(static_cast<std::size_t>(batch * bytes), untouched_byte);
  std::vector<tiers::block_read> reads;
  for (std::int64_t i = 0; i < batch; ++i) reads.push_back({key_of(group, i), to.data() + i * bytes});
  if (made.wait(made.get(reads), soon()) != tiers::status::done) return untouched(to) ? found::miss : found::wrong;
  std::vector<std::byte> scratch(static_cast<std::size_t>(bytes));
  for (std::uint64_t const version : {old_version, new_version}) {
    bool all = version != 0;
    for (std::int64_t i = 0; i < batch; ++i)
      all = all && holds_block(to.data() + i * bytes, key_of(group, i), version, scratch);
    if (all) return version == old_version ? found::old_version : found::new_version;
  }
  return found::wrong;
}

}  // namespace

TEST_CASE("on a disk that fails 1 write or sync in 32, each block is the old one, the new one, or a miss") {
  scratch_folder folder;
  std::string const path = folder.file("blocks");
  auto made = std::make_unique<tiers::disk>(path, bytes, capacity);
  random_source random(1);
  std::map<std::int64_t, std::uint64_t> known;  // of each batch, the version that was acknowledged last
  std::map<std::int64_t, std::uint64_t> tried;  // the one of a put that failed since
  std::int64_t refused = 0;
  std::int64_t reopened = 0;
  std::int64_t misses = 0;
  std::uint64_t version = 0;
  auto const look = [&](std::int64_t group, bool may_miss) {
    found const what = read_group(*made, group, known[group], tried[group]);
    check(what != found::wrong, "a block has bytes that nobody wrote");
    if (what == found::new_version) known[group] = tried[group];
    if (what == found::miss && known[group] != 0) {
      ++misses;
      check(may_miss, "what was acknowledged is gone");
    }
  };
  for (std::int64_t operation = 0; operation < 4000; ++operation) {
    std::int64_t const group = random.between(0, groups - 1);
    the_medium.one_in = 32;
    bool const acknowledged = put_group(*made, group, ++version);
    the_medium.one_in = 0;
    if (acknowledged) {
      known[group] = version;
      tried[group] = 0;
      look(group, false);
      continue;
    }
    ++refused;
    tried[group] = version;
    for (std::int64_t g = 0; g < groups; ++g) look(g, false);
    if (random.one_in(4)) {  // what a failed put left must not count when the file is opened again
      made.reset();
      made = std::make_unique<tiers::disk>(path, bytes, capacity);
      ++reopened;
      for (std::int64_t g = 0; g < groups; ++g) look(g, false);
    }
    REQUIRE(put_group(*made, groups - 1, ++version));  // the medium works again
    known[groups - 1] = version;
    tried[groups - 1] = 0;
    for (std::int64_t g = 0; g < groups; ++g) look(g, false);
    check(adds_up(*made), "free, resident and in flight do not add up to the capacity");
  }
  CAPTURE(refused, reopened, misses, the_medium.failed.load());
  CHECK(the_medium.failed > 100);
  CHECK(refused > 100);
}

TEST_CASE("a disk that can't be written is refused when it is opened, and left as it was") {
  scratch_folder folder;
  std::string const path = folder.file("blocks");
  { REQUIRE(put_group(*std::make_unique<tiers::disk>(path, bytes, capacity), 1, 5)); }
  for (int tries = 0; tries < 50; ++tries) {
    the_medium.one_in = 1;
    std::unique_ptr<tiers::disk> made;
    try {
      made = std::make_unique<tiers::disk>(path, bytes, capacity);
    } catch (kvpolicy::error const&) {
    }
    the_medium.one_in = 0;
  }
  tiers::disk made(path, bytes, capacity);
  CHECK(read_group(made, 1, 5, 5) == found::old_version);
}
