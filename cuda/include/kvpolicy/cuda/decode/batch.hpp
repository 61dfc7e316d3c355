// A batch of sequences' caches, as a decode step reads them; and the numbers of a step.
#pragma once

#include <concepts>
#include <span>
#include <vector>

#include "kvpolicy/cuda/launch/device.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::cuda {

/// The caches of every sequence of a batch, on the device.
/// Requires: `keys(layer)` and `values(layer)`, finished() rows of all sequences. Semantics: trivially copyable; addresses,
/// strides and page tables' places are the same at every step, so that launches can be captured. Model: paged_batch.
template <class V>
concept batch_view = std::is_trivially_copyable_v<V> && requires(V const& view, layer_id layer) {
  { view.keys(layer) } -> std::same_as<batch_rows>;
  { view.values(layer) } -> std::same_as<batch_rows>;
};

/// One page pool for all sequences, as paged_view describes it: `pool` is its view, without a sequence's pages and tokens.
struct paged_batch {
  paged_view<device_memory> pool{};
  buffer<std::int32_t const> pages;  ///< `[sequences, table_stride]`
  std::int64_t table_stride = 0;
  buffer<std::int32_t const> value_pages{};  ///< the same for values; none: they lie in the keys' pages
  std::int64_t elements = 0;                 ///< from either base on; only the checked model asks

  batch_rows keys(layer_id layer) const { return at(pool.key_base, pool.key_strides, pages, layer); }
  batch_rows values(layer_id layer) const {
    return at(pool.value_base, pool.value_strides, value_pages.data == nullptr ? pages : value_pages, layer);
  }

 private:
  batch_rows at(void const* base, byte_strides const& strides, buffer<std::int32_t const> table, layer_id layer) const {
    basic_rows<device_memory> rows = rows_at<device_memory>(base, strides, pool.cache, layer, 0);
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

/// A device that owns memory, too: `allocate<T>(count)` gives an owner whose get() is a buffer, `upload(to, from, count)`
/// copies from the host, after what was launched before.
template <class D>
concept owning_device = device<D> && requires(D& d, float const* p) {
  { d.template allocate<float>(std::int64_t{}).get() } -> std::same_as<buffer<float>>;
  d.upload(buffer<float>{}, p, std::int64_t{});
};

template <owning_device D, class T>
using array_of = decltype(std::declval<D&>().template allocate<T>(std::int64_t{}));

/// Small integers of a step: rows of one for each sequence, made by plan() on the host, copied in one go.
template <owning_device D>
class step_numbers {
 public:
  step_numbers(D& device, std::int64_t rows, std::int64_t sequences)
      : sequences_(sequences),
        host_(static_cast<std::size_t>(rows * sequences)),
        device_(device.template allocate<std::int32_t>(rows * sequences)) {
    device.upload(device_.get(), host_.data(), std::ssize(host_));
  }

  void set(std::int64_t row, std::int64_t sequence, std::int64_t value) noexcept {
    host_[static_cast<std::size_t>(row * sequences_ + sequence)] = static_cast<std::int32_t>(value);
  }
  std::int64_t get(std::int64_t row, std::int64_t sequence) const noexcept {
    return host_[static_cast<std::size_t>(row * sequences_ + sequence)];
  }
  per_sequence of(std::int64_t row) const noexcept { return {{device_.get().data + row * sequences_, sequences_}, 0}; }
  void upload(D& device) const { device.upload(device_.get(), host_.data(), std::ssize(host_)); }

 private:
  std::int64_t sequences_;
  std::vector<std::int32_t> host_;
  array_of<D, std::int32_t> device_;
};

}  // namespace kvpolicy::cuda
