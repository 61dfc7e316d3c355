#include <catch2/catch_template_test_macros.hpp>
#include <utility>
#include <vector>

#include "cuda/emulator/small_body.hpp"

namespace kvpolicy_test {
namespace {

// Races in shared memory.

struct missing_sync : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    unsigned const t = block.thread();
    s.values[t] = 1;
    block.sync();
    float const neighbour = s.values[t ^ 32];
    if (a.n == 1) block.sync();
    s.values[t] = neighbour + 1;
  }
};

TEST_CASE("a write with no sync since another thread's read is a race", "[cuda][emulator]") {
  require_error<missing_sync>("race");
  require_right<missing_sync>([](auto const&) {}, {}, 1);
}

struct missing_first_sync : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    s.values[block.thread()] = 1;
    float const neighbour = s.values[block.thread() ^ 32];
    block.global(a.out)[block.thread()] = neighbour;
  }
};

TEST_CASE("a read with no sync since another thread's first write is a race, or uninitialised", "[cuda][emulator]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    REQUIRE_THAT(error_of<missing_first_sync>(seed), ContainsSubstring(": race: ") || ContainsSubstring(": uninitialised: "));
  }
}

template <bool Atomic>
struct histogram : small_body<128> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    if (block.thread() < 4) s.counts[block.thread()] = 0;
    block.sync();
    if constexpr (Atomic) {
      s.counts.atomic_add(block.thread() % 4, 1);
    } else {
      std::int32_t const before = s.counts[block.thread() % 4];
      s.counts[block.thread() % 4] = before + 1;
    }
    block.sync();
    if (block.thread() >= 4) return;
    std::int32_t const count = s.counts[block.thread()];
    block.global(a.counts).atomic_add(block.thread(), count);
  }
};

TEST_CASE("a histogram is a race, and with atomics it is right", "[cuda][emulator]") {
  require_error<histogram<false>>("race");
  require_right<histogram<true>>(
      [](fixture const& memory) {
        for (std::size_t i = 0; i < 4; ++i) REQUIRE(memory.counts[i] == 5 * 32);
      },
      {5});
}

/// An atomic of one thread, and a plain access of another: n even reads, odd writes; n / 2 says who comes to it last.
struct atomic_and_plain : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    if (block.thread() == 0) s.counts[0] = 0;
    block.sync();
    if (block.thread() == 1) s.counts.atomic_add(0, 1);
    if (block.thread() == 40 && a.n % 2 == 0) {
      std::int32_t const seen = s.counts[0];
      block.global(a.counts)[0] = seen;
    }
    if (block.thread() == 40 && a.n % 2 == 1) s.counts[0] = 1;
  }
};

TEST_CASE("an atomic and a plain access are a race", "[cuda][emulator]") {
  require_error<atomic_and_plain>("race", {}, 0);
  require_error<atomic_and_plain>("race", {}, 1);
}

/// Lanes of a warp in turns, with tile.sync() between; n says what thread 40, of another warp, does.
struct warp_order : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const tile = block.tile();
    if (block.thread() == 0) s.counts[0] = 0;
    block.sync();
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (block.thread() == lane) {
        std::int32_t const before = s.counts[0];
        s.counts[0] = before + 1;
      }
      tile.sync();
    }
    if (a.n == 1) block.sync();
    if (a.n >= 1 && block.thread() == 40) {
      std::int32_t const all = s.counts[0];
      block.global(a.counts)[0] = all;
    }
  }
};

TEST_CASE("tile.sync() orders a warp's threads, and no others", "[cuda][emulator]") {
  require_right<warp_order>([](auto const&) {}, {}, 0);
  require_right<warp_order>([](fixture const& memory) { REQUIRE(memory.counts[0] == 32); }, {}, 1);
  require_error<warp_order>("race", {}, 2);
}

struct warp_without_sync : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const tile = block.tile();
    s.values[tile.lane()] = 1;
    if (a.n == 0) (void)tile.shfl_xor(1, 1);  // no order: it is not a sync
    else tile.sync();
    float const next = s.values[tile.lane() ^ 1];
    block.global(a.out)[tile.lane()] = next;
  }
};

TEST_CASE("a shuffle orders no memory", "[cuda][emulator]") {
  require_error<warp_without_sync>("race", {}, 0);
  require_right<warp_without_sync>([](fixture const& memory) { REQUIRE(memory.out[31] == 1); }, {}, 1);
}

enum class step : std::int32_t { read, write, add, tile_sync, sync };

