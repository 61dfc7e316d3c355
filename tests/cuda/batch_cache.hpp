// A paged pool with several sequences' caches, pages in random order: what a decoder reads on the
// device, and the oracle on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "conformance/random_cache.hpp"
#include "cuda/test_device.hpp"
#include "kvpolicy/gpu/base/batch.hpp"
#include "kvpolicy/interop/flashinfer.hpp"

namespace kvpolicy_test {

/// Every page that no sequence has is NaN; so are rows that are not written yet. Values that are narrower than keys are a part
/// of the keys' rows, or lie apart, by chance.
class batch_cache {
 public:
  /// @param rows  of the device's page table, at least as many as sequences; 0: just as many
  batch_cache(cache_shape const& shape, std::int64_t sequences, std::int32_t page_size, page_layout layout,
              random_source& random, bool whole, std::int64_t rows = 0)
      : shape_(shape),
        whole_(whole),
        page_size_(page_size),
        layout_(layout),
        latent_(shape.values_dim() < shape.head_dim && random.one_in(2)),
        table_stride_((shape.max_tokens + page_size - 1) / page_size + 1) {
    std::int64_t const pages = sequences * table_stride_ + 2;
    std::vector<std::int32_t> all(static_cast<std::size_t>(pages));
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t i = all.size(); i > 1; --i) {
      std::swap(all[i - 1], all[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
    }
    pages_.assign(all.begin(), all.begin() + sequences * table_stride_);
    pages_of_rows_ = pages_;
    pages_of_rows_.resize(static_cast<std::size_t>(std::max(rows, sequences) * table_stride_), -1);
    layer_elements_ = pages * shape.kv_heads * page_size * shape.head_dim;
    std::size_t const bytes = static_cast<std::size_t>(shape.layers * layer_elements_ * size_of(shape.type));
    for (auto& half : halves_) {
      half.resize(bytes / 16 + 1);
      std::memset(half.data(), 0xff, half.size() * 16);
    }
  }

  bool values_are_part_of_keys() const noexcept { return latent_; }
  /// Each sequence's page table moves to a row; -1: to none.
  void arrange(std::span<std::int64_t const> rows) {
    std::ranges::fill(pages_of_rows_, -1);
    for (std::size_t s = 0; s < rows.size(); ++s) {
      if (rows[s] < 0) continue;
      std::copy_n(pages_.begin() + static_cast<std::int64_t>(s) * table_stride_, table_stride_,
                  pages_of_rows_.begin() + rows[s] * table_stride_);
    }
  }

  /// The caches on the device, as they were when they were last sent.
  gpu::paged_batch view() const {
    return view(on_device(halves_[0]).data, on_device(halves_[latent_ ? 0 : 1]).data, on_device(pages_of_rows_));
  }
  gpu::paged_batch host_view() const {
    return view(halves_[0].data(), halves_[latent_ ? 0 : 1].data(),
                {const_cast<std::int32_t*>(pages_.data()), std::ssize(pages_)});
  }

  /// A token's keys and values in every layer and head: whole numbers, so that every score is exact in fp32, or reals, which
  /// seldom tie.
  void write(std::int64_t sequence, std::int64_t token, random_source& random) {
    for (std::int64_t l = 0; l < shape_.layers; ++l) write(sequence, token, l, random);
  }
  void write(std::int64_t sequence, std::int64_t token, std::int64_t layer, random_source& random) {
    put(sequence, token, layer, [&] { return whole_ ? static_cast<float>(random.between(-2, 2)) : random.real(); });
  }
  /// A token's rows are somebody else's from now on: no number.
  void give_back(std::int64_t sequence, std::int64_t token) {
    for (std::int64_t l = 0; l < shape_.layers; ++l) put(sequence, token, l, [] { return std::nanf(""); });
  }

 private:
  gpu::paged_batch view(gpu::pack const* keys, gpu::pack const* values, gpu::buffer<std::int32_t const> pages) const {
    return {.pool = flashinfer::view<device_memory>(layout_, shape_, page_size_, keys, values,
                                                    layer_elements_ * size_of(shape_.type)),
            .pages = pages,
            .table_stride = table_stride_,
            .elements = shape_.layers * layer_elements_};
  }
  template <class Value>
  void put(std::int64_t sequence, std::int64_t token, std::int64_t layer, Value value) {
    std::int64_t const page = pages_[static_cast<std::size_t>(sequence * table_stride_ + token / page_size_)];
    std::int64_t const slot = token % page_size_;
    for (auto& half : halves_) {
      std::int64_t const dim = &half == halves_ ? shape_.head_dim : shape_.values_dim();
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        std::int64_t const row = layout_ == page_layout::nhd ? slot * shape_.kv_heads + h : h * page_size_ + slot;
        for (std::int64_t d = 0; d < dim; ++d)
          put(half, layer * layer_elements_ + (page * shape_.kv_heads * page_size_ + row) * dim + d, value());
      }
    }
  }
  void put(shared_vector<gpu::pack>& half, std::int64_t element, float value) {
    auto* const at = reinterpret_cast<std::byte*>(half.data()) + element * size_of(shape_.type);
    if (shape_.type == element_type::f32) {
      std::memcpy(at, &value, sizeof value);
      return;
    }
    std::uint16_t const bits = shape_.type == element_type::f16 ? float_to_half(value) : float_to_bfloat(value);
    std::memcpy(at, &bits, sizeof bits);
  }

  cache_shape shape_;
  bool whole_;
  std::int32_t page_size_;
  page_layout layout_;
  bool latent_;
  std::int64_t table_stride_;
  std::int64_t layer_elements_ = 0;
  shared_vector<std::int32_t> pages_;          ///< `[sequences, table_stride]`
  shared_vector<std::int32_t> pages_of_rows_;  ///< `[rows, table_stride]`
  shared_vector<gpu::pack> halves_[2];
};

}  // namespace kvpolicy_test
