#include <catch2/catch_template_test_macros.hpp>
#include <cmath>
#include <vector>

#include "cuda/emulator/small_body.hpp"

namespace kvpolicy_test {
namespace {

struct block_sum : small_body<256> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    unsigned const t = block.thread();
    s.values[t] = block.global(a.in)[t];
    block.sync();
    for (unsigned half = 128; half > 0; half /= 2) {
      if (t < half) {
        float const mine = s.values[t];
        float const other = s.values[t + half];
        s.values[t] = mine + other;
      }
      block.sync();
    }
    if (t == 0) block.global(a.out)[block.x() + 4 * block.y() + 8 * block.z()] = s.values[0];
  }
};

TEST_CASE("a sum through shared memory is right in every block", "[cuda][emulator]") {
  require_right<block_sum>(
      [](fixture const& memory) {
        for (std::size_t i = 0; i < 256; ++i) REQUIRE(memory.out[i] == (i < 24 ? 256 * 257 / 2 : 0));
      },
      {4, 2, 3});
}

struct scans : small_body<256> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int32_t total = 0;
    std::int32_t const before = block.exclusive_sum(s.scan, static_cast<std::int32_t>(block.thread() % 3), total);
    block.global(a.counts)[block.thread()] = before * 1000 + total;
  }
};

TEST_CASE("an exclusive sum gives each thread what is before it, and all of it", "[cuda][emulator]") {
  require_right<scans>([](fixture const& memory) {
    std::int32_t before = 0;
    for (std::int32_t t = 0; t < 256; ++t) {
      REQUIRE(memory.counts[static_cast<std::size_t>(t)] == before * 1000 + 255);
      before += t % 3;
    }
  });
}

struct reductions : small_body<256> {
  template <class B>
  struct shared {
    typename B::template reduce_storage<float> sum;
    typename B::template reduce_storage<std::uint32_t> most;
  };
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    float const value = block.global(a.in)[block.thread()];
    float const sum = block.reduce(s.sum, value, [](float x, float y) { return x + y; });
    std::uint32_t const most =
        block.reduce(s.most, block.thread() * 7 % 256, [](std::uint32_t x, std::uint32_t y) { return x > y ? x : y; });
    block.global(a.out)[block.thread()] = sum;
    block.global(a.counts)[block.thread()] = static_cast<std::int32_t>(most & 0x7fffffff);
  }
};

TEST_CASE("a reduction is thread 0's, and nothing to the others", "[cuda][emulator]") {
  require_right<reductions>([](fixture const& memory) {
    REQUIRE(memory.out[0] == 256 * 257 / 2);
    REQUIRE(memory.counts[0] == 255);
    for (std::size_t t = 1; t < 256; ++t) {
      REQUIRE(std::isnan(memory.out[t]));
      REQUIRE(memory.counts[t] == 0x2aaaaaaa);
    }
  });
}

using kvpolicy::element_type;

/// Element i of a lane's parts of A, B and C, as the PTX ISA's formulas of mma.m16n8k16 for 16-bit floats have it.
struct fragment_place {
  unsigned row;
  unsigned column;
};
KVPOLICY_KERNEL fragment_place left_place(unsigned lane, unsigned i) {
  return {lane / 4 + (i < 2 || (i >= 4 && i < 6) ? 0 : 8), lane % 4 * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}
KVPOLICY_KERNEL fragment_place right_place(unsigned lane, unsigned i) {
  return {lane % 4 * 2 + (i & 1) + (i >= 2 ? 8 : 0), lane / 4};
}
KVPOLICY_KERNEL fragment_place sum_place(unsigned lane, unsigned i) {
  return {lane / 4 + (i < 2 ? 0 : 8), lane % 4 * 2 + (i & 1)};
}
KVPOLICY_KERNEL float left_element(fragment_place at) { return static_cast<float>((at.row * 16 + at.column) % 7) - 3; }
KVPOLICY_KERNEL float right_element(fragment_place at) { return static_cast<float>((at.row * 8 + at.column) % 5) - 2; }

template <element_type E>
struct products : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    unsigned const lane = block.tile().lane();
    auto const pair = [](float low, float high) {
      return gpu::narrowed<E>(low) | static_cast<std::uint32_t>(gpu::narrowed<E>(high)) << 16;
    };
    std::uint32_t left[4];
    std::uint32_t right[2];
    for (unsigned i = 0; i < 4; ++i)
      left[i] = pair(left_element(left_place(lane, 2 * i)), left_element(left_place(lane, 2 * i + 1)));
    for (unsigned i = 0; i < 2; ++i)
      right[i] = pair(right_element(right_place(lane, 2 * i)), right_element(right_place(lane, 2 * i + 1)));
    float sum[4] = {1, 1, 1, 1};
    block.tile().template multiply<E>(left, right, sum);
    for (unsigned i = 0; i < 4; ++i) {
      fragment_place const at = sum_place(lane, i);
      block.global(a.out)[at.row * 8 + at.column] = sum[i];
    }
  }
};