/// One thread after the other does what a script says to one element. The sums between bring threads in turn, but no memory.
template <bool Global>
struct scripted : small_body<96> {
  static constexpr std::int64_t most = 10;
  template <class B>
  struct shared {
    typename B::template array<std::int32_t, 1> element;
    typename B::template scan_storage<std::int32_t> scans[most];
  };
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const out = block.global(gpu::buffer<std::int32_t>{a.counts.data + 100, 1});
    auto const turn = [&](auto& element, step what) {
      if (what == step::write) element[0] = 1;
      if (what == step::add) element.atomic_add(0, 1);
      if (what == step::read) (void)static_cast<std::int32_t>(element[0]);
    };
    if (block.thread() == 95) turn(s.element, step::write);
    block.sync();
    for (std::int64_t i = 0; i < most; ++i) {
      std::int32_t const what = block.global(a.counts)[2 * i];
      std::int32_t const who = block.global(a.counts)[2 * i + 1];
      std::int32_t total = 0;
      (void)block.exclusive_sum(s.scans[i], 1, total);
      if (step{what} == step::sync) block.sync();
      if (step{what} == step::tile_sync) block.tile().sync();
      if (static_cast<std::int32_t>(block.thread()) != who) continue;
      if constexpr (Global) turn(out, step{what});
      else turn(s.element, step{what});
    }
  }
};

/// By definition: two threads, not both reading nor both atomic, and neither a sync between nor one of the warp that both are
/// in.
bool races(std::vector<std::pair<step, std::int32_t>> const& script) {
  for (std::size_t i = 0; i < script.size(); ++i) {
    auto const [one, first] = script[i];
    bool tile_synced = false;
    for (std::size_t j = i + 1; j < script.size() && one < step::tile_sync && script[j].first != step::sync; ++j) {
      auto const [other, second] = script[j];
      tile_synced = tile_synced || other == step::tile_sync;
      if (other >= step::tile_sync || (one == other && one != step::write)) continue;
      if (first != second && !(tile_synced && first / 32 == second / 32)) return true;
    }
  }
  return false;
}

TEMPLATE_TEST_CASE_SIG("a script of accesses is a race if two of them are", "[cuda][emulator]", ((bool Global), Global), false,
                       true) {
  gpu_emulator device(1);
  random_bits random(Global ? 5 : 6);
  int raced = 0;
  for (int n = 0; n < 3000; ++n) {
    fixture memory;
    std::vector<std::pair<step, std::int32_t>> script;
    // Mostly of one warp, and mostly of one kind: else every script is a race.
    auto const usual = static_cast<step>(random.below(3));
    for (std::size_t i = 0; i < scripted<Global>::most; ++i) {
      std::int32_t const threads[] = {0, 1, 2, 3, 40, 70};
      auto const what = random.below(3) == 0   ? static_cast<step>(random.below(5))
                        : random.below(2) == 0 ? step::tile_sync
                                               : usual;
      script.emplace_back(what, threads[random.below(random.below(4) == 0 ? 6 : 4)]);
      memory.counts[2 * i] = static_cast<std::int32_t>(what);
      memory.counts[2 * i + 1] = script.back().second;
    }
    std::string error;
    try {
      device.launch<scripted<Global>>({}, memory.arguments<scripted<Global>>(0));
    } catch (emulator_error const& caught) {
      error = caught.what();
      REQUIRE_THAT(error, ContainsSubstring(": race: "));
    }
    raced += error.empty() ? 0 : 1;
    REQUIRE(error.empty() != races(script));
  }
  REQUIRE(raced > 500);
  REQUIRE(raced < 2500);
}

// Storage, bounds, alignment, initialisation, progress.

struct storage_twice : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    for (int i = 0; i < 3; ++i) {
      std::int32_t total = 0;
      if (a.n / 2 == 0) (void)block.exclusive_sum(s.scan, 1, total);
      if (a.n / 2 == 1) (void)block.reduce(s.reduce, 1.0f, [](float x, float y) { return x + y; });
      if (a.n % 2 == 0) block.tile().sync();
      else block.sync();
    }
  }
};

TEST_CASE("storage is used again after a sync, or it is an error", "[cuda][emulator]") {
  for (int const how : {0, 2}) {
    require_error<storage_twice>("storage reused", {}, how);
    require_right<storage_twice>([](auto const&) {}, {}, how + 1);
  }
}

