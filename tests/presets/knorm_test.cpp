#include "kvpolicy/presets/knorm.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/presets/keydiff.hpp"
#include "kvpolicy/scorers/key_norm.hpp"
#include "kvpolicy/scorers/key_similarity.hpp"

namespace kvpolicy {
namespace {

/// What is read at the first step after a prompt of all rows but the last; one head of two channels.
template <class Policy, std::size_t Floats>
range_list read_of(Policy const& policy, std::array<float, Floats> const& keys) {
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  std::int64_t const tokens = Floats / 2;
  byte_strides const strides{.layer = 8 * tokens, .head = 8 * tokens, .token = 8, .dim = 4};
  auto const view = [&](std::int64_t n) {
    return strided_view<>{{1, 1, 1, 2, tokens, element_type::f32}, n, base, base, strides, strides};
  };
  host_exec exec;
  auto state = start(policy, view(tokens).shape());
  state.prefill(view(tokens - 1), {0}, {}, exec);
  return state.choose(view(tokens), {0}, {}, exec).of({0});
}

// Norms 5, 1, 13, 1, 2, 10, and the step's own token.
TEST_CASE("knorm keeps the keys of the smallest norms, then all that is generated", "[presets]") {
  std::array<float, 14> const keys{3, 4, 0, -1, 5, 12, 1, 0, 2, 0, 6, 8, 99, 99};
  CHECK(read_of(presets::knorm{.tokens = 2}, keys) ==
        range_list{{1, 2, reason::scored}, {3, 4, reason::scored}, {6, 7, reason::open}});
  CHECK(read_of(presets::knorm{.tokens = 1}, keys).front() == token_range{1, 2, reason::scored});  // of equals, the first
  CHECK(read_of(presets::knorm{.tokens = 3, .sinks = 1, .recent = 1}, keys) ==
        range_list{{0, 1, reason::sink}, {1, 2, reason::scored}, {5, 6, reason::recent}, {6, 7, reason::open}});
}

// Directions: right, right, up, right, left; their mean points right and a little up. Furthest from it: left, then up.
TEST_CASE("keydiff keeps the keys that resemble the others least, whatever their norms", "[presets]") {
  std::array<float, 12> const keys{1, 0, 7, 0, 0, 9, 2, 0, -5, 0, 1, 1};
  CHECK(read_of(presets::keydiff{.tokens = 1}, keys) == range_list{{4, 5, reason::scored}, {5, 6, reason::open}});
  CHECK(token_count(read_of(presets::keydiff{.tokens = 2}, keys)) == 3);
  CHECK(read_of(presets::keydiff{.tokens = 2}, keys).front() == token_range{2, 3, reason::scored});
}

}  // namespace
}  // namespace kvpolicy
