// Pool: the mean key of each sentence, per layer and KV head, over those of its tokens that are there (SentenceKV, eq. 1); with
// or without how far they spread around it.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/segments/sentences.hpp"

namespace kvpolicy::pools {

struct unit_mean {
  static constexpr signals needs = signals::keys | signals::token_ids;

  /// In place of the mean, mean -/+ one standard deviation by channel: a mean alone hides the few tokens that are asked for.
  bool spread = false;

  struct summaries : segments::sentence_marks {
    std::int64_t layers = 0;
    std::int64_t heads = 0;
    std::int64_t dim = 0;
    std::vector<std::int64_t> folded;     ///< `[layers, heads]` sentences that are in
    std::vector<float> means;             ///< `[layers, heads, most, dim]`, or
    bounds_table layout{};                ///< of one layer's spreads, of the cache's own type or f16; `data` is set by bounds()
    std::vector<std::byte> spreads;       ///< `[layers]` of it
    std::vector<float> moments;           ///< `[2, dim]` of the sentence that is folded in
    std::vector<std::int32_t> index_end;  ///< `[layers, heads, most]` rank behind each sentence's retained tokens

    template <class Archive>
    void archive(Archive& a) {
      a(ends, tokens, closes, folded, means, spreads, index_end);
    }
    std::int64_t at(layer_id layer, std::int64_t head) const noexcept { return layer.value * heads + head; }
    table<float> of(layer_id layer, std::int64_t head) noexcept {
      return {means.data() + at(layer, head) * most * dim, units(), dim, dim};
    }
    bounds_table bounds(layer_id layer) noexcept {
      bounds_table result = layout;
      result.data = spreads.data() + layer.value * layout.bytes();
      return result;
    }
    std::int32_t const* index_ends(layer_id layer, std::int64_t head) const noexcept {
      return index_end.data() + at(layer, head) * most;
    }

    void extend(segments::sentences const& segment, std::int64_t first, std::span<std::int32_t const> ids) {
      truncate(first);
      sentence_marks::extend(segment, first, ids);
    }
    void truncate(std::int64_t from) noexcept {
      forget(from);
      for (std::int64_t& count : folded) count = std::min(count, units());
    }
    void cut(layer_id layer, head_range few, std::int64_t indices) noexcept {
      for (std::int64_t h = few.first; h < few.first + few.count; ++h) {
        std::int64_t& count = folded[static_cast<std::size_t>(at(layer, h))];
        // Also a sentence that ends right there: it may have got more of its tokens back.
        while (count > 0 && index_ends(layer, h)[count - 1] >= indices) --count;
      }
    }
  };

  summaries start(cache_shape const& shape, segments::sentences const& segment) const {
    summaries made{{segment, shape.max_tokens}, shape.layers, shape.kv_heads, shape.head_dim, {}, {}, {}, {}, {}, {}};
    auto const rows = static_cast<std::size_t>(shape.layers * shape.kv_heads);
    made.folded.resize(rows);
    if (spread) {
      made.layout = {.type = summary_type(shape.type), .heads = shape.kv_heads, .units = made.most, .head_dim = shape.head_dim};
      made.spreads.resize(static_cast<std::size_t>(shape.layers * made.layout.bytes()));
      made.moments.resize(static_cast<std::size_t>(2 * made.dim));
    } else {
      made.means.resize(rows * static_cast<std::size_t>(made.most * made.dim));
    }
    made.index_end.resize(rows * static_cast<std::size_t>(made.most));
    return made;
  }

  /// Folds in the sentences that have closed; the open one has no mean.
  template <kv_cache_view View, executor Exec>
  void update(summaries& into, View const& view, layer_id layer, head_range heads, std::int64_t indices, Exec& exec) const {
    for (std::int64_t h = heads.first; h < heads.first + heads.count; ++h) {
      std::int64_t& folded = into.folded[static_cast<std::size_t>(into.at(layer, h))];
      if (folded >= into.units()) continue;
      auto const keys = view.keys(layer).of({h, 1});
      std::int32_t* const ends = into.index_end.data() + into.at(layer, h) * into.most;
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
          pool_mean(keys, what, table<float>{into.of(layer, h).row(folded), 1, into.dim, into.dim}, 0, exec);
        }
      }
    }
  }
};

static_assert(pooler<unit_mean, segments::sentences>);

}  // namespace kvpolicy::pools
