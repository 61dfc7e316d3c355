#include "kvpolicy/scorers/last_attention.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/rule.hpp"

namespace kvpolicy {
namespace {

/// Two KV heads of one channel, three tokens: head 0 has the keys 0, 0, 0 and head 1 log 1, log 2, log 3. The query is 1.
struct observed {
  std::array<float, 6> keys{0, 0, 0, 0, std::log(2.0f), std::log(3.0f)};
  std::array<float, 2> queries{1, 1};
  byte_strides strides{.layer = 24, .head = 12, .token = 4, .dim = 4};
  strided_view<> view{{1, 2, 2, 1, 8, element_type::f32}, 3, base(), base(), strides, strides};
  pools::none::summaries nothing;
  scorers::last_attention::memory memory = scorers::last_attention{}.start(view.shape());
  host_exec exec;
  using input_type = score_input<strided_view<>, pools::none::summaries, scorers::last_attention::memory>;

  std::byte const* base() const { return reinterpret_cast<std::byte const*>(keys.data()); }
  /// Scores of the tokens before the last, for the heads named; two rows of 4, of which those that are not written keep 7.
  std::array<float, 8> scores(head_range heads, bool at_prompt) {
    prompt_signals const prompt{.queries = {queries.data(), 1, 2, 2, 1, 1}};
    query_heads const own{queries.data() + heads.first, heads.count, 1, 1};
    input_type const input{
        view, {0}, heads, 3, 3, nothing, memory, at_prompt ? query_heads{} : own, at_prompt ? &prompt : nullptr};
    std::array<float, 8> out{7, 7, 7, 7, 7, 7, 7, 7};
    scorers::last_attention{}.score(input, table<float>{out.data(), heads.count, 2, 4}, exec);
    return out;
  }
};

bool near(float got, double want) { return std::abs(got - want) < 1e-6; }

/// Head 0's two scores are the same; head 1's second is twice its first.
void require_scores(bool at_prompt, double same, double first) {
  observed once;
  std::array const both = once.scores({0, 2}, at_prompt);
  REQUIRE(near(both[0], same));
  REQUIRE(near(both[1], same));
  REQUIRE(near(both[4], first));
  REQUIRE(near(both[5], 2 * first));
  REQUIRE(both[2] == 7);
}

TEST_CASE("at the prompt's end the last query's attention is over all that it sees, itself included", "[score]") {
  require_scores(true, 1.0 / 3, 1.0 / 6);
}

TEST_CASE("while decoding the current query's attention is over the tokens that are scored alone", "[score]") {
  require_scores(false, 1.0 / 2, 1.0 / 3);
}

TEST_CASE("of one head only its own attention is written", "[score]") {
  observed once;
  for (bool const at_prompt : {false, true}) {
    std::array const second = once.scores({1, 1}, at_prompt);
    INFO("at the prompt: " << at_prompt);
    REQUIRE(near(second[0], at_prompt ? 1.0 / 6 : 1.0 / 3));
    REQUIRE(near(second[1], at_prompt ? 2.0 / 6 : 2.0 / 3));
    for (std::size_t i = 2; i < 8; ++i) REQUIRE(second[i] == 7);
  }
}

TEST_CASE("during decoding the weights are over what is still there", "[score]") {
  observed once;
  std::array const lists{range_list{{0, 1, reason::scored}, {2, 3, reason::open}}, range_list{{1, 3, reason::scored}}};
  std::array<float, 4> out{};
  observed::input_type const input{once.view, {0}, {0, 2}, 3, 3, once.nothing, once.memory, {once.queries.data(), 2, 1, 1}};
  scorers::last_attention{}.score_kept(input, lists, table<float>{out.data(), 2, 2, 2}, once.exec);
  REQUIRE(near(out[0], .5));
  REQUIRE(near(out[1], .5));
  REQUIRE(near(out[2], .4));
  REQUIRE(near(out[3], .6));
}

}  // namespace
}  // namespace kvpolicy
