// One sequence of a batch, as the four verbs see a cache.
#pragma once

#include "kvpolicy/gpu/base/batch.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::gpu {

/// Views one sequence of a batch. Models kv_cache_view.
/// @tparam V  the view of the batch
/// @tparam Memory  where the rows are
template <batch_view V, class Memory>
struct sequence_view {
  using memory = Memory;

  V batch{};
  cache_shape cache{};
  std::int64_t row = 0;    ///< of the batch
  std::int64_t count = 0;  ///< tokens of the sequence

  cache_shape shape() const noexcept { return cache; }
  std::int64_t tokens() const noexcept { return count; }
  sequence_view first(std::int64_t tokens) const noexcept { return {batch, cache, row, tokens}; }
  basic_rows<Memory> keys(layer_id layer) const noexcept { return at(batch.keys(layer)); }
  basic_rows<Memory> values(layer_id layer) const noexcept { return at(batch.values(layer)); }

 private:
  basic_rows<Memory> at(batch_rows const& all) const noexcept {
    batch_rows const mine = of_sequence(all, row);
    std::int64_t const size = size_of(mine.type);
    return {.base = static_cast<std::byte const*>(mine.base),
            .type = mine.type,
            .heads = mine.heads,
            .tokens = count,
            .head_dim = mine.head_dim,
            .head_stride = mine.head_stride * size,
            .token_stride = mine.token_stride * size,
            .dim_stride = mine.dim_stride * size,
            .pages = mine.pages.data,
            .page_size = mine.pages.data == nullptr ? 0 : mine.page_size,
            .page_stride = mine.page_stride * size};
  }
};

}  // namespace kvpolicy::gpu
