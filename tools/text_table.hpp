// Tables of text, as Markdown.
#pragma once

#include <string>
#include <vector>

namespace kvpolicy {

/// The first row is the head; `right[c]`: column c is aligned to the right.
std::string text_table(std::vector<std::vector<std::string>> const& rows_of_cells, std::vector<bool> const& right);

/// A number with that many digits behind the point.
std::string fixed(double value, int digits);

/// Linear interpolation between order statistics; 0 of none.
double quantile(std::vector<double> values, double q);

}  // namespace kvpolicy
