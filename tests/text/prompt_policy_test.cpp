#include "kvpolicy/text/prompt_policy.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace kvpolicy_test {
namespace {

using namespace kvpolicy;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("a prompt policy's text sets what it names and leaves the rest", "[text]") {
  prompt_pages const made = text::prompt_policy_of("pages:share=.25,page=64,metadata=range");
  CHECK(made.share == .25);
  CHECK(made.page == 64);
  CHECK(made.metadata == pools::bounds::kind::range);
  CHECK(made.recent == prompt_pages{}.recent);
  CHECK(text::print_parameters(text::prompt_policy_of("pages")) == text::print_parameters({}));
  CHECK(text::print_parameters(text::prompt_policy_of("pages:" + text::print_parameters(made))) ==
        text::print_parameters(made));
  CHECK_THAT(text::describe_prompt_policy(), ContainsSubstring("  share=0.3"));
}

TEST_CASE("a prompt policy's text that can't be read is refused by name", "[text]") {
  auto const refused = [](char const* given, char const* message) {
    CHECK_THROWS_AS(text::prompt_policy_of(given), invalid_value);
    CHECK_THROWS_WITH(text::prompt_policy_of(given), ContainsSubstring(message));
  };
  refused("page", "unknown prompt policy 'page'");
  refused("", "unknown prompt policy ''");
  refused("pages:shar=.2", "'shar'; did you mean 'share'?");
  refused("pages:share=x", "share is 'x'; it must be a");
  refused("pages:share", "share is ''; it must be a");
  refused("pages:page=1.5", "page is '1.5'; it must be a");
  refused("pages:share=.1,share=.2", "share is given twice");
  refused("pages:metadata=mean", "metadata is 'mean'; it must be");
}

}  // namespace
}  // namespace kvpolicy_test
