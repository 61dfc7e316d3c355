// A policy with a scorer of the user's own runs through the session.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "decoding.hpp"
#include "kvpolicy/compose.hpp"
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
  constexpr policy preset{keep_all{}, keep{segments::pages{8}, pools::none{}, striped{}, budgets::tokens{80}, selectors::top{},
                                           windows::pages{.size = 8}, triggers::every_step{}}};
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

/// Turns the prompt's keys back, in layer 0; how far the furthest is from the first token's then, as a share of its length.
struct turns_back {
  static constexpr signals needs = signals::keys | signals::rotation;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  inline static double furthest = -1;

  std::int32_t unused = 0;

  struct memory : no_memory {
    static constexpr bool hears_prompts = true;
    template <class Archive>
    void archive(Archive&) {}
  };
  static memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void begin(Input const& input, Exec&) const {
    if (input.layer.value != 0) return;
    rotation const rope = input.prompt->rope;
    auto const keys = input.keys();
    auto const dim = static_cast<std::size_t>(keys.head_dim);
    REQUIRE(rope.pairs * 2 == keys.head_dim);
    std::vector<float> first(dim), key(dim);
    keys.load({0}, {0}, first);
    double length = 0;
    for (float const x : first) length += static_cast<double>(x) * static_cast<double>(x);
    for (std::int64_t t = 1; t < keys.tokens; ++t) {
      keys.load({0}, {t}, key);
      double distance = 0;
      for (std::int64_t i = 0; i < rope.pairs; ++i) {
        bool const halves = rope.how == rotation::pairing::halves;
        auto const a = static_cast<std::size_t>(halves ? i : 2 * i);
        auto const b = static_cast<std::size_t>(halves ? i + rope.pairs : 2 * i + 1);
        double const angle = static_cast<double>(t) * static_cast<double>(rope.inverse_frequency[i]);
        double const x = std::cos(angle) * static_cast<double>(key[a]) + std::sin(angle) * static_cast<double>(key[b]);
        double const y = std::cos(angle) * static_cast<double>(key[b]) - std::sin(angle) * static_cast<double>(key[a]);
        distance += std::pow(x - static_cast<double>(first[a]), 2) + std::pow(y - static_cast<double>(first[b]), 2);
      }
      furthest = std::max(furthest, std::sqrt(distance / length));
    }
  }

  template <class Input, executor Exec>
  void score(Input const&, table<float> out, Exec&) const {
    for (std::int64_t head = 0; head < out.rows; ++head) std::fill_n(out.row(head), out.columns, 0.0f);
  }
};

// One token again and again: in the first layer its keys differ by their positions alone.
TEST_CASE("the rotation that a policy is told turns keys back to what they were at the first position") {
  model_owner const model = tiny_llama();
  turns_back::furthest = -1;
  session policy(retrieve(turns_back{}, {.tokens = 40}));
  decoder ours(model.get(), &policy);
  ours.feed(token_list(300, 7));
  ours.feed(7);
  CHECK(turns_back::furthest >= 0);
  CHECK(turns_back::furthest < .01);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
