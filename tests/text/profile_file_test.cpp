#include "profile_file.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

/// Two layers of three heads, as the authors of HeteroCache write them.
std::string analysis(std::string const& roles = "[[4, 3, 1], [2, 3, 4]]",
                     std::string const& parts = "[[0.5, -1.0, 1.0], [-1.0, -1.0, 2.0]]",
                     std::string const& leaders = R"([{"1": [0]}, {"1": [2]}])") {
  return R"({"meta": {"counts": {}}, "classification_matrix": )" + roles + R"(, "allocation_matrix": )" + parts +
         R"(, "leader_member_relations": )" + leaders + "}";
}

TEST_CASE("the roles that HeteroCache's authors publish are read: classes, parts of the budget, who follows whom", "[text]") {
  profile_file const read = parse_profile(analysis(), "theirs.json");
  CHECK(read.layers == 2);
  CHECK(read.kv_heads == 3);
  std::vector<head_profile> const wanted{{head_role::satellite, 1, 1.f}, {head_role::pivot, -1, 0.f},
                                         {head_role::anchor, -1, .5f},   {head_role::shifting, -1, 0.f},
                                         {head_role::pivot, -1, 0.f},    {head_role::satellite, 1, .25f}};
  CHECK(read.heads == wanted);  // parts of the budget are as 1 / stability
  CHECK(parse_profile(to_json(read), "again").heads == wanted);
}

TEST_CASE("published roles that do not fit are refused, and the place is named", "[text]") {
  auto const refused = [](std::string const& text, char const* why) {
    CHECK_THROWS_WITH(parse_profile(text, "theirs.json"), ContainsSubstring("profile 'theirs.json'") && ContainsSubstring(why));
  };
  refused(analysis("[[4, 3, 1]]"), "has 1 layers of roles, 2 of parts and 2 of leaders");
  refused(analysis("[]", "[]", "[]"), "has 0 layers of roles");
  refused(analysis("[[4, 3, 1], [2, 3]]"), "layer 1: 2 roles and 3 parts; the first layer has 3");
  refused(analysis("[[4, 3, 5], [2, 3, 4]]"), "layer 0, head 2 is of class 5; there are 1 to 4");
  refused(analysis("[[4, 3, 1.5], [2, 3, 4]]"), "the class is 1.5; it must be a whole number");
  refused(analysis("[[4, 3, 1], [2, 3, 4]]", "[[0.5, -1.0, 0.0], [-1.0, -1.0, 2.0]]"), "its part of the budget is 0.000000");
  refused(analysis("[[4, 3, 1], [2, 3, 4]]", "[[0.5, -1.0, NaN], [-1.0, -1.0, 2.0]]"), "can't be read as JSON");
  refused(analysis("[[4, 3, 1], [2, 3, 4]]", "[[0.5, -1.0, null], [-1.0, -1.0, 2.0]]"), "can't be read as JSON");
  refused(analysis("[[4, 3, 1], [2, 3, 4]]", "[[0.5, -1.0, 1.0], [-1.0, -1.0, 2.0]]", R"([{"7": [0]}, {"1": [2]}])"),
          "leader '7' is none of its 3 heads");
  refused(analysis("[[4, 3, 1], [2, 3, 4]]", "[[0.5, -1.0, 1.0], [-1.0, -1.0, 2.0]]", R"([{"1": [2]}, {"1": [2]}])"),
          "head 2 follows head 1, and is no satellite");
  refused(analysis("[[4, 3, 1], [2, 3, 4]]", "[[0.5, -1.0, 1.0], [-1.0, -1.0, 2.0]]", R"([{}, {"1": [2]}])"),
          "head 0: its pivot -1 is none");
  refused(analysis("[[4, 3, 1], [2, 3, 4]]", "[[0.5, -1.0, 1.0], [-1.0, -1.0, 2.0]]", R"([{"2": [0]}, {"1": [2]}])"),
          "head 0: its pivot 2 is none");
}

}  // namespace
}  // namespace kvpolicy
