// Pool: mean keys of pages, chunks and grids, over all layers and KV heads.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/detail/rope_table.hpp"
#include "kvpolicy/segments/hierarchy.hpp"

namespace kvpolicy::pools {

/// Keeps the mean key of each page, chunk and grid, all layers and KV heads side by side (CHESS, equations 1 and 2), and
/// updates them as tokens arrive.
struct hierarchical_mean {
  static constexpr signals needs = signals::keys | signals::rotation;

  /// Means are of keys before their rotary embedding. Pages then differ by content, not by position.
  bool pre_rope = false;

  /// The signals that these parameters use.
  constexpr signals wants() const noexcept { return pre_rope ? needs : signals::keys; }

  /// The means of one level.
  struct level {
    std::int64_t fan_out = 1;   ///< units of the finer level in a unit of this level; tokens, for pages
    std::int64_t complete = 0;  ///< units of the finer level that are complete and in; later units are pooled again
    std::vector<float> means;   ///< `[units, dims]`

    template <class Archive>
    void archive(Archive& a) {
      a(complete, means);
    }
  };

  /// The means of one sequence, with room for the scorer's buffers.
  struct summaries {
    std::int64_t dims = 0;             ///< layers * kv_heads * head_dim
    std::int64_t page = 1;             ///< tokens
    std::vector<std::int64_t> folded;  ///< `[layers]` tokens that are in
    std::array<level, 3> levels;       ///< pages, chunks, grids
    cache_shape shape{};
    std::vector<float> anchor;      ///< `[dims]`, for the scorer
    std::vector<float> moments;     ///< `[kv_heads, 2, head_dim]`, of all pages in one layer; for the scorer
    std::vector<std::byte> spread;  ///< `[kv_heads, 2, head_dim]` floats, mean +/- deviation; for the scorer
    rope_table rope;                ///< used with pre_rope

    template <class Archive>
    void archive(Archive& a) {
      a(folded, levels[0], levels[1], levels[2], anchor, moments, spread, rope);
    }
    /// Makes room for the means of so many tokens.
    void reserve(std::int64_t tokens) {
      std::int64_t units = tokens;
      for (level& one : levels) {
        units = (units + one.fan_out - 1) / one.fan_out;
        if (std::ssize(one.means) < units * dims) one.means.resize(static_cast<std::size_t>(units * dims));
      }
      rope.reserve(tokens);
    }
    /// Tokens that are in for every layer.
    std::int64_t tokens() const noexcept { return *std::ranges::min_element(folded); }
    /// Returns the number of units of a level, the open one included.
    /// @param l  0 pages, 1 chunks, 2 grids
    /// @return the number of units
    std::int64_t units(std::size_t l) const noexcept {
      std::int64_t count = tokens();
      for (std::size_t i = 0; i <= l; ++i) count = (count + levels[i].fan_out - 1) / levels[i].fan_out;
      return count;
    }
    /// Returns the means of a level.
    /// @param l  as in units()
    /// @return `[units, dims]`
    table<float> of(std::size_t l) noexcept { return {levels[l].means.data(), units(l), dims, dims}; }

    void cut(layer_id layer, head_range, std::int64_t tokens) noexcept {
      std::int64_t& count = folded[static_cast<std::size_t>(layer.value)];
      if (count > tokens) count = tokens / page * page;
      std::int64_t complete = tokens / page;
      for (std::size_t l = 1; l < levels.size(); ++l) {
        levels[l].complete = std::min(levels[l].complete, complete);
        complete /= levels[l].fan_out;
      }
    }
  };

  summaries start(cache_shape const& shape, segments::hierarchy const& segment) const {
    segment.check();
    summaries made;
    made.dims = shape.layers * shape.kv_heads * shape.head_dim;
    made.page = segment.page;
    made.folded.resize(static_cast<std::size_t>(shape.layers));
    made.shape = shape;
    made.anchor.resize(static_cast<std::size_t>(made.dims));
    made.moments.resize(static_cast<std::size_t>(2 * shape.kv_heads * shape.head_dim));
    made.spread.resize(made.moments.size() * sizeof(float));
    std::array const fan_out{segment.page, segment.pages_per_chunk, segment.chunks_per_grid};
    for (std::size_t l = 0; l < made.levels.size(); ++l) made.levels[l].fan_out = fan_out[l];
    return made;
  }

  /// Takes the prompt's rotary embedding, with pre_rope. O(tokens x head_dim) for each new embedding.
  void begin(summaries& into, prompt_signals const& prompt) const {
    if (pre_rope) into.rope.take(prompt.rope);
  }

  /// Folds a layer's new tokens into pages: O(new tokens), or a page more after a cut. With pre_rope, throws invalid_value
  /// for more than one token before a prompt has brought the embedding.
  template <kv_cache_view View, executor Exec>
  void update(summaries& into, View const& view, layer_id layer, head_range, std::int64_t tokens, Exec& exec) const {
    std::int64_t& folded = into.folded[static_cast<std::size_t>(layer.value)];
    if (folded >= tokens) return;
    KVPOLICY_EXPECTS(!pre_rope || into.rope.known || tokens == 1,
                     "pre_rope needs the rotary embedding; call prefill with prompt_signals::rope first");
    auto const keys = view.keys(layer);
    into.reserve(keys.at({0}, {tokens - 1}).value + 1);
    table<float> const pages{into.levels[0].means.data(), (tokens + into.page - 1) / into.page, into.dims, into.dims};
    pool_mean(keys, {.unit_size = into.page, .first = folded, .last = tokens, .rotated = into.rope.get()}, pages,
              layer.value * keys.heads * keys.head_dim, exec);
    folded = tokens;
  }

  /// Updates the chunks and grids whose pages have changed since the last call.
  /// @param into  the means
  /// @param exec  the executor
  template <executor Exec>
  void refresh(summaries& into, Exec& exec) const {
    std::int64_t complete = into.tokens() / into.page;
    for (std::size_t l = 1; l < into.levels.size(); ++l) {
      level& coarse = into.levels[l];
      std::int64_t const finer = into.units(l - 1);
      pool_mean(as_rows(into.of(l - 1)),
                {.unit_size = coarse.fan_out, .first = coarse.complete / coarse.fan_out * coarse.fan_out, .last = finer},
                into.of(l), 0, exec);
      coarse.complete = complete;
      complete /= coarse.fan_out;
    }
  }

  /// Returns a level's vectors as rows, so that they can be pooled again.
  /// @param vectors  `[units, dims]`
  /// @return `[1, units, dims]`
  static rows as_rows(table<float const> vectors) noexcept {
    std::int64_t const size = size_of(element_type::f32);
    return {.base = reinterpret_cast<std::byte const*>(vectors.data),
            .type = element_type::f32,
            .heads = 1,
            .tokens = vectors.rows,
            .head_dim = vectors.columns,
            .head_stride = vectors.columns * size,
            .token_stride = vectors.row_stride * size,
            .dim_stride = size};
  }
};

static_assert(pooler<hierarchical_mean, segments::hierarchy>);

}  // namespace kvpolicy::pools
