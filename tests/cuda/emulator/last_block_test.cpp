// Blocks that wait for none, and the last of them.
#include <catch2/catch_test_macros.hpp>

#include "cuda/emulator/small_body.hpp"

namespace kvpolicy_test {
namespace {

/// Each block brings a number; who comes last adds them up. With n: 1 before they have come, 2 what was brought after.
struct last_adds_up : small_body<64> {
  template <class B>
  struct shared {
    typename B::last_storage last;
  };
  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const out = block.global(a.out);
    if (block.thread() == 0 && a.n != 2) out[block.x()] = static_cast<float>(block.x() + 1);
    bool const last = block.last_of(s.last, a.counts, 3, a.n == 3 ? 9 : 8);
    if (block.thread() == 0 && a.n == 2) out[block.x()] = static_cast<float>(block.x() + 1);
    if (block.thread() != 0 || (!last && a.n != 1)) return;
    float sum = 0;
    for (unsigned i = 0; i < 8; ++i) {
      float const one = out[i];
      sum += one;
    }
    out[100 + block.x()] = sum;
  }
};

TEST_CASE("the last block sees what the others wrote before they came, and leaves its counter at 0", "[cuda][emulator]") {
  require_right<last_adds_up>(
      [](fixture const& memory) {
        float sum = 0;
        for (std::size_t i = 100; i < 108; ++i) sum += memory.out[i];
        REQUIRE(sum == 36);
        REQUIRE(memory.counts[3] == 0);
      },
      {8, 1, 1});
}

TEST_CASE("what others wrote is a race for all but the last block, and for the last what they wrote after they came",
          "[cuda][emulator]") {
  require_error<last_adds_up>("race", {8, 1, 1}, 1);
  require_error<last_adds_up>("race", {8, 1, 1}, 2);
}

TEST_CASE("a counter that is not counted to its end, or was not 0, is an error", "[cuda][emulator]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    REQUIRE_THAT(error_of<last_adds_up>(seed, {8, 1, 1}, 3),
                 ContainsSubstring("8 blocks have come to a counter, and no last one"));
    fixture memory;
    memory.counts[3] = 1;
    gpu_emulator device(seed);
    REQUIRE_THROWS_WITH(device.launch<last_adds_up>({8, 1, 1}, memory.arguments<last_adds_up>(0)),
                        ContainsSubstring("counter"));
  }
}

}  // namespace
}  // namespace kvpolicy_test
