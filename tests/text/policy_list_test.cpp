#include "kvpolicy/text/policy_list.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

#include "kvpolicy/presets/h2o.hpp"
#include "kvpolicy/presets/kvzip.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/text/draft.hpp"
#include "kvpolicy/text/plugin.hpp"

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

host_policy_list some() {
  host_policy_list made;
  made.add(named<presets::snapkv>("snapkv", "one"));
  made.add(named<presets::quest>("quest", "two"));
  made.add(named<presets::h2o>("h2o", "three"));
  made.add(named<presets::kvzip>("kvzip", "four"));
  return made;
}

void refused(std::string const& text, std::string const& why) {
  INFO(text);
  REQUIRE_THROWS_MATCHES(some().parse(text), invalid_value, MessageMatches(ContainsSubstring(why)));
}

TEST_CASE("text sets parameters, behind a setting, and two names are a retain and a retrieve", "[text]") {
  auto const one = some().parse("quest:paper,tokens=64,group=maximum,trigger=every:6");
  REQUIRE(one.parameters ==
          "tokens=64,page=16,sink_pages=0,recent_pages=1,metadata=range,group=maximum,dense_first=2,reuse=1,after=0,"
          "next_step=0,trigger=every:6");
  CHECK_THAT(some().parse("kvzip:paper").parameters, ContainsSubstring("ratio=0.7"));
  CHECK_THAT(some().parse("kvzip:paper,tokens=64").parameters, !ContainsSubstring("ratio="));
  auto const two = some().parse("snapkv:tokens=64+quest:tokens=32");
  REQUIRE(two.name == "snapkv+quest");
  REQUIRE_FALSE(requirements_of(two.policy.retain).keeps_all);
  REQUIRE_FALSE(requirements_of(two.policy.retrieve).keeps_all);
}

TEST_CASE("text that says nothing, twice, or what can't be, is refused by name", "[text]") {
  refused("snapkv+quest:after=4", "the second policy sets after; set it for snapkv instead");
  refused("qest", "did you mean 'quest'");
  refused("quest:token=5", "did you mean 'tokens'");
  refused("quest:tokens", "tokens needs a value");
  refused("quest:tokens=1,tokens=2", "given twice");
  refused("quest:tokens=1,ratio=.5", "in place of tokens");
  refused("quest:tokens=1,paper", "put it first");
  refused("quest:paper=1", "it has no value");
  refused("quest:trigger=entropy:nan", "entropy:NATS");
  refused("h2o:recent_share=-1", "a number from 0");
  refused("h2o:recent_share=inf", "a number from 0");
  refused("h2o:reduce=maximum", "it must be sum or mean");
  refused("quest+snapkv", "retains nothing");
}

TEST_CASE("a name is taken once, and is one that text can say", "[text]") {
  host_policy_list list = some();
  REQUIRE_THROWS_AS(list.add(named<presets::quest>("quest", "again")), invalid_value);
  REQUIRE_THROWS_AS(list.add(named<presets::quest>("my quest", "a blank")), invalid_value);
  REQUIRE(list.names() == std::vector<std::string>{"snapkv", "quest", "h2o", "kvzip"});
}

}  // namespace
}  // namespace kvpolicy
