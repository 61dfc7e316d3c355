// Pool: channel-wise bounds of each page's keys, per layer and KV head.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/segments/pages.hpp"

namespace kvpolicy::pools {

/// Keeps bounds of each page's keys by channel: minima and maxima (Quest, section 3.3), or mean -/+ one standard deviation.
struct bounds {
  static constexpr signals needs = signals::keys;

  /// Minima and maxima, or mean -/+ one standard deviation.
  enum class kind : std::uint8_t { range, mean_deviation };
  friend constexpr auto names_of(kind) noexcept { return std::array{"range", "mean_deviation"}; }
  kind how = kind::range;

  /// The bounds of all layers, in the cache's own element type, or f16 if that has blocks.
  struct summaries {
    std::int64_t unit_size = 1;      ///< tokens
    std::int64_t heads = 0;          ///< KV heads of a layer
    bounds_table layout;             ///< of one layer; of() sets `data` and `units`
    token_table<std::byte> storage;  ///< `[layers, kv_heads, units, 2, head_dim]`
    token_table<float> moments;  ///< kind::mean_deviation: `[layers, kv_heads, units, 2, head_dim]`, see pool_mean_deviation
    bool with_moments = false;
    std::vector<std::int64_t> folded;  ///< `[layers, kv_heads]` tokens that are in

    template <class Archive>
    void archive(Archive& a) {
      a(storage, moments, folded);
    }

    /// Returns the bounds of one layer.
    /// @param layer  the layer
    /// @return `[kv_heads, units, 2, head_dim]`
    bounds_table of(layer_id layer) noexcept {
      bounds_table result = layout;
      result.data = storage.row(layer.value * heads);
      result.units = storage.room();
      return result;
    }
    /// Makes room for the bounds of so many tokens.
    void reserve(std::int64_t tokens) {
      storage.reserve((tokens + unit_size - 1) / unit_size);
      if (with_moments) moments.reserve(storage.room());
    }
    void cut(layer_id layer, head_range few, std::int64_t tokens) noexcept {
      for (std::int64_t h = few.first; h < few.first + few.count; ++h) {
        std::int64_t& count = folded[static_cast<std::size_t>(layer.value * heads + h)];
        if (count > tokens) count = tokens / unit_size * unit_size;  // a bound can't be undone: the open unit begins afresh
      }
    }
  };

  template <segmenter Segment>
  summaries start(cache_shape const& shape, Segment const& segment) const {
    summaries made;
    made.unit_size = segment.unit_size();
    made.heads = shape.kv_heads;
    made.layout = {.type = summary_type(shape.type), .heads = shape.kv_heads, .head_dim = shape.head_dim};
    std::int64_t const rows = shape.layers * shape.kv_heads;
    made.storage = {rows, 2 * shape.head_dim * size_of(made.layout.type)};
    made.moments = {rows, 2 * shape.head_dim};
    made.with_moments = how == kind::mean_deviation;
    made.folded.resize(static_cast<std::size_t>(rows));
    return made;
  }

  /// Folds in new tokens: O(new tokens), and O(unit) more after a cut. All of `heads` must have the same tokens in.
  template <kv_cache_view View, executor Exec>
  void update(summaries& into, View const& view, layer_id layer, head_range heads, std::int64_t tokens, Exec& exec) const {
    std::int64_t* const folded = into.folded.data() + layer.value * into.heads;
    if (folded[heads.first] >= tokens) return;
    into.reserve(tokens);
    pooling const what{.unit_size = into.unit_size, .first = folded[heads.first], .last = tokens};
    auto const keys = view.keys(layer).of(heads);
    bounds_table const table_of = into.of(layer).of(heads);
    if (how == kind::range) {
      pool_bounds(keys, what, table_of, exec);
    } else {
      pool_mean_deviation(keys, what, into.moments.row(layer.value * into.heads + heads.first), table_of, exec);
    }
    std::fill_n(folded + heads.first, heads.count, tokens);
  }
};

static_assert(pooler<bounds, segments::pages>);

}  // namespace kvpolicy::pools