struct shared_bounds : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    if (block.thread() == 5) s.values[a.n] = 1;
  }
};
template <int How>
struct global_bounds : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    if (block.thread() != 5) return;
    auto const out = block.global(a.out);
    if constexpr (How == 0) out[a.n] = 1;
    if constexpr (How == 1) out[0] = block.global(a.in)[a.n];
    if constexpr (How == 2) out.atomic_add(a.n, 1);
    if constexpr (How == 3) out.store(a.n, {});
    if constexpr (How == 4) (void)out.load(a.n);
    if constexpr (How == 5) (void)block.global(a.in).load(a.n);
  }
};
struct null_buffer : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const none = block.global(gpu::buffer<float>{nullptr, a.n});
    if (a.n != 0) none[block.thread()] = 1;
  }
};

TEST_CASE("an index out of bounds is an error", "[cuda][emulator]") {
  for (std::int64_t const i : {std::int64_t{-1}, std::int64_t{64}, INT64_MIN, INT64_MAX}) {
    require_error<shared_bounds>("out of bounds", {}, i);
  }
  require_right<shared_bounds>([](auto const&) {}, {}, 63);
  for (std::int64_t const i : {std::int64_t{-1}, std::int64_t{256}, INT64_MIN, INT64_MAX}) {
    require_error<global_bounds<0>>("out of bounds", {}, i);
    require_error<global_bounds<1>>("out of bounds", {}, i);
    require_error<global_bounds<2>>("out of bounds", {}, i);
  }
  for (std::int64_t const i : {std::int64_t{-4}, std::int64_t{253}, std::int64_t{256}, INT64_MIN, INT64_MAX}) {
    require_error<global_bounds<3>>("out of bounds", {}, i);
    require_error<global_bounds<4>>("out of bounds", {}, i);
    require_error<global_bounds<5>>("out of bounds", {}, i);
  }
  require_right<global_bounds<3>>([](auto const&) {}, {}, 252);
  require_right<null_buffer>([](auto const&) {}, {}, 0);
  require_error<null_buffer>("out of bounds", {}, 32);
}

TEST_CASE("a pack off its alignment is an error", "[cuda][emulator]") {
  for (std::int64_t const i : {1, 2, 3, 125}) {
    require_error<global_bounds<3>>("misaligned", {}, i);
    require_error<global_bounds<4>>("misaligned", {}, i);
    require_error<global_bounds<5>>("misaligned", {}, i);
  }
}

struct odd_address : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto* const bytes = reinterpret_cast<std::byte*>(a.counts.data);
    auto const halves = block.global(gpu::buffer<std::uint16_t>{reinterpret_cast<std::uint16_t*>(bytes + a.n), 64});
    halves[block.thread()] = 1;
  }
};

TEST_CASE("an element off its alignment is an error", "[cuda][emulator]") {
  require_right<odd_address>([](auto const&) {}, {}, 2);
  require_error<odd_address>("misaligned", {}, 1);
}

template <bool Atomic>
struct uninitialised : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    // Its own: what the block before left there does not count.
    if (block.thread() != 7) s.values[block.thread()] = 1;
    if constexpr (Atomic) s.values.atomic_add(block.thread(), 1.0f);
    else block.global(a.out)[block.x() * 64 + block.thread()] = s.values[block.thread()];
  }
};

TEST_CASE("a read of shared memory that was not written is an error", "[cuda][emulator]") {
  require_error<uninitialised<false>>("uninitialised", {2});
  require_error<uninitialised<true>>("uninitialised", {2});
}

struct spin : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const in = block.global(a.in);
    if (block.thread() == 0) {
      for (float flag = 0; flag != -1;) flag = in[0];
    }
    block.sync();
  }
};
struct patient : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const in = block.global(a.in);
    for (int round = 0; round < 4; ++round) {
      float sum = 0;
      for (int i = 0; i < 3000000 && block.thread() == 0; ++i) sum += in[i % 256];
      if (round % 2 == 0) block.tile().sync();
      else block.sync();
    }
  }
};
struct spin_in_tile : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const in = block.global(a.in);
    auto const tile = block.tile();
    for (float flag = 0; flag != -1;) {
      flag = in[0];
      tile.sync();
    }
  }
};

TEST_CASE("a loop that waits for what will not come ends", "[cuda][emulator]") {
  for (std::uint64_t seed = 0; seed < 3; ++seed) REQUIRE_THAT(error_of<spin>(seed), ContainsSubstring(": no progress: "));
  REQUIRE_THAT(error_of<spin_in_tile>(1), ContainsSubstring(": no progress: "));
  REQUIRE(error_of<patient>(1) == "none");
}

// Global memory.

