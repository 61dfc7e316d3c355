// Pool: the mean key of each sentence, or its mean and spread, per layer and KV head.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/segments/sentences.hpp"

namespace kvpolicy::pools {

/// Keeps the mean key of each sentence's retained tokens (SentenceKV, equation 1), for each layer and KV head.
struct unit_mean {
  static constexpr signals needs = signals::keys | signals::token_ids;

  /// Keeps mean -/+ one standard deviation by channel instead of the mean. A mean alone hides the few tokens that a query
  /// wants.
  bool spread = false;

  /// The sentences of one sequence and their summaries.
  struct summaries : segments::sentence_marks {
    std::int64_t layers = 0;
    std::int64_t heads = 0;
    std::int64_t dim = 0;
    std::vector<std::int64_t> folded;  ///< `[layers, heads]` sentences that are in
    bool spread = false;
    token_table<float> means;             ///< `[layers, heads, units, dim]`, as summary_type() rounds them; empty with `spread`
    bounds_table layout{};                ///< of one layer's spreads, in the cache's own type or f16; bounds() sets the rest
    token_table<std::byte> spreads;       ///< `[layers, heads, units, 2, dim]`; empty without `spread`
    std::vector<float> moments;           ///< `[2, dim]`, scratch for one sentence
    token_table<std::int32_t> index_end;  ///< `[layers, heads, units]` index after each sentence's last retained token

    template <class Archive>
    void archive(Archive& a) {
      a(ends, tokens, closes, prompt, behind_prompt, folded, means, spreads, index_end);
    }
    /// Returns a head's place in `[layers, heads]`.
    /// @param layer, head  layer and KV head
    /// @return its index
    std::int64_t at(layer_id layer, std::int64_t head) const noexcept { return layer.value * heads + head; }
    /// Returns a head's means.
    /// @param layer, head  layer and KV head
    /// @return `[units, dim]`
    table<float> of(layer_id layer, std::int64_t head) noexcept { return {means.row(at(layer, head)), units(), dim, dim}; }
    /// Returns the spreads of one layer.
    /// @param layer  the layer
    /// @return `[heads, units, 2, dim]`
    bounds_table bounds(layer_id layer) noexcept {
      bounds_table result = layout;
      result.data = spreads.row(layer.value * heads);
      result.units = spreads.room();
      return result;
    }
    /// Returns where each sentence of a head ends among its retained tokens.
    /// @param layer, head  layer and KV head
    /// @return `[units]` indices after each sentence's last retained token
    std::int32_t const* index_ends(layer_id layer, std::int64_t head) const noexcept { return index_end.row(at(layer, head)); }

    /// Makes room for the sentences of so many tokens.
    void reserve(std::int64_t count) {
      sentence_marks::reserve(count);
      index_end.reserve(most);
      if (spread) spreads.reserve(most);
      else means.reserve(most);
    }

    /// Takes the ids of new tokens and drops the summaries of sentences that they change.
    /// @param segment, first, ids, of_prompt  as in sentence_marks::extend
    void extend(segments::sentences const& segment, std::int64_t first, std::span<std::int32_t const> ids,
                bool of_prompt = false) {
      truncate(first);
      reserve(first + std::ssize(ids));
      sentence_marks::extend(segment, first, ids, of_prompt);
    }
    /// Drops every token from a position on, and the sentences that held any.
    /// @param from  first token that is dropped
    void truncate(std::int64_t from) noexcept {
      forget(from);
      for (std::int64_t& count : folded) count = std::min(count, units());
    }
    void cut(layer_id layer, head_range few, std::int64_t indices) noexcept {
      for (std::int64_t h = few.first; h < few.first + few.count; ++h) {
        std::int64_t& count = folded[static_cast<std::size_t>(at(layer, h))];
        // A sentence that ends exactly at `indices` goes too: more of its tokens may have come back.
        while (count > 0 && index_ends(layer, h)[count - 1] >= indices) --count;
      }
    }
  };

  summaries start(cache_shape const& shape, segments::sentences const& segment) const {
    std::int64_t const rows = shape.layers * shape.kv_heads;
    summaries made;
    made.shortest = segment.shortest;
    made.layers = shape.layers;
    made.heads = shape.kv_heads;
    made.dim = shape.head_dim;
    made.folded.resize(static_cast<std::size_t>(rows));
    made.spread = spread;
    made.means = {rows, made.dim};
    made.layout = {.type = summary_type(shape.type), .heads = shape.kv_heads, .head_dim = shape.head_dim};
    made.spreads = {rows, 2 * made.dim * size_of(made.layout.type)};
    made.moments.resize(static_cast<std::size_t>(spread ? 2 * made.dim : 0));
    made.index_end = {rows, 1};
    return made;
  }

  /// Folds in the sentences that have closed. The open sentence has no mean.
  template <kv_cache_view View, executor Exec>
  void update(summaries& into, View const& view, layer_id layer, head_range heads, std::int64_t indices, Exec& exec) const {
    for (std::int64_t h = heads.first; h < heads.first + heads.count; ++h) {
      std::int64_t& folded = into.folded[static_cast<std::size_t>(into.at(layer, h))];
      if (folded >= into.units()) continue;
      auto const keys = view.keys(layer).of({h, 1});
      std::int32_t* const ends = into.index_end.row(into.at(layer, h));
      for (; folded < into.units(); ++folded) {
        std::int32_t const behind = into.ends[static_cast<std::size_t>(folded)];
        std::int64_t const begin = folded == 0 ? 0 : ends[folded - 1];
        std::int64_t const end = keys.indices == nullptr
                                     ? std::min<std::int64_t>(behind, indices)
                                     : std::lower_bound(keys.indices + begin, keys.indices + indices, behind) - keys.indices;
        ends[folded] = static_cast<std::int32_t>(end);
        if (begin == end) continue;
        pooling const what{.unit_size = end - begin, .first = begin, .last = end, .origin = begin};
        if (spread) {
          bounds_table of_unit = into.bounds(layer);
          of_unit.data = of_unit.unit(h, folded);
          of_unit.heads = of_unit.units = 1;
          pool_mean_deviation(keys, what, into.moments.data(), of_unit, exec);
        } else {
          std::span const mean(into.of(layer, h).row(folded), static_cast<std::size_t>(into.dim));
          pool_mean(keys, what, table<float>{mean.data(), 1, into.dim, into.dim}, 0, exec);
          for (float& x : mean) x = rounded_to(summary_type(view.shape().type), x);
        }
      }
    }
  }
};

static_assert(pooler<unit_mean, segments::sentences>);

}  // namespace kvpolicy::pools
