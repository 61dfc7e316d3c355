// A batch's caches with random content, behind shuffled page tables.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gpu.hpp"
#include "kvpolicy/gpu/attention/attend.hpp"
#include "kvpolicy/gpu/base/batch.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/interop/flashinfer.hpp"

namespace kvpolicy::bench {

/// Fewer physical pools than layers, where memory is short: layer l lies in pool l % pools, and its page tables are shifted by
/// l entries, so that no two layers find the same rows at the same tokens.
class paged_cache {
 public:
  static constexpr std::int64_t bytes_of(std::int64_t batch, std::int64_t context, bool with_values) {
    return batch * context * llama_8b::layer_dims * 2 * (with_values ? 2 : 1);
  }

  /// Without values, a view's values are its keys.
  paged_cache(measured_gpu& on, std::int64_t batch, std::int64_t context, std::int64_t pools, bool with_values)
      : batch_(batch), context_(context), layout_(on.wanted().layout), tables_(on.numbers(shuffled(batch * stride()))) {
    for (std::int64_t p = 0; p < pools; ++p) {
      keys_.push_back(on.halves(elements()));
      if (with_values) values_.push_back(on.halves(elements()));
    }
  }

  std::int64_t pools() const noexcept { return std::ssize(keys_); }

  /// All layers of what it gives are that one.
  gpu::paged_batch layer(std::int64_t l) const {
    auto const pool = static_cast<std::size_t>(l % pools());
    gpu::buffer<std::int32_t> const tables = tables_.get();
    return {.pool = flashinfer::view<device_memory>(layout_, llama_8b::shape(context_), llama_8b::page, keys_[pool].get().data,
                                                    (values_.empty() ? keys_ : values_)[pool].get().data),
            .pages = {tables.data + l % shifts, tables.size - l % shifts},
            .table_stride = stride(),
            .elements = elements()};
  }
  gpu::batch_rows keys(std::int64_t l) const { return layer(l).keys({0}); }
  gpu::batch_rows values(std::int64_t l) const { return layer(l).values({0}); }

 private:
  static constexpr std::int64_t shifts = 32;

  std::int64_t stride() const noexcept { return context_ / llama_8b::page; }
  std::int64_t elements() const noexcept { return batch_ * context_ * llama_8b::layer_dims; }

  /// All pages in random order, and the first of them once more.
  static std::vector<std::int32_t> shuffled(std::int64_t pages) {
    std::vector<std::int32_t> made(static_cast<std::size_t>(pages));
    std::iota(made.begin(), made.end(), 0);
    std::mt19937 random{7};
    std::shuffle(made.begin(), made.end(), random);
    for (std::int64_t i = 0; i < shifts; ++i) made.push_back(made[static_cast<std::size_t>(i % pages)]);
    return made;
  }

  std::int64_t batch_;
  std::int64_t context_;
  page_layout layout_;
  gpu::device_buffer<std::int32_t> tables_;
  std::vector<gpu::device_buffer<std::uint16_t>> keys_;
  std::vector<gpu::device_buffer<std::uint16_t>> values_;
};

/// Rows of floats, `[sequences, heads, size]`.
inline gpu::vector_rows vectors(gpu::device_buffer<float> const& from, std::int64_t heads, std::int64_t size) {
  gpu::vector_rows made{};
  made.base = from.get().data;
  made.elements = from.get().size;
  made.sequence_stride = heads * size;
  made.head_stride = size;
  return made;
}

/// Every token of every sequence.
inline gpu::token_lists all_tokens(std::int64_t tokens) {
  gpu::token_lists made{};
  made.tail.all = 0;
  made.tokens.all = tokens;
  return made;
}

}  // namespace kvpolicy::bench
