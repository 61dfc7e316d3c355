// attend_block's scratch: a strip of queries with their sums, a chunk of packed keys and values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "block_kernels.hpp"
#include "kvpolicy/rows.hpp"

namespace kvpolicy::simd {

inline constexpr std::int64_t strip_tokens = 512;  ///< whose queries share a packed chunk
inline constexpr std::int64_t chunk_keys = 1024;   ///< listed rows of each head

/// A tile of queries and its softmax so far.
struct tile_room {
  std::byte* queries;
  float* sums;   ///< `[padded, 32]`
  float* most;   ///< `[32]`
  float* total;  ///< `[32]`
};

/// Memory that is not filled: pages that nothing touches are never there.
struct aligned_delete {
  void operator()(std::byte* p) const noexcept { ::operator delete[](p, std::align_val_t{64}); }
};
using raw_room = std::unique_ptr<std::byte[], aligned_delete>;
inline raw_room raw_bytes(std::int64_t size) {
  return raw_room(static_cast<std::byte*>(::operator new[](static_cast<std::size_t>(size), std::align_val_t{64})));
}

/// Elements that are written before they are read.
template <class T>
class unset_array {
 public:
  explicit unset_array(std::int64_t size) : bytes_(raw_bytes(size * std::int64_t{sizeof(T)})), size_(size) {}
  T* data() noexcept { return reinterpret_cast<T*>(bytes_.get()); }
  std::int64_t size() const noexcept { return size_; }

 private:
  raw_room bytes_;
  std::int64_t size_;
};

class block_workspace {
 public:
  block_kernels const& kernels = best_block_kernels();
  weigh_function const weigh = best_weigh();

  explicit block_workspace(cache_shape const& shape)
      : kv_heads_(shape.kv_heads),
        dims_(shape.head_dim),
        tiles_((std::min(strip_tokens, shape.max_tokens) + tile_queries - 1) / tile_queries),
        blocks_((std::min(chunk_keys, shape.max_tokens) + tile_keys - 1) / tile_keys),
        tile_bytes_(2 * packed_queries(dims_) + 2 * tile_queries * static_cast<std::int64_t>(sizeof(float))),
        tiles_room_(raw_bytes(shape.q_heads * tiles_ * tile_bytes_)),
        packed_(raw_bytes(kv_heads_ * blocks_ * 3 * packed_block(dims_))),
        places_(raw_bytes(kv_heads_ * blocks_ * tile_keys * static_cast<std::int64_t>(sizeof(float)))),
        seen_(static_cast<std::size_t>(kv_heads_ * 2 * tiles_ * tile_queries)) {}

  tile_room tile(std::int64_t q_head, std::int64_t tile) noexcept {
    std::byte* const first = tiles_room_.get() + (q_head * tiles_ + tile) * tile_bytes_;
    auto* const sums = reinterpret_cast<float*>(first + packed_queries(dims_));
    float* const most = sums + padded(dims_) * tile_queries;
    return {first, sums, most, most + tile_queries};
  }
  std::byte* packed_keys(std::int64_t head, std::int64_t block) noexcept { return block_of(head, block); }
  std::byte* packed_values(std::int64_t head, std::int64_t block) noexcept {
    return block_of(head, block) + packed_block(dims_);
  }
  /// Rows with odd strides, as floats: `[128, head_dim]`.
  float* copies(std::int64_t head, std::int64_t block) noexcept {
    return reinterpret_cast<float*>(block_of(head, block) + 2 * packed_block(dims_));
  }
  /// Of a block's keys, their rows: `[128]`.
  float* places(std::int64_t head, std::int64_t block) noexcept {
    return reinterpret_cast<float*>(places_.get()) + (head * blocks_ + block) * tile_keys;
  }
  /// Of a list's tokens, the first that each of a strip's queries sees, and the one behind the last; zeros behind the strip.
  std::span<std::int32_t> begins(std::int64_t list) noexcept { return seen(list * 2); }
  std::span<std::int32_t> ends(std::int64_t list) noexcept { return seen(list * 2 + 1); }

 private:
  std::byte* block_of(std::int64_t head, std::int64_t block) noexcept {
    return packed_.get() + (head * blocks_ + block) * 3 * packed_block(dims_);
  }
  std::span<std::int32_t> seen(std::int64_t i) noexcept {
    auto const size = static_cast<std::size_t>(tiles_ * tile_queries);
    return std::span(seen_).subspan(static_cast<std::size_t>(i) * size, size);
  }

  std::int64_t kv_heads_;
  std::int64_t dims_;
  std::int64_t tiles_;
  std::int64_t blocks_;
  std::int64_t tile_bytes_;
  raw_room tiles_room_;
  raw_room packed_;
  raw_room places_;
  std::vector<std::int32_t> seen_;  ///< `[kv_heads, 2, tiles * 32]`
};

}  // namespace kvpolicy::simd
