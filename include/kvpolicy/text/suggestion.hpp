// Which known name was probably meant by an unknown one.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "kvpolicy/error.hpp"

namespace kvpolicy {

/// Returns the Levenshtein distance of two texts.
/// @param a,b  the texts
/// @return characters to insert, remove or replace
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

/// Makes the error for an unknown name: "unknown <what> 'x'; did you mean 'y'? There are: a, b, c".
/// @param what  what the name should have been
/// @param given  the name
/// @param known  the names that exist
/// @return the error; the caller throws it
inline invalid_value unknown(std::string const& what, std::string_view given, std::vector<std::string> const& known) {
  std::string message = "unknown " + what + " '" + std::string(given) + "'";
  if (known.empty()) return invalid_value(message + "; there are none");
  auto const nearest = std::ranges::min_element(known, {}, [&](std::string const& k) { return edit_distance(given, k); });
  bool const near = edit_distance(given, *nearest) <= std::max<std::size_t>(2, nearest->size() / 2);
  message += near ? "; did you mean '" + *nearest + "'?" : ";";
  message += " There are:";
  for (std::string const& k : known) message += (&k == &known.front() ? " " : ", ") + k;
  return invalid_value(message);
}

}  // namespace kvpolicy
