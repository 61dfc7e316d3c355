// A view for adapters that know their rows only at run time: a table of its layers' rows.
#pragma once

#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// A view that is a table of its layers' rows; `layers` of each, patched to `count` tokens when asked.
template <class Memory = host_memory>
struct basic_layer_table_view {
  using memory = Memory;

  cache_shape cache{};
  std::int64_t count = 0;
  basic_rows<Memory> const* key_rows = nullptr;    ///< `[layers]`
  basic_rows<Memory> const* value_rows = nullptr;  ///< `[layers]`

  cache_shape shape() const noexcept { return cache; }
  std::int64_t tokens() const noexcept { return count; }
  basic_rows<Memory> keys(layer_id layer) const noexcept { return at(key_rows, layer); }
  basic_rows<Memory> values(layer_id layer) const noexcept { return at(value_rows, layer); }

 private:
  basic_rows<Memory> at(basic_rows<Memory> const* of, layer_id layer) const noexcept {
    basic_rows<Memory> result = of[layer.value];
    result.tokens = count;
    return result;
  }
};

using layer_table_view = basic_layer_table_view<>;

static_assert(kv_cache_view<layer_table_view> && kv_cache_view<basic_layer_table_view<device_memory>>);

}  // namespace kvpolicy
