// Under every failed test case: the command that runs it again with the same random cases. rapidcheck prints its own seeds.
#include <unistd.h>

#include <catch2/catch_test_case_info.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>

namespace {

/// A test's name as Catch2's command line takes it, in a shell's quotes.
std::string shell_argument(std::string_view name) {
  std::string made = "'";
  for (char const c : name) {
    if (c == '\'') made += "'\\''";
    else if (c == ',' || c == '[' || c == ']' || c == '\\') made += {'\\', c};
    else made += c;
  }
  return made + "'";
}

class repeat_command : public Catch::EventListenerBase {
 public:
  using EventListenerBase::EventListenerBase;

  void testCaseEnded(Catch::TestCaseStats const& stats) override {
    if (stats.totals.assertions.failed == 0) return;
    std::cerr << "repeat it with:";
    for (char** variable = environ; *variable != nullptr; ++variable) {
      if (std::string_view(*variable).starts_with("KVPOLICY_")) std::cerr << ' ' << *variable;
    }
    std::error_code unknown;
    std::cerr << ' ' << std::filesystem::read_symlink("/proc/self/exe", unknown).string() << ' '
              << shell_argument(stats.testInfo->name) << std::endl;
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(repeat_command)
