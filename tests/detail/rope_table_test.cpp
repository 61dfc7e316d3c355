#include "kvpolicy/detail/rope_table.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

namespace kvpolicy {
namespace {

constexpr cache_shape shape{.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 6, .max_tokens = 9};
constexpr std::array<float, 2> frequency{1.f, .25f};  // the last two channels are not rotated

bool close(float a, float b) { return std::abs(a - b) < 1e-6f; }

TEST_CASE("an embedding is known once it was told, and taken again only where it is another") {
  rope_table rope;
  rope.reserve(shape.max_tokens);
  REQUIRE_FALSE(rope.known);
  REQUIRE(rope.get().angles == nullptr);
  REQUIRE(rope.take({frequency.data(), 2}));
  REQUIRE(rope.known);
  REQUIRE_FALSE(rope.take({frequency.data(), 2}));
  REQUIRE(rope.take({frequency.data(), 2, rotation::pairing::neighbours}));
  REQUIRE(rope.get().how == rotation::pairing::neighbours);
  REQUIRE(rope.take({frequency.data(), 1, rotation::pairing::neighbours}));
  REQUIRE(rope.get().pairs == 1);
  REQUIRE(close(rope.get().angles[8 * 2], std::cos(8.f)));
  REQUIRE(close(rope.get().angles[8 * 2 + 1], std::sin(8.f)));
}

TEST_CASE("an embedding that is known has angles of more tokens when there are more") {
  rope_table rope;
  rope.reserve(2);
  rope.take({frequency.data(), 2});
  rope.reserve(9);
  REQUIRE(close(rope.get().angles[8 * 4], std::cos(8.f)));
  rope.reserve(3);  // none are taken away
  REQUIRE(rope.room == 9);
}

TEST_CASE("keys without an embedding are not rotated") {
  rope_table rope;
  rope.reserve(shape.max_tokens);
  REQUIRE(rope.take({}));
  REQUIRE(rope.known);
  REQUIRE(rope.get().angles == nullptr);
}

TEST_CASE("a row is turned as its pairs say, and back") {
  for (rotation::pairing const how : {rotation::pairing::halves, rotation::pairing::neighbours}) {
    rope_table rope;
    rope.reserve(shape.max_tokens);
    rope.take({frequency.data(), 2, how});
    std::vector<float> const given{1, 2, 3, 4, 5, 6};
    std::vector<float> row = given;
    rope.get().redo(8, row.data());
    std::array<std::size_t, 2> const pair =
        how == rotation::pairing::halves ? std::array<std::size_t, 2>{1, 3} : std::array<std::size_t, 2>{2, 3};
    float const angle = 8 * frequency[1];
    REQUIRE(close(row[pair[0]], std::cos(angle) * given[pair[0]] - std::sin(angle) * given[pair[1]]));
    REQUIRE(close(row[pair[1]], std::sin(angle) * given[pair[0]] + std::cos(angle) * given[pair[1]]));
    REQUIRE(row[4] == 5);
    REQUIRE(row[5] == 6);
    rope.get().undo(8, row.data());
    for (std::size_t i = 0; i < row.size(); ++i) REQUIRE(std::abs(row[i] - given[i]) < 1e-5f);
  }
}

}  // namespace
}  // namespace kvpolicy
