// A value for each head of a model, and how many heads a layer has: so that another model's are not taken for this one's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/error.hpp"

namespace kvpolicy {

/// Values of a model's heads, layer by layer. Not owned.
template <class T>
struct head_values : std::span<T const> {
  using std::span<T const>::span;
  /// Values of layers of so many heads.
  /// @param all  `[layers * heads * values of a head]`
  /// @param heads  of a layer; 0: not known, and a model with as many heads in all is taken for the same
  constexpr head_values(std::span<T const> all, std::int64_t heads = 0) noexcept
      : std::span<T const>(all), heads_of_layer(heads) {}

  std::int64_t heads_of_layer = 0;
};

/// The same, owned: what a file has.
template <class T>
struct owned_head_values {
  std::vector<T> all;
  std::int64_t heads_of_layer = 0;

  head_values<T> values() const noexcept { return {all, heads_of_layer}; }
};

/// Checks that values are of a model's heads.
/// @param values  the values, so many of each head
/// @param of_head  values of a head
/// @param layers, heads  the model's
/// @param what  what a file of them is, for the message
/// @throws invalid_value if they are of another model
template <class T>
void check_heads_of(head_values<T> const& values, std::int64_t of_head, std::int64_t layers, std::int64_t heads,
                    char const* what) {
  std::int64_t const of_layer = values.heads_of_layer == 0 ? heads : values.heads_of_layer;
  std::int64_t const count = std::ssize(values) / (of_layer * of_head);
  KVPOLICY_EXPECTS(of_layer == heads && std::ssize(values) == layers * heads * of_head,
                   std::string(what) + " of " + std::to_string(count) + " layers x " + std::to_string(of_layer) +
                       " heads for a model of " + std::to_string(layers) + " x " + std::to_string(heads) +
                       "; give this model's, by kvpolicy-profile");
}

}  // namespace kvpolicy
