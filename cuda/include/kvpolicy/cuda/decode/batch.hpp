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

/// One page pool for all sequences, contiguous rows. Strides are in elements.
struct paged_batch {
  cache_shape cache{};
  void const* key_base = nullptr;    ///< page 0 of layer 0
  void const* value_base = nullptr;  ///< the same for values
  std::int64_t elements = 0;         ///< from either base on; only the checked model asks
  std::int64_t layer_stride = 0;
  std::int64_t page_stride = 0;
  std::int32_t page_size = 16;
  page_layout layout = page_layout::nhd;
  buffer<std::int32_t const> pages;  ///< `[sequences, table_stride]`
  std::int64_t table_stride = 0;

  batch_rows keys(layer_id layer) const noexcept { return at(key_base, layer); }
  batch_rows values(layer_id layer) const noexcept { return at(value_base, layer); }

 private:
  batch_rows at(void const* base, layer_id layer) const noexcept {
    bool const by_token = layout == page_layout::nhd;
    batch_rows made{};
    std::int64_t const first = layer.value * layer_stride;
    made.base = static_cast<std::byte const*>(base) + first * size_of(cache.type);
    made.elements = elements - first;
    made.type = cache.type;
    made.heads = static_cast<std::int32_t>(cache.kv_heads);
    made.head_dim = static_cast<std::int32_t>(cache.head_dim);
    made.head_stride = by_token ? cache.head_dim : page_size * cache.head_dim;
    made.token_stride = by_token ? cache.kv_heads * cache.head_dim : cache.head_dim;
    made.pages = pages;
    made.page_table_stride = table_stride;
    made.page_size = page_size;
    made.page_stride = page_stride;
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
  per_sequence of(std::int64_t row) const noexcept { return {{device_.get().data + row * sequences_, sequences_}, 0}; }
  void upload(D& device) const { device.upload(device_.get(), host_.data(), std::ssize(host_)); }

 private:
  std::int64_t sequences_;
  std::vector<std::int32_t> host_;
  array_of<D, std::int32_t> device_;
};

}  // namespace kvpolicy::cuda
