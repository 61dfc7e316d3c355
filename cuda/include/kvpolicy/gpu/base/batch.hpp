// The caches of a batch of sequences, as a decode step reads them.
#pragma once

#include <concepts>

#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::gpu {

/// The caches of all sequences of a batch, on the device.
/// Requires: `keys(layer)` and `values(layer)`: the finished() rows of all sequences.
/// Semantics: a sequence's row is that of decoder::plan_rows(); or, with a constant `by_sequence` that is true, its slot.
/// Trivially copyable. Addresses, strides and the places of page tables are the same at every step, so that launches
/// can be captured.
/// Model: paged_batch.
template <class V>
concept batch_view = std::is_trivially_copyable_v<V> && requires(V const& view, layer_id layer) {
  { view.keys(layer) } -> std::same_as<batch_rows>;
  { view.values(layer) } -> std::same_as<batch_rows>;
};

/// One page pool for all sequences, as paged_view describes it.
struct paged_batch {
  paged_view<device_memory> pool{};          ///< without a sequence's pages and tokens
  buffer<std::int32_t const> pages;          ///< `[sequences, table_stride]`
  std::int64_t table_stride = 0;             ///< elements from one sequence's table to the next
  buffer<std::int32_t const> value_pages{};  ///< the same for values; none: they lie in the keys' pages
  std::int64_t elements = 0;                 ///< elements from either base on; only the GPU emulator reads it

  batch_rows keys(layer_id layer) const { return at(pool.key_base, pool.key_strides, pages, layer, pool.cache.head_dim); }
  batch_rows values(layer_id layer) const {
    return at(pool.value_base, pool.value_strides, value_pages.data == nullptr ? pages : value_pages, layer,
              pool.cache.values_dim());
  }

 private:
  batch_rows at(void const* base, byte_strides const& strides, buffer<std::int32_t const> table, layer_id layer,
                std::int64_t dim) const {
    basic_rows<device_memory> rows = rows_at<device_memory>(base, strides, pool.cache, layer, 0, dim);
    rows.page_size = pool.page_size;
    rows.page_stride = strides.page;
    batch_rows made = in_elements(rows);
    made.elements = elements - layer.value * strides.layer / size_of(pool.cache.type);
    made.pages = table;
    made.page_table_stride = table_stride;
    return finished(made);
  }
};

static_assert(batch_view<paged_batch>);

/// Returns the rows of one sequence as a batch of one.
/// @param rows  the rows of a batch
/// @param sequence  its row of the batch
/// @return its rows
constexpr batch_rows of_sequence(batch_rows rows, std::int64_t sequence) noexcept {
  rows.rows = {};
  std::int64_t const first = sequence * rows.sequence_stride;
  rows.base = static_cast<std::byte const*>(rows.base) + first * size_of(rows.type);
  rows.elements -= first;
  rows.pages.data += rows.pages.data == nullptr ? 0 : sequence * rows.page_table_stride;
  rows.pages.size -= rows.pages.data == nullptr ? 0 : sequence * rows.page_table_stride;
  return rows;
}

}  // namespace kvpolicy::gpu
