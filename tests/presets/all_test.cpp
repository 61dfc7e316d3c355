#include "kvpolicy/presets/all.hpp"

#include <catch2/catch_test_macros.hpp>
#include <set>
#include <string>

using namespace kvpolicy;

TEST_CASE("every preset has a name of its own, says where it is from, and names each parameter once, with help") {
  std::set<std::string> names;
  presets::all::each([&](auto preset) {
    INFO(preset.name);
    CHECK(names.insert(preset.name).second);
    CHECK(!std::string(preset.source).empty());
    std::set<std::string> parameters;
    decltype(preset)::parameters(preset, [&](char const* name, auto&, char const* help) {
      INFO(name);
      CHECK(parameters.insert(name).second);
      CHECK(!std::string(help).empty());
    });
  });
  CHECK(names.contains("full"));
  CHECK(names.size() > 10);
}
