// Blocks are taken from below, shared, given back, and never more than the limit.
#include "kvpolicy/store/block_arena.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstring>
#include <fstream>
#include <string>

namespace kvpolicy {
namespace {

/// Of this process, in bytes.
std::int64_t resident_memory() {
  std::ifstream status("/proc/self/statm");
  std::int64_t pages = 0;
  status >> pages >> pages;
  return pages * 4096;
}

TEST_CASE("an arena gives its lowest blocks, each to as many holders as wished, up to its limit", "[store]") {
  block_arena arena(100, 3);
  CHECK(arena.take() == 0);
  CHECK(arena.take() == 1);
  CHECK(arena.take() == 2);
  CHECK(arena.held() == 3);
  CHECK_THROWS_WITH(arena.take(), Catch::Matchers::ContainsSubstring("0 of 3 are free"));
  CHECK_NOTHROW(arena.expect(0));
  arena.hold(1);
  CHECK(arena.is_shared(1));
  arena.release(1);
  CHECK_FALSE(arena.is_shared(1));
  CHECK(arena.held() == 3);
  arena.release(1);
  arena.release(0);
  CHECK(arena.held() == 1);
  CHECK(arena.most_held() == 3);
  CHECK(arena.take() == 0);
  CHECK(arena.take() == 1);
}

TEST_CASE("an arena of impossible size is refused", "[store]") {
  for (auto const& [bytes, blocks] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                      {1, 0},
                                      {-1, 5},
                                      {5, -1},
                                      {std::int64_t{1} << 40, std::int64_t{1} << 20},
                                      {1, std::int64_t{1} << 40}}) {
    CHECK_THROWS_AS(block_arena(bytes, blocks), invalid_value);
  }
}

TEST_CASE("blocks that are given back are the system's, whatever their size, and their neighbours stay as they are",
          "[store]") {
  for (std::int64_t const bytes : {std::int64_t{16384}, std::int64_t{8704}, std::int64_t{1000}}) {
    CAPTURE(bytes);
    std::int64_t const blocks = (std::int64_t{64} << 20) / bytes;
    block_arena arena(bytes, blocks);
    std::int64_t const before = resident_memory();
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::memset(arena.base() + arena.take() * bytes, static_cast<int>(b % 251 + 1), static_cast<std::size_t>(bytes));
    }
    CHECK(resident_memory() - before > std::int64_t{60} << 20);
    for (std::int64_t b = 0; b < blocks; ++b) {
      if (b % 50 != 0) arena.release(static_cast<std::int32_t>(b));
    }
    CHECK(resident_memory() - before < std::int64_t{16} << 20);
    bool same = true;
    for (std::int64_t b = 0; b < blocks; b += 50) {
      for (std::int64_t i = 0; i < bytes; ++i)
        same = same && arena.base()[b * bytes + i] == static_cast<std::byte>(b % 251 + 1);
    }
    CHECK(same);
  }
}

}  // namespace
}  // namespace kvpolicy