TEMPLATE_TEST_CASE_SIG("a product of matrices adds to what is there", "[cuda][emulator]", ((element_type E), E),
                       element_type::f16, element_type::bf16) {
  require_right<products<E>>([](fixture const& memory) {
    for (unsigned row = 0; row < 16; ++row) {
      for (unsigned column = 0; column < 8; ++column) {
        float sum = 1;
        for (unsigned k = 0; k < 16; ++k) sum += left_element({row, k}) * right_element({k, column});
        REQUIRE(memory.out[row * 8 + column] == sum);
      }
    }
  });
}

struct transposes : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    unsigned const lane = block.tile().lane();
    std::uint32_t const first = lane / 4 * 8 + lane % 4 * 2;  // an element is 8 row + column
    std::uint32_t const turned = block.tile().transpose(first | (first + 1) << 16);
    block.global(a.counts)[first] = static_cast<std::int32_t>(turned & 0xffff);
    block.global(a.counts)[first + 1] = static_cast<std::int32_t>(turned >> 16);
  }
};

TEST_CASE("a transposed matrix has rows for columns", "[cuda][emulator]") {
  require_right<transposes>([](fixture const& memory) {
    for (std::int32_t row = 0; row < 8; ++row) {
      for (std::int32_t column = 0; column < 8; ++column)
        REQUIRE(memory.counts[static_cast<std::size_t>(8 * row + column)] == 8 * column + row);
    }
  });
}

struct shuffles : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const tile = block.tile();
    auto const value = static_cast<std::int32_t>(100 * tile.index() + tile.lane());
    std::int32_t const got = tile.shfl(value, (tile.lane() * 5 + 3) % 32);
    std::int32_t sum = value;
    for (unsigned mask = 16; mask > 0; mask /= 2) sum += tile.shfl_xor(sum, mask);
    std::uint32_t const thirds = tile.ballot(tile.lane() % 3 == 0);
    block.global(a.counts)[block.thread()] = got;
    block.global(a.counts)[64 + block.thread()] = sum;
    block.global(a.counts)[128 + block.thread()] = static_cast<std::int32_t>(thirds & 0xffff);
  }
};

TEST_CASE("shuffles give each lane its own source, and a ballot every lane's bit", "[cuda][emulator]") {
  require_right<shuffles>([](fixture const& memory) {
    for (std::size_t t = 0; t < 64; ++t) {
      std::size_t const base = t / 32 * 100;
      REQUIRE(memory.counts[t] == static_cast<std::int32_t>(base + (t % 32 * 5 + 3) % 32));
      REQUIRE(memory.counts[64 + t] == static_cast<std::int32_t>(32 * base + 31 * 32 / 2));
      REQUIRE(memory.counts[128 + t] == 0x9249);
    }
  });
}

struct lane_bounds : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    (void)block.tile().shfl(1.0f, block.tile().lane() + static_cast<unsigned>(a.n));
  }
};

TEST_CASE("a lane that is not in the warp is out of bounds", "[cuda][emulator]") {
  require_error<lane_bounds>("out of bounds", {}, 1);
  require_right<lane_bounds>([](auto const&) {}, {}, 0);
}

// The device.

/// Right where n is 0; else it is wrong in one way.
struct wrong : small_body<64> {
  static constexpr int line = __LINE__;
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    unsigned const t = block.thread();
    if (a.n == 1 && t == 5) s.values[64] = 1;
    if (a.n == 2 && t == 5) block.global(a.out)[7] = 1;
    if (a.n == 3) s.values[t % 63] = 1;
    if (a.n == 4 && t % 2 == 0) block.tile().sync();
    if (a.n == 5 && t == 5) return;
    block.sync();
    block.tile().sync();
    block.global(a.counts).atomic_add(0, 1);
  }
};

TEST_CASE("a device can be used again after an error", "[cuda][emulator]") {
  fixture memory;
  gpu_emulator device(7);
  for (int i = 0; i < 5; ++i) {
    for (std::int64_t n = 1; n <= 5; ++n) {
      REQUIRE_THROWS_AS(device.launch<wrong>({3}, memory.arguments<wrong>(n)), emulator_error);
      memory.counts[0] = 0;
      device.launch<wrong>({3}, memory.arguments<wrong>(0));
      REQUIRE(memory.counts[0] == 3 * 64);
    }
  }
}

TEST_CASE("an error says what and where it is", "[cuda][emulator]") {
  auto const at = [](int nth) { return " at emulator_test.cpp:" + std::to_string(wrong::line + 3 + nth); };
  REQUIRE(error_of<wrong>(1, {1, 1, 1}, 1) ==
          "small, block (0, 0, 0), thread 5: out of bounds: element 64 of a shared array of 64" + at(1));
  REQUIRE_THAT(error_of<wrong>(1, {1, 2, 1}, 2),
               ContainsSubstring(", thread 5: race: global element 7 written, and written by another block" + at(2)));
  std::string const race = error_of<wrong>(1, {}, 3);
  REQUIRE_THAT(race, ContainsSubstring("race: element 0 of a shared array of 64 written, and written by thread ") &&
                         ContainsSubstring(" with no sync between" + at(3)));
  REQUIRE(race.find("thread 63") != race.npos);
  REQUIRE(race.find("thread 0") != race.npos);
  REQUIRE_THAT(error_of<wrong>(1, {}, 4), ContainsSubstring("small, block (0, 0, 0): divergence: ") &&
                                              ContainsSubstring("tile.sync" + at(4)) && ContainsSubstring("sync" + at(6)));
  REQUIRE_THAT(error_of<wrong>(1, {}, 5), ContainsSubstring(": exited early: ") && ContainsSubstring("sync" + at(6)));
}

