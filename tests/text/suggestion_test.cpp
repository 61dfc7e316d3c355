#include "kvpolicy/text/suggestion.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace kvpolicy;

TEST_CASE("the distance of two words is the fewest letters to add, take away or change") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("quest", "quest") == 0);
  CHECK(edit_distance("tokns", "tokens") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("sitting", "kitten") == 3);
}

TEST_CASE("an unknown name is told the nearest one, if one is near, and all that there are") {
  std::string const near = unknown("parameter", "tokns", {"page", "tokens"}).what();
  CHECK(near == "unknown parameter 'tokns'; did you mean 'tokens'? There are: page, tokens");
  std::string const far = unknown("policy", "zzzzzzzzzzzz", {"full", "quest"}).what();
  CHECK(far == "unknown policy 'zzzzzzzzzzzz'; There are: full, quest");
  std::string const none = unknown("parameter", "tokens", {}).what();
  CHECK(none == "unknown parameter 'tokens'; there are none");
}
