#include "kvpolicy/scorers/pivot_attention.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/rule.hpp"

namespace kvpolicy {
namespace {

/// Three KV heads of one channel with two query heads each, three tokens. Keys of head 0 are 0, head 1's log 1, log 2, log 3,
/// head 2's log 3, log 2, log 1. Queries: 1 and 0 of each head. Head 1 is the pivot of head 0, head 2 stands alone.
struct observed {
  std::array<float, 9> keys{0, 0, 0, 0, std::log(2.0f), std::log(3.0f), std::log(3.0f), std::log(2.0f), 0};
  std::array<float, 6> queries{1, 0, 1, 0, 1, 0};
  std::array<head_profile, 3> heads{head_profile{.role = head_role::satellite, .pivot = 1},
                                    head_profile{.role = head_role::pivot}, head_profile{.role = head_role::anchor}};
  byte_strides strides{.layer = 36, .head = 12, .token = 4, .dim = 4};
  strided_view<> view{{1, 6, 3, 1, 8, element_type::f32}, 3, base(), base(), strides, strides};
  pools::none::summaries nothing;
  host_exec exec;

  std::byte const* base() const { return reinterpret_cast<std::byte const*>(keys.data()); }

  /// Scores of the first two tokens while decoding, of one head.
  std::array<float, 2> scores(std::int64_t head, scorers::pivot_attention part) {
    part.roles.heads = heads;
    part.roles.count = 2;
    auto memory = part.start(view.shape());
    using input_type = score_input<strided_view<>, pools::none::summaries, scorers::pivot_attention::memory>;
    query_heads const all{queries.data(), 6, 1, 1};
    input_type const step{view, {0}, {0, 3}, 3, 3, nothing, memory, all};
    part.watch(step, exec);
    input_type const input{view, {0}, {head, 1}, 3, 3, nothing, memory, {queries.data() + 2 * head, 2, 1, 1}};
    std::array<float, 2> out{};
    part.score(input, table<float>{out.data(), 1, 2, 2}, exec);
    return out;
  }
};

bool near(std::array<float, 2> const& got, double first, double second) {
  return std::abs(got[0] - first) < 1e-6 && std::abs(got[1] - second) < 1e-6;
}

// Of two tokens, head 1's query of 1 sees 1/3 and 2/3, its query of 0 a half each: mean 5/12 and 7/12, largest 1/2 and 2/3.
TEST_CASE("a satellite is scored by its pivot's query and keys", "[score]") {
  observed once;
  REQUIRE(near(once.scores(0, {}), 5.0 / 12, 7.0 / 12));
  REQUIRE(near(once.scores(1, {}), 5.0 / 12, 7.0 / 12));
  REQUIRE(near(once.scores(0, {.merged = group_merge::maximum}), 1.0 / 2, 2.0 / 3));
}

TEST_CASE("a head that follows nobody, and every head where that is asked for, is scored by its own", "[score]") {
  observed once;
  REQUIRE(near(once.scores(2, {}), (3.0 / 5 + .5) / 2, (2.0 / 5 + .5) / 2));
  REQUIRE(near(once.scores(0, {.own = true}), .5, .5));
  budgets::by_head_role const whole{.full_share = 0,
                                    .watch = budgets::by_head_role::watched::whole};  // no room for a whole pivot
  REQUIRE(near(once.scores(0, {.roles = whole}), .5, .5));
}

TEST_CASE("at the prompt's end a head is scored by its own attention, the group's mean or largest", "[score]") {
  observed once;
  scorers::pivot_attention part{};
  part.roles.heads = once.heads;
  using input_type = score_input<strided_view<>, pools::none::summaries, scorers::pivot_attention::memory>;
  prompt_signals const prompt{.queries = {once.queries.data(), 1, 6, 6, 1, 1}};
  for (bool const largest : {false, true}) {
    part.merged = largest ? group_merge::maximum : group_merge::mean;
    auto memory = part.start(once.view.shape());
    input_type const input{once.view, {0}, {1, 1}, 3, 3, once.nothing, memory, {}, &prompt};
    std::array<float, 2> out{};
    part.score(input, table<float>{out.data(), 1, 2, 2}, once.exec);
    // All three tokens are seen: 1/6, 2/6 and a third each.
    REQUIRE(near(out, largest ? 1.0 / 3 : (1.0 / 6 + 1.0 / 3) / 2, 1.0 / 3));
  }
}

}  // namespace
}  // namespace kvpolicy
