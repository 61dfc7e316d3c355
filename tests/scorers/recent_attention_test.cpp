#include "kvpolicy/scorers/recent_attention.hpp"

#include <catch2/catch_test_macros.hpp>
#include <vector>

namespace kvpolicy {
namespace {

constexpr cache_shape shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 3, .max_tokens = 50};

/// Adds the queries of a token, all of them the token's number.
void add(scorers::recent_attention::memory& to, std::int64_t token) {
  std::vector<float> const queries(12, static_cast<float>(token));
  to.add({1}, token, 0, {queries.data(), 4, 3, .5f});
}
std::vector<float> known(scorers::recent_attention::memory& of) {
  std::vector<float> made;
  for (std::int64_t t = of.layers[1].begin; t < of.layers[1].end; ++t) made.push_back(of.row({1}, t)[11]);
  return made;
}

TEST_CASE("recent_attention remembers the last queries of a layer, and forgets those of a tail that was cut") {
  auto memory = scorers::recent_attention{.window = 3}.start(shape);
  for (std::int64_t t = 10; t < 17; ++t) add(memory, t);
  CHECK(known(memory) == std::vector<float>{14, 15, 16});
  CHECK(memory.layers[0].end == 0);
  memory.truncate(16);
  CHECK(known(memory) == std::vector<float>{14, 15});
  add(memory, 16);
  CHECK(known(memory) == std::vector<float>{14, 15, 16});
  memory.truncate(12);  // before all that is known
  CHECK(known(memory).empty());
  add(memory, 12);
  CHECK(known(memory) == std::vector<float>{12});
  add(memory, 30);  // tokens between them were not seen
  CHECK(known(memory) == std::vector<float>{30});
}

TEST_CASE("recent_attention takes a token's queries head by head, and once more") {
  auto memory = scorers::recent_attention{.window = 2}.start(shape);
  add(memory, 5);
  std::vector<float> const first(6, 1.0f);
  std::vector<float> const second(6, 2.0f);
  memory.add({1}, 6, 0, {first.data(), 2, 3, 1});
  memory.add({1}, 6, 2, {second.data(), 2, 3, 1});
  CHECK(known(memory) == std::vector<float>{5, 2});
  CHECK(memory.row({1}, 6)[0] == 1);
  add(memory, 6);
  CHECK(known(memory) == std::vector<float>{5, 6});
}

}  // namespace
}  // namespace kvpolicy