struct throws : small_body<64> {
  /// Counts those that are alive.
  struct counted {
    int* alive;
    explicit counted(int* count) : alive(count) { ++*alive; }
    ~counted() { --*alive; }
  };
  struct arguments {
    int* alive;
  };
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    counted const mine(a.alive);
    block.sync();
    if (block.thread() == 11) throw std::logic_error("the body's own");
    block.sync();
  }
};

TEST_CASE("a body's own exception is rethrown, and all its threads are unwound", "[cuda][emulator]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    int alive = 0;
    gpu_emulator device(seed);
    REQUIRE_THROWS_AS(device.launch<throws>({2}, {&alive}), std::logic_error);
    REQUIRE(alive == 0);
  }
}

template <unsigned Threads>
struct nothing : kvpolicy::gpu::no_shared {
  static constexpr unsigned threads = Threads;
  static constexpr char const* name = "nothing";
  struct arguments {};

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const&) {
    block.sync();
  }
};

TEST_CASE("launches that a GPU refuses are refused", "[cuda][emulator]") {
  gpu_emulator device;
  device.launch<nothing<32>>({1, 65535, 1}, {});
  device.launch<nothing<1024>>({2, 2, 2}, {});
  REQUIRE_THROWS_AS(device.launch<nothing<33>>({}, {}), emulator_error);
  REQUIRE_THROWS_AS(device.launch<nothing<0>>({}, {}), emulator_error);
  REQUIRE_THROWS_AS(device.launch<nothing<2048>>({}, {}), emulator_error);
  for (std::int64_t const n : {0, -1}) {
    REQUIRE_THROWS_AS(device.launch<nothing<32>>({n, 1, 1}, {}), emulator_error);
    REQUIRE_THROWS_AS(device.launch<nothing<32>>({1, n, 1}, {}), emulator_error);
    REQUIRE_THROWS_AS(device.launch<nothing<32>>({1, 1, n}, {}), emulator_error);
  }
  REQUIRE_THROWS_AS(device.launch<nothing<32>>({1, 65536, 1}, {}), emulator_error);
  REQUIRE_THROWS_AS(device.launch<nothing<32>>({1, 1, 65536}, {}), emulator_error);
  REQUIRE_THROWS_AS(device.launch<nothing<32>>({std::int64_t{1} << 31, 1, 1}, {}), emulator_error);
}

struct order : small_body<32> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int32_t const nth = block.global(a.counts).atomic_add(0, 1);
    block.global(a.counts)[1 + block.x() * 32 + block.thread()] = nth;
  }
};

TEST_CASE("the seed fixes the order of blocks and threads", "[cuda][emulator]") {
  auto const of = [](std::uint64_t seed, std::int64_t blocks) {
    fixture memory;
    gpu_emulator device(seed);
    device.launch<order>({blocks}, memory.arguments<order>(0));
    // Which block was when, and which thread of the first.
    std::vector<std::int32_t> nth(memory.counts.begin() + 1, memory.counts.begin() + 33);
    for (std::size_t b = 1; b < static_cast<std::size_t>(blocks); ++b) nth.push_back(memory.counts[1 + b * 32] / 32);
    return nth;
  };
  REQUIRE(of(1, 7) == of(1, 7));
  REQUIRE(of(1, 7) != of(2, 7));
  REQUIRE(of(1, 1) != of(2, 1));
}

// What a proxy is good for.

using proxy = decltype(std::declval<emulated_array<float, 4>&>()[0]);
static_assert(std::is_convertible_v<proxy, float> && !std::is_convertible_v<proxy&, float>);
static_assert(std::is_assignable_v<proxy, float> && std::is_assignable_v<proxy, int> && !std::is_assignable_v<proxy&, float>);
static_assert(std::is_assignable_v<proxy, proxy>);
static_assert(!std::is_copy_constructible_v<proxy> && !std::is_move_constructible_v<proxy>);
template <class T>
concept compound = requires(T a, std::int64_t i) {
  a[i] += 1;
}
|| requires(T a, std::int64_t i) { a[i]++; };
static_assert(!compound<emulated_array<std::int32_t, 4>&> && !compound<emulated_global<float>>);
template <class T>
concept written = requires(T a, std::int64_t i) {
  a[i] = 1;
};
static_assert(written<emulated_array<float, 4>&> && written<emulated_global<float> const> &&
              !written<emulated_global<float const>>);
static_assert(std::is_same_v<decltype(std::declval<emulated_global<float const>>()[0]), float>);
template <class T>
concept by_float = requires(T a) {
  a[1.5f];
};
static_assert(!by_float<emulated_global<float>>);

}  // namespace
}  // namespace kvpolicy_test
