// Pool: channel-wise minima and maxima of each page's keys, per layer and KV head (Quest, sec. 3.3).
#pragma once

#include <algorithm>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/segment/pages.hpp"

namespace kvpolicy::pool {

struct bounds {
  static constexpr signals needs = signals::keys;

  /// `[layers][kv_heads, units, 2, head_dim]` in the cache's own element type.
  struct summaries {
    std::int64_t unit_size = 1;
    bounds_table layout;  ///< of one layer; `data` is set by of()
    std::vector<std::byte> storage;
    std::vector<std::int64_t> folded;  ///< `[layers]` tokens that are in

    bounds_table of(layer_id layer) noexcept {
      bounds_table result = layout;
      result.data = storage.data() + layer.value * layout.bytes();
      return result;
    }
    void truncate(std::int64_t tokens) noexcept {
      for (std::int64_t& count : folded) {
        if (count > tokens) count = tokens / unit_size * unit_size;  // a bound can't be undone: begin the open unit afresh
      }
    }
  };

  template <segmenter Segment>
  summaries start(cache_shape const& shape, Segment const& segment) const {
    summaries made;
    made.unit_size = segment.unit_size();
    made.layout = {.type = shape.type,
                   .heads = shape.kv_heads,
                   .units = (shape.max_tokens + made.unit_size - 1) / made.unit_size,
                   .head_dim = shape.head_dim};
    made.storage.resize(static_cast<std::size_t>(shape.layers * made.layout.bytes()));
    made.folded.resize(static_cast<std::size_t>(shape.layers));
    return made;
  }

  /// O(new tokens), or O(unit) more after a truncation.
  template <kv_cache_view View, executor Exec>
  void update(summaries& into, View const& view, layer_id layer, std::int64_t tokens, Exec& exec) const {
    std::int64_t& folded = into.folded[static_cast<std::size_t>(layer.value)];
    if (folded >= tokens) return;
    pool_bounds(view.keys(layer), {.unit_size = into.unit_size, .first = folded, .last = tokens}, into.of(layer), exec);
    folded = tokens;
  }
};

static_assert(pooler<bounds, segment::pages>);

}  // namespace kvpolicy::pool
