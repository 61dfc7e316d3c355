// A policy with a scorer of the user's own runs through the session.
#include <catch2/catch_test_macros.hpp>

#include "decoding.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

/// Every KV head likes another residue of the page's number best; no signal is read.
struct striped {
  static constexpr signals needs = signals::none;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::units;

  std::int32_t stripes = 4;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec&) const {
    for (std::int64_t head = 0; head < out.rows; ++head) {
      for (std::int64_t unit = 0; unit < out.columns; ++unit) {
        out(head, unit) = (unit + head + input.layer.value) % stripes == 0 ? 1.0f : 0.0f;
      }
    }
  }
};
static_assert(scorer<striped>);

TEST_CASE("a policy of the user's own runs through the session") {
  constexpr policy preset{keep_all{}, keep{segment::pages{8}, pool::none{}, striped{}, budget::tokens{80}, select::top{},
                                           window::pages{.size = 8}, trigger::every_step{}}};
  static_assert(serves<adapter, parts_t<decltype(preset)>>);
  model_owner const model = tiny_llama();
  std::vector<made_choice> choices;
  session policy(preset, recording(choices));
  decoder ours(model.get(), &policy);
  ours.feed(random_tokens(320));  // pages 0..39 are whole, the next token opens page 40
  ours.feed(random_tokens(1, 3));
  REQUIRE(choices.size() == 2);
  for (made_choice const& made : choices) {
    REQUIRE(made.lists.size() == 2);
    for (std::int64_t head = 0; head < 2; ++head) {
      range_list expected;
      std::int32_t pages = 0;
      for (std::int32_t page = 0; page < 40 && pages < 9; ++page) {
        if ((page + head + made.layer) % 4 != 0) continue;
        expected.push_back({page * 8, page * 8 + 8, reason::scored});
        ++pages;
      }
      expected.push_back({320, 321, reason::open});
      CHECK(made.lists[static_cast<std::size_t>(head)] == expected);
    }
  }
  CHECK(policy.last_step().tokens == 321);
  CHECK(policy.last_step().tokens_read == 73);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
