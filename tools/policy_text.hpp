// Policies from text: "quest:tokens=512,page=16". The one place where a policy is chosen at run time.
#pragma once

#include <kvpolicy/kvpolicy.hpp>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvpolicy {

using any_policy = std::variant<presets::full, presets::streaming_llm, presets::snapkv, presets::quest, presets::chess>;

struct named_policy {
  std::string name;        ///< "quest"
  std::string parameters;  ///< every parameter's value, "tokens=512,page=16,..."
  any_policy policy;
};

/// NAME[:item,...]; an item is key=value, or the name of a published setting, which later items change. Throws invalid_value
/// that says what exists and suggests the nearest.
named_policy parse_policy(std::string_view text);

/// Names, in the order of their documentation.
std::vector<std::string> policy_names();

/// What --list-policies prints: each policy's source, parameters, defaults and named settings.
std::string describe_policies();

}  // namespace kvpolicy
