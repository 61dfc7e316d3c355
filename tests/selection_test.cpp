#include "kvpolicy/selection.hpp"

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <string>

#include "conformance/random_cache.hpp"

namespace kvpolicy_test {
namespace {

TEST_CASE("append clips, merges what has the same reason, and drops what is empty", "[selection]") {
  range_list list;
  append(list, 3, 3, reason::sink);
  REQUIRE(list.empty());
  append(list, 0, 4, reason::sink);
  append(list, 2, 6, reason::sink);
  append(list, 6, 8, reason::scored);
  append(list, 5, 7, reason::recent);
  append(list, 12, 9, reason::recent);
  append(list, 10, 12, reason::scored);
  REQUIRE(list == range_list{{0, 6, reason::sink}, {6, 8, reason::scored}, {10, 12, reason::scored}});
  REQUIRE(token_count(list) == 10);
}

TEST_CASE("append and truncate do as a token-by-token list would", "[selection]") {
  random_source random(181);
  for (int round = 0; round < 2000; ++round) {
    range_list list;
    std::map<std::int64_t, reason> tokens;
    std::int64_t end = 0;
    for (int i = 0; i < 12; ++i) {
      if (random.one_in(5)) {
        end = random.between(0, end + 3);
        truncate(list, end);
        tokens.erase(tokens.lower_bound(end), tokens.end());
        end = tokens.empty() ? 0 : tokens.rbegin()->first + 1;
      } else {
        std::int64_t const begin = std::max<std::int64_t>(0, end + random.between(-3, 4));
        std::int64_t const last = begin + random.between(-1, 6);
        auto const why = static_cast<reason>(random.between(0, 3));
        append(list, begin, last, why);
        for (std::int64_t t = std::max(begin, end); t < last; ++t) tokens[t] = why;
        end = std::max(end, tokens.empty() ? 0 : tokens.rbegin()->first + 1);
      }
      std::map<std::int64_t, reason> listed;
      for (std::size_t r = 0; r < list.size(); ++r) {
        REQUIRE(list[r].size() > 0);
        bool const one = r > 0 && list[r - 1].end == list[r].begin && list[r - 1].why == list[r].why;
        REQUIRE_FALSE(one);
        for (std::int64_t t = list[r].begin; t < list[r].end; ++t) listed[t] = list[r].why;
      }
      REQUIRE(listed == tokens);
      REQUIRE(token_count(list) == std::ssize(tokens));
    }
  }
}

TEST_CASE("a selection counts over the layer's KV heads, whatever its scope", "[selection]") {
  std::vector<range_list> const one{{{0, 4, reason::sink}, {10, 13, reason::scored}}};
  for (scope const granularity : {scope::request, scope::layer}) {
    selection const kept(granularity, one, 3);
    REQUIRE(kept.tokens() == 21);
    REQUIRE(&kept.of({2}) == &one[0]);
  }
  std::vector<range_list> const each{one[0], {{5, 6, reason::open}}};
  selection const kept(scope::head, each, 2);
  REQUIRE(kept.tokens() == 8);
  REQUIRE(&kept.of({1}) == &each[1]);
  REQUIRE(selection{}.tokens() == 0);
}

TEST_CASE("reasons and scopes have names", "[selection]") {
  REQUIRE(std::string(name_of(reason::sink)) + name_of(reason::scored) + name_of(reason::recent) + name_of(reason::open) ==
          "sinkscoredrecentopen");
  REQUIRE(std::string(name_of(scope::request)) + name_of(scope::layer) + name_of(scope::head) == "requestlayerhead");
}

}  // namespace
}  // namespace kvpolicy_test
