// What the model keeps of a block that runs: its threads, where they meet, and who touched which element.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/emulator/fibers.hpp"

namespace kvpolicy_test {

/// What a body did wrong: the kernel, the block, the thread, the kind of error, and where.
struct emulator_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Which collective a thread has come to. Threads that meet at different ones have diverged.
struct meeting_key {
  char const* kind = "";
  void const* type = nullptr;
  void const* storage = nullptr;
  std::source_location where;
};

/// Where the threads of a block or a warp wait for each other.
struct meeting {
  unsigned first = 0;  ///< thread
  unsigned threads = 0;
  unsigned arrived = 0;
  unsigned exited = 0;
  meeting_key key;
};

struct warp_state {
  std::uint32_t epoch = 0;
  meeting place;
};

struct block_state;
struct thread_state {
  block_state* block = nullptr;
  warp_state* warp = nullptr;
  unsigned index = 0;
  void* brought = nullptr;  ///< to the collective that it waits in
  std::uint32_t spent = 0;  ///< accesses and collectives since it last came through a sync
};

/// The thread whose fiber runs.
inline constinit thread_local thread_state* current = nullptr;

/// An index, and where in the text it was written.
struct element_index {
  std::int64_t value;
  std::source_location where;

  template <class I>
    requires(std::is_convertible_v<I, std::int64_t> && !std::is_floating_point_v<std::remove_cvref_t<I>>)
  element_index(I&& i, std::source_location from = std::source_location::current())
      : value(static_cast<std::int64_t>(std::forward<I>(i))), where(from) {}
};

[[noreturn, gnu::cold]] void fail(char const* kind, std::string const& what, std::source_location const& where);

enum class access : unsigned { read, write, add };

/// Reads do not race with each other, nor do atomics.
constexpr bool harmless(access a, access b) { return a == b && a != access::write; }

/// The threads that did one thing to an element in the newest epoch in which any did. Two are enough to convict every third:
/// two warps' threads are out of order with any thread, and of one warp only those since its last sync matter.
struct marks {
  std::uint64_t epoch : 20 = 0;
  std::uint64_t warp_epoch : 20 = 0;
  std::uint64_t first : 10 = 0;
  std::uint64_t second : 10 = 0;

  bool clashes(thread_state const& me) const;
  void add(thread_state const& me);
};

/// One element's.
struct shadow {
  marks by[3];

  /// True if this access and an earlier one are in no order; else it is noted.
  bool races(thread_state const& me, access how);
  /// After races(): what both did.
  std::string text_of_race(thread_state const& me, access how) const;
};

/// Of global memory, by address: buffers that overlap see each other. A page's granules are as fine as the finest access to it.
class global_shadows {
 public:
  /// What was noted before is of an earlier launch.
  void start_launch();
  /// What its blocks counted with, and did not count to the end; or nothing.
  std::string end_launch();
  void start_block() {
    ++block_;
    came_ = false;
    seen_.clear();
  }
  /// The block has come to a counter. The last of `count` may read what the others wrote before they came.
  bool last_of(std::int32_t* counter, std::int32_t count, std::source_location const& where);
  /// Fails where it races; `index` is for the message.
  void touch(thread_state const& me, void const* at, std::size_t bytes, access how, element_index const& index);

 private:
  static constexpr std::size_t page_bytes = 4096;
  struct granule {
    shadow here;  ///< in `block`
    std::uint32_t block = 0;
    std::uint32_t before = 0;  ///< bits of `access`: what earlier blocks of the launch did
    std::uint32_t writer = 0;  ///< the last block that wrote here
    bool late = false;         ///< after it had come to a counter
  };
  struct page {
    unsigned shift = 0;
    std::vector<granule> granules;
  };
  page& page_of(std::uintptr_t number);

  std::unordered_map<std::uintptr_t, page> pages_;
  std::array<std::pair<std::uintptr_t, page*>, 64> recent_{};
  std::uint32_t block_ = 0;
  std::uint32_t launch_ = 1;
  std::unordered_map<std::int32_t*, std::vector<std::uint32_t>> counters_;  ///< blocks that have come to each
  bool came_ = false;                                                       ///< this block has come to one
  std::vector<std::uint32_t> seen_;  ///< blocks whose writes this one may read, ascending
};

struct block_state {
  explicit block_state(fibers& of) : scheduler(of) {}

  /// Runs one block: body(i) on a fiber for every thread.
  void run(random_bits& random, std::function<void(unsigned)> const& body);

  /// A thread has come to a collective; true if it is the last.
  bool arrive(meeting& place, meeting_key const& key, void* brought);
  void next_epoch(std::uint32_t& epoch, meeting const& place, std::source_location const& where);

  fibers& scheduler;
  global_shadows memory;
  char const* kernel = "";
  std::array<unsigned, 3> at{};
  unsigned threads = 0;
  std::uint32_t epoch = 0;
  meeting place;
  std::array<warp_state, 32> warps;
  std::array<thread_state, 1024> each;

 private:
  void start();
  void exited(meeting& place);
  std::exception_ptr stuck() const;
};

/// Counts against what a thread may do without coming through a sync: loops that wait for another thread end here.
inline void spend(thread_state& me, std::source_location const& where) {
  constexpr std::uint32_t budget = 4u << 20;
  if (++me.spent > budget) fail("no progress", "4 million accesses without a sync", where);
}

inline bool marks::clashes(thread_state const& me) const {
  if (epoch != me.block->epoch) return false;
  if (first / 32 != second / 32 || first / 32 != me.index / 32) return true;
  return warp_epoch == me.warp->epoch && (first != me.index || second != me.index);
}

inline void marks::add(thread_state const& me) {
  std::uint64_t const mine = me.index;
  if (epoch != me.block->epoch) {
    epoch = me.block->epoch & 0xfffff;
  } else if (first / 32 != second / 32) {
    return;
  } else if (first / 32 != mine / 32) {
    second = mine & 1023;
    return;
  } else if (warp_epoch == me.warp->epoch) {
    if (first == second) second = mine & 1023;
    return;
  }
  warp_epoch = me.warp->epoch & 0xfffff;
  first = second = mine & 1023;
}

inline bool shadow::races(thread_state const& me, access how) {
  bool race = false;
  for (unsigned k = 0; k < 3; ++k) race = race || (!harmless(how, static_cast<access>(k)) && by[k].clashes(me));
  by[static_cast<unsigned>(how)].add(me);
  return race;
}

}  // namespace kvpolicy_test
