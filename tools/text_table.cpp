#include "text_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace kvpolicy {

std::string text_table(std::vector<std::vector<std::string>> const& rows_of_cells, std::vector<bool> const& right) {
  std::vector<std::size_t> widths(right.size());
  for (auto const& row : rows_of_cells) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (auto const& row : rows_of_cells) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      std::string const pad(widths[c] - row[c].size(), ' ');
      text.append(c == 0 ? "| " : " | ").append(right[c] ? pad : row[c]).append(right[c] ? row[c] : pad);
    }
    text.append(" |\n");
    if (&row != &rows_of_cells.front()) continue;
    for (std::size_t c = 0; c < widths.size(); ++c) text.append("|").append(widths[c] + 1, '-').append(right[c] ? ":" : "-");
    text.append("|\n");
  }
  return text;
}

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  double const place = q * static_cast<double>(values.size() - 1);
  auto const low = static_cast<std::size_t>(place);
  std::size_t const high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - std::floor(place)) * (values[high] - values[low]);
}

}  // namespace kvpolicy