/// Blocks touch element 0: n is in base 4 what the block at 0 and the one at 1 do: nothing, read, write, add.
struct across_blocks : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    if (block.thread() != 3 + block.x()) return;
    auto const out = block.global(a.out);
    std::int64_t const how = block.x() == 0 ? a.n % 4 : a.n / 4;
    if (how == 1) {
      float const seen = out[0];
      out[block.x() + 1] = seen;
    }
    if (how == 2) out[0] = 1;
    if (how == 3) out.atomic_add(0, 1);
  }
};

TEST_CASE("two blocks touch an element only to read it, or atomically", "[cuda][emulator]") {
  for (std::int64_t first = 0; first < 4; ++first) {
    for (std::int64_t second = 0; second < 4; ++second) {
      bool const fine = first == 0 || second == 0 || (first == second && first != 2);
      if (fine) require_right<across_blocks>([](auto const&) {}, {2}, first + 4 * second);
      else require_error<across_blocks>("race", {2}, first + 4 * second);
    }
  }
}

TEST_CASE("launches follow each other", "[cuda][emulator]") {
  fixture memory;
  gpu_emulator device(3);
  for (int i = 0; i < 3; ++i) {
    for (std::int64_t const n : {2, 1, 3, 8, 4, 12}) device.launch<across_blocks>({2}, memory.arguments<across_blocks>(n));
  }
  REQUIRE(memory.out[0] == 2);
}

struct through_global : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const out = block.global(a.out);
    std::int64_t const base = block.x() * 64;
    out[base + block.thread()] = static_cast<float>(block.thread());
    if (a.n == 1) block.sync();
    // Through another type, and read only.
    auto const again = block.global(gpu::buffer<std::uint32_t const>{reinterpret_cast<std::uint32_t*>(a.out.data), 256});
    std::uint32_t const bits = again[base + (block.thread() ^ 63)];
    if (a.n == 1) block.sync();
    out[base + block.thread()] = __builtin_bit_cast(float, bits);
  }
};

TEST_CASE("a block's threads see each other's global memory after a sync", "[cuda][emulator]") {
  require_error<through_global>("race", {2}, 0);
  require_right<through_global>(
      [](fixture const& memory) {
        for (std::size_t i = 0; i < 256; ++i) REQUIRE(memory.out[i] == static_cast<float>(63 - i % 64));
      },
      {4}, 1);
}

/// Bytes of a float: each written by a thread of its own, then read as a whole; n bytes apart from where the float begins.
struct bytes_and_floats : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const floats = block.global(a.out);
    auto const bytes = block.global(gpu::buffer<std::byte>{reinterpret_cast<std::byte*>(a.out.data), 1024});
    if (block.thread() == 9) {
      floats[0] = 0;
      floats[2] = 0;
    }
    if (block.thread() < 4) bytes[a.n + block.thread()] = std::byte{1};
  }
};

TEST_CASE("buffers of different types on the same bytes see each other, byte for byte", "[cuda][emulator]") {
  for (std::int64_t const n : {0, 1, 3, 5, 8, 11}) require_error<bytes_and_floats>("race", {}, n);
  require_right<bytes_and_floats>([](auto const&) {}, {}, 4);
  require_right<bytes_and_floats>([](auto const&) {}, {}, 12);
}

/// Moves n bytes of one buffer to another, 16 at a time, as elements of T; and counts from the elements.
template <class T>
struct move_packs : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const size = 1024 / static_cast<std::int64_t>(sizeof(T));
    auto const from = block.global(gpu::buffer<T const>{reinterpret_cast<T const*>(a.in.data), size});
    auto const to = block.global(gpu::buffer<T>{reinterpret_cast<T*>(a.out.data), size});
    constexpr std::int64_t elements = 16 / sizeof(T);
    std::int64_t const at = (block.x() * 32 + block.thread()) * elements;
    if (block.thread() < 32) to.store(at, from.load(at));
    if (a.n == 1) block.sync();
    // Element by element, by a thread that has not stored it.
    for (std::int64_t i = at - 32 * elements; block.thread() >= 32 && i < at - 31 * elements; ++i) {
      T const one = to[i];
      T const other = from[i];
      if (one != other) block.global(a.counts).atomic_add(0, 1);
    }
  }
};

TEMPLATE_TEST_CASE("packs are moved, and race as their elements do", "[cuda][emulator]", float, std::uint16_t, std::byte,
                   std::int64_t) {
  require_right<move_packs<TestType>>(
      [](fixture const& memory) {
        REQUIRE(memory.out == memory.in);
        REQUIRE(memory.counts[0] == 0);
      },
      {2}, 1);
  require_error<move_packs<TestType>>("race", {2}, 0);
}

}  // namespace
}  // namespace kvpolicy_test
