// A view for adapters that know the layout of their rows only at run time.
#pragma once

#include <algorithm>

#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// A view made of tables of each layer's rows. The rows that it returns have `count` tokens, or as many as the
/// table says where that is fewer.
template <class Memory = host_memory>
struct basic_layer_table_view {
  using memory = Memory;

  cache_shape cache{};
  std::int64_t count = 0;                          ///< tokens
  basic_rows<Memory> const* key_rows = nullptr;    ///< `[layers]`
  basic_rows<Memory> const* value_rows = nullptr;  ///< `[layers]`
  bool of_store = false;                           ///< the tables say how many tokens there are, and not may be

  cache_shape shape() const noexcept { return cache; }
  std::int64_t tokens() const noexcept { return count; }
  /// Returns the view of the first n tokens.
  /// @param n  how many
  basic_layer_table_view first(std::int64_t n) const noexcept {
    basic_layer_table_view made = *this;
    made.count = n;
    return made;
  }
  basic_rows<Memory> keys(layer_id layer) const noexcept { return at(key_rows, layer); }
  basic_rows<Memory> values(layer_id layer) const noexcept { return at(value_rows, layer); }

 private:
  basic_rows<Memory> at(basic_rows<Memory> const* of, layer_id layer) const noexcept {
    if (of == nullptr) return {};  // a verb says what lacks
    basic_rows<Memory> result = of[layer.value];
    result.tokens = std::min(count, result.tokens);  // of a layer that lacks some, a verb says so
    return result;
  }
};

/// A layer table view of host memory.
using layer_table_view = basic_layer_table_view<>;

static_assert(shortened_view<layer_table_view> && shortened_view<basic_layer_table_view<device_memory>>);

}  // namespace kvpolicy
