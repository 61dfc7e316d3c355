#include "kvpolicy/scorers/window_attention.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"

namespace kvpolicy {
namespace {

/// Six tokens of one channel under one head, and as many queries as a case records.
struct observed {
  std::array<float, 6> keys{.1f, -.3f, .7f, .2f, -.5f, .4f};
  std::array<float, 4> queries{.9f, -.8f, .5f, 1.1f};
  byte_strides strides{.layer = 24, .head = 4, .token = 4, .dim = 4};
  strided_view<> view{{1, 1, 1, 1, 8, element_type::f32}, 6, base(), base(), strides, strides};
  pools::none::summaries nothing;
  no_memory memory;
  host_exec exec;

  std::byte const* base() const { return reinterpret_cast<std::byte const*>(keys.data()); }
  using input_type = score_input<strided_view<>, pools::none::summaries, no_memory>;
  std::vector<float> scores(std::int32_t window, std::int64_t recorded, std::int64_t columns, bool include_window = false) {
    prompt_signals const prompt{.queries = {queries.data() + 4 - recorded, recorded, 1, 1, 1, 1}};
    input_type const input{view, {0}, {0, 1}, 6, 6, nothing, memory, {}, &prompt};
    std::vector<float> out(8, -1.0f);
    scorers::window_attention{.window = window, .smooth = {}, .include_window = include_window}.score(
        input, table<float>{out.data(), 1, columns, 8}, exec);
    return out;
  }
};

TEST_CASE("of a longer record only the last queries count", "[score]") {
  observed once;
  REQUIRE(once.scores(2, 4, 4) == once.scores(2, 2, 4));
  REQUIRE(once.scores(3, 4, 3) != once.scores(2, 4, 3));
  REQUIRE(once.scores(all_queries, 4, 2) == once.scores(4, 4, 2));
}

TEST_CASE("window attention without queries, or beside its window, is refused", "[score]") {
  observed once;
  REQUIRE_THROWS_AS(once.scores(2, 0, 4), unsupported);
  REQUIRE_THROWS_AS(once.scores(3, 4, 5), invalid_value);  // token 4 is inside the window: it has no score
  observed::input_type const decoding{once.view, {0}, {0, 1}, 6, 6, once.nothing, once.memory, {}, nullptr};
  std::array<float, 8> out{};
  REQUIRE_THROWS_AS(scorers::window_attention{}.score(decoding, table<float>{out.data(), 1, 4, 8}, once.exec), unsupported);
}

TEST_CASE("a window that competes scores 1 above the best token before it, and ties with itself", "[score]") {
  observed once;
  std::vector<float> const before = once.scores(2, 4, 4);
  std::vector<float> const with = once.scores(2, 4, 6, true);
  float const most = *std::max_element(before.begin(), before.begin() + 4);
  REQUIRE(std::equal(before.begin(), before.begin() + 4, with.begin()));
  REQUIRE(with[4] == most + 1);
  REQUIRE(with[5] == most + 1);
  REQUIRE(with[6] == -1.0f);
}

}  // namespace
}  // namespace kvpolicy
