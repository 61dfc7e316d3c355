// The comparison as a table of text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvpolicy {

/// From what --json holds.
std::string comparison_table(nlohmann::ordered_json const& result);

}  // namespace kvpolicy
