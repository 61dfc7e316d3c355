#include "kvpolicy/primitive/overlap.hpp"

#include <catch2/catch_test_macros.hpp>
#include <set>

#include "conformance/random_cache.hpp"

namespace kvpolicy_test {
namespace {

TEST_CASE("overlap counts what two sets have in common", "[primitive]") {
  random_source random(56);
  for (int round = 0; round < 3000; ++round) {
    std::int64_t const most = random.between(0, 40);
    std::set<std::int32_t> a;
    std::set<std::int32_t> b;
    for (std::int64_t i = random.between(0, 30); i > 0; --i) a.insert(static_cast<std::int32_t>(random.between(-2, most)));
    for (std::int64_t i = random.between(0, 30); i > 0; --i) b.insert(static_cast<std::int32_t>(random.between(-2, most)));
    std::int64_t want = 0;
    for (std::int32_t const x : a) want += b.contains(x) ? 1 : 0;
    std::vector<std::int32_t> const first(a.begin(), a.end());
    std::vector<std::int32_t> const second(b.begin(), b.end());
    REQUIRE(overlap(first, second) == want);
    REQUIRE(overlap(second, first) == want);
    REQUIRE(overlap(first, first) == std::ssize(first));
    REQUIRE(overlap(first, {}) == 0);
  }
}

}  // namespace
}  // namespace kvpolicy_test
