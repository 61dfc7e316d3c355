// The comparison as a table of text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvpolicy {

/// From what --json holds.
std::string comparison_table(nlohmann::ordered_json const& result);

/// The q-quantile of values, linear between order statistics; 0 of none.
double quantile(std::vector<double> values, double q);

}  // namespace kvpolicy
