#include "cuda/emulator/small_body.hpp"

namespace kvpolicy_test {
namespace {

struct half_skips : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const&) {
    if (block.thread() % 2 == 0) block.sync();
  }
};
struct early_exit : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    if (block.thread() == a.n) return;
    block.sync();
    block.sync();
  }
};
struct early_exit_of_lane : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const&) {
    if (block.thread() == 33) return;
    block.tile().sync();
  }
};
struct two_sites : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const&) {
    if (block.thread() < 32) block.sync();
    else block.sync();
  }
};
struct data_dependent : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const in = block.global(a.in);
    for (float x = in [block.thread()]; x > 60; x -= 1) block.sync();
  }
};
struct two_kinds : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const&) {
    std::int32_t total = 0;
    if (block.thread() < 32) block.sync();
    else (void)block.exclusive_sum(s.scan, 1, total);
  }
};
struct two_storages : small_body<64> {
  template <class B>
  struct shared {
    typename B::template scan_storage<std::int32_t> scan[2];
  };
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const&) {
    std::int32_t total = 0;
    (void)block.exclusive_sum(s.scan[block.thread() / 32], 1, total);
  }
};
struct divergent_tile : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const&) {
    auto const tile = block.tile();
    if (tile.lane() < 16) (void)tile.shfl_xor(1, 1);
    else (void)tile.shfl_xor(1, 2);
  }
};
struct tile_and_block : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const&) {
    if (block.thread() % 2 == 0) block.tile().sync();
    else block.sync();
  }
};
struct warps_in_turn : small_body<64> {
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const tile = block.tile();
    std::uint32_t const all = tile.index() == 0 ? tile.ballot(true) : tile.ballot(tile.lane() % 2 == 0);
    if (tile.lane() == 0) block.global(a.counts)[tile.index()] = static_cast<std::int32_t>(all >> 1);
  }
};

TEST_CASE("threads that meet at different places have diverged", "[cuda][emulator]") {
  require_error<two_sites>("divergence");
  require_error<two_kinds>("divergence");
  require_error<two_storages>("divergence");
  require_error<divergent_tile>("divergence");
  require_error<tile_and_block>("divergence");
}

TEST_CASE("a thread that returns while others wait has exited early", "[cuda][emulator]") {
  require_error<half_skips>("exited early");
  require_error<early_exit>("exited early", {}, 0);
  require_error<early_exit>("exited early", {2}, 63);
  require_right<early_exit>([](auto const&) {}, {3}, 64);
  require_error<early_exit_of_lane>("exited early");
  require_error<data_dependent>("exited early");
}

TEST_CASE("warps may go different ways", "[cuda][emulator]") {
  require_right<warps_in_turn>([](fixture const& memory) {
    REQUIRE(memory.counts[0] == 0x7fffffff);
    REQUIRE(memory.counts[1] == 0x2aaaaaaa);
  });
}

}  // namespace
}  // namespace kvpolicy_test
