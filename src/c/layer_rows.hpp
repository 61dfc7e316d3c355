// A layer's keys or values, as a caller bound them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kvpolicy/rows.hpp"
#include "tensor.hpp"

namespace kvpolicy::c {

/// What a layer's tensors have room for.
struct layer_room {
  std::int64_t tokens = INT64_MAX;  ///< without pages
  std::int64_t table = 0;           ///< pages in the table
  std::int64_t pages = INT32_MAX;   ///< physical

  /// Throws invalid_value where rows, or the pages that hold them, are not there for the first `tokens` tokens.
  template <class Memory>
  void check(basic_rows<Memory> const& rows, std::int64_t layer, std::int64_t count) const {
    auto const named = [&](char const* what) { return std::string(what) + " of layer " + std::to_string(layer); };
    if (rows.pages == nullptr) {
      KVPOLICY_EXPECTS(count <= tokens, named("keys and values") + ": they have room for " + std::to_string(tokens) +
                                            " tokens, the sequence has " + std::to_string(count));
      return;
    }
    std::int64_t const used = (count + rows.page_size - 1) / rows.page_size;
    KVPOLICY_EXPECTS(used <= table, named("pages") + ": axis 0 (pages) has " + std::to_string(table) + " elements; " +
                                        std::to_string(count) + " tokens in pages of " + std::to_string(rows.page_size) +
                                        " need " + std::to_string(used));
    for (std::int64_t p = 0; p < used; ++p) {
      KVPOLICY_EXPECTS(rows.pages[p] >= 0 && rows.pages[p] < pages,
                       named("pages") + ": entry " + std::to_string(p) + " is page " + std::to_string(rows.pages[p]) +
                           "; keys and values have 0 to " + std::to_string(pages - 1));
    }
  }
};

/// A tensor as rows, whose tokens are told to `space`. Throws invalid_value.
/// @param dims  the channels of a row
/// @param paged  rows that have the page table, if there is one
template <class Memory>
basic_rows<Memory> bound_rows(kvpolicy_tensor const* given, tensor_rule const& rule, cache_shape const& shape, axis const& dims,
                              basic_rows<Memory> const& paged, layer_room& space) {
  axis const heads{"kv_heads", shape.kv_heads};
  basic_rows<Memory> made = paged;
  tensor t;
  std::size_t at = 0;  // of kv_heads
  if (paged.pages == nullptr) {
    t = checked(given, rule, {heads, {"tokens"}, dims});
    space.tokens = std::min(space.tokens, t.extent[1]);
  } else {
    t = checked(given, rule, {{"pages"}, heads, {"page_size"}, dims});
    at = 1;
    made.page_size = t.extent[2];
    made.page_stride = t.stride[0];
    space.pages = std::min(space.pages, t.extent[0]);
    KVPOLICY_EXPECTS(made.page_size >= 1, rule.named() + ": axis 2 (page_size) has 0 elements; it must have at least 1");
  }
  made.base = t.data;
  made.type = shape.type;
  made.heads = shape.kv_heads;
  made.tokens = INT64_MAX;  // each call checks the room
  made.head_dim = dims.extent;
  made.head_stride = t.stride[at];
  made.token_stride = t.stride[at + 1];
  made.dim_stride = t.stride[at + 2];
  constexpr std::int64_t most = 8192;  // the executor's limit
  KVPOLICY_EXPECTS(made.contiguous() || dims.extent <= most, rule.named() + ": the stride of " + dims.name + " is " +
                                                                 std::to_string(made.dim_stride / size_of(shape.type)) +
                                                                 "; rows of more than " + std::to_string(most) +
                                                                 " elements must be contiguous");
  return made;
}

}  // namespace kvpolicy::c
