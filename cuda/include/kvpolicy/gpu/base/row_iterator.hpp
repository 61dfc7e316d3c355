// The rows of a KV head on the device as a random-access range, for Thrust, CUB and loops of your own.
#pragma once

#include <cmath>
#include <compare>
#include <iterator>

#include "kvpolicy/gpu/base/element.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::gpu {

/// One key or value in device memory, read in place: element i is a float.
class row {
 public:
  constexpr row(std::byte const* data, element_type type, std::int64_t size, std::int64_t stride)
      : data_(data), size_(size), stride_(stride), type_(type) {}
  constexpr std::int64_t size() const { return size_; }
  KVPOLICY_KERNEL float operator[](std::int64_t i) const {
    std::byte const* const at = data_ + i * stride_;
    if (type_ == element_type::f32) return *reinterpret_cast<float const*>(at);
    auto const half = *reinterpret_cast<std::uint16_t const*>(at);
    return type_ == element_type::f16 ? widened<element_type::f16>(half) : widened<element_type::bf16>(half);
  }

 private:
  std::byte const* data_;
  std::int64_t size_;
  std::int64_t stride_;  ///< bytes
  element_type type_;
};

/// Returns the Euclidean norm of a row.
/// @param r  `[head_dim]`
KVPOLICY_KERNEL float norm(row const& r) {
  float squares = 0;
  for (std::int64_t i = 0; i < r.size(); ++i) squares += r[i] * r[i];
  return sqrtf(squares);
}
/// Returns the dot product of a row and a vector, or another row.
/// @param a  `[head_dim]`
/// @param b  as long: anything with an operator[]
template <class Vector>
KVPOLICY_KERNEL float dot(row const& a, Vector const& b) {
  float sum = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// A random-access iterator over a KV head's rows, token by token. A row is read on the device alone, so give Thrust's
/// algorithms a policy: thrust::cuda::par_nosync.on(stream).
class row_iterator {
 public:
  using iterator_category = std::random_access_iterator_tag;
  using value_type = row;
  using difference_type = std::int64_t;
  using reference = row;
  using pointer = void;

  row_iterator() = default;
  constexpr row_iterator(basic_rows<device_memory> const& rows, std::int64_t head, std::int64_t token)
      : rows_(rows), head_(head), token_(token) {}

  constexpr row operator*() const { return (*this)[0]; }
  constexpr row operator[](std::int64_t n) const {
    return {rows_.address({head_}, {token_ + n}), rows_.type, rows_.head_dim, rows_.dim_stride};
  }
  constexpr row_iterator& operator+=(std::int64_t n) {
    token_ += n;
    return *this;
  }
  constexpr row_iterator& operator-=(std::int64_t n) { return *this += -n; }
  constexpr row_iterator& operator++() { return *this += 1; }
  constexpr row_iterator& operator--() { return *this += -1; }
  constexpr row_iterator operator++(int) { return (*this += 1) - 1; }
  constexpr row_iterator operator--(int) { return (*this -= 1) + 1; }
  constexpr friend row_iterator operator+(row_iterator at, std::int64_t n) { return at += n; }
  constexpr friend row_iterator operator+(std::int64_t n, row_iterator at) { return at += n; }
  constexpr friend row_iterator operator-(row_iterator at, std::int64_t n) { return at -= n; }
  constexpr friend std::int64_t operator-(row_iterator const& a, row_iterator const& b) { return a.token_ - b.token_; }
  constexpr friend bool operator==(row_iterator const& a, row_iterator const& b) { return a.token_ == b.token_; }
  constexpr friend auto operator<=>(row_iterator const& a, row_iterator const& b) { return a.token_ <=> b.token_; }

 private:
  basic_rows<device_memory> rows_{};
  std::int64_t head_ = 0;
  std::int64_t token_ = 0;
};

/// Returns an iterator to a KV head's first row.
/// @param rows  a layer's keys or values, plain, without indices; a page table is in device memory
/// @param head  the head
/// @return the iterator; the last row's is `rows.tokens - 1` behind it
/// @throws unsupported for rows that are not plain, or have indices
inline row_iterator rows_begin(basic_rows<device_memory> const& rows, head_id head) {
  if (!rows.plain() || rows.indices != nullptr)
    throw unsupported("an iterator reads rows that are contiguous, as they lie; these are strided, in blocks or indexed");
  return {rows, head.value, 0};
}
/// Returns an iterator to a KV head's first key.
/// @param view  a sequence's cache, in device memory
/// @param layer,head  which keys
/// @return the iterator; the last key's is `view.tokens() - 1` behind it
/// @throws unsupported as above
template <class View>
  requires std::same_as<typename View::memory, device_memory> row_iterator rows_begin(View const& view, layer_id layer,
                                                                                      head_id head) {
    return rows_begin(view.keys(layer), head);
  }

}  // namespace kvpolicy::gpu
