// Views of an engine's KV cache: how the library finds its rows, without copying them.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>

#include "kvpolicy/rows.hpp"

namespace kvpolicy {

/// Describes one sequence's cache, without owning it.
/// Requires: `memory` (host_memory or device_memory); `shape()`; `tokens()`, the number of rows now; `keys(layer)` and
/// `values(layer)`, the rows of a layer, `tokens()` of each head.
/// Semantics: a view is trivially copyable and cheap to copy. Rows stay in place while a verb runs. Rows ascend by position.
/// Positions may have holes: a row's index is its rank, and keys keep the rotation with which they were stored.
/// Model: strided_view, paged_view. Not a model: a std::vector of tensors (it owns).
template <class V>
concept kv_cache_view = std::is_trivially_copyable_v<V> && requires(V const& view, layer_id layer) {
  typename V::memory;
  { view.shape() } -> std::same_as<cache_shape>;
  { view.tokens() } -> std::convertible_to<std::int64_t>;
  { view.keys(layer) } -> std::same_as<basic_rows<typename V::memory>>;
  { view.values(layer) } -> std::same_as<basic_rows<typename V::memory>>;
};

/// A view that can be shortened: steps of several tokens need it.
/// Requires: `first(n)`, the same view of the first n tokens.
template <class V>
concept shortened_view = kv_cache_view<V> && requires(V const& view, std::int64_t n) {
  { view.first(n) } -> std::same_as<V>;
};

/// The address of a cache's first element. It remembers the size of the elements that it was made for, so that floats are not
/// read as halves: a float const* is for f32, a pointer to two bytes for f16 or bf16. Other pointers may be to anything.
struct element_pointer {
  void const* address = nullptr;
  std::int64_t element = 0;  ///< bytes of an element; 0: not known

  constexpr element_pointer() = default;
  constexpr element_pointer(std::nullptr_t) noexcept {}
  template <class T>
  constexpr element_pointer(T const* to) noexcept : address(to) {
    if constexpr (!std::is_void_v<T>) element = sizeof(T) > 1 && !std::is_class_v<T> ? std::int64_t{sizeof(T)} : 0;
  }
  constexpr operator void const*() const noexcept { return address; }
  /// Returns the address so many bytes behind this one.
  constexpr element_pointer behind(std::int64_t bytes) const noexcept {
    element_pointer made = *this;
    if (address != nullptr) made.address = static_cast<std::byte const*>(address) + bytes;
    return made;
  }
  /// Says whether elements of a type can be there.
  /// @param type  the type
  /// @return false for a pointer to elements of another size; blocks can be anywhere
  constexpr bool fits(element_type type) const noexcept {
    return element == 0 || (elements_of_block(type) == 1 && element == size_of(type));
  }
};

/// Bytes between neighbours along each axis of a cache tensor, for keys or for values.
struct byte_strides {
  std::int64_t layer = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;  ///< within a page, if there are pages
  std::int64_t dim = 0;    ///< between elements, or blocks of elements
  std::int64_t page = 0;
  std::int64_t pack = 0;         ///< elements of a run, `dim` apart; 0: a row is one run
  std::int64_t pack_stride = 0;  ///< between runs
};

/// Makes a layer's rows from strides, without pages.
/// @param base  the first element of layer 0
/// @param s  the strides
/// @param cache  the shape
/// @param layer  the layer
/// @param tokens  the number of rows of each head
/// @param dim  elements of a row
/// @return the rows
template <class Memory>
constexpr basic_rows<Memory> rows_at(void const* base, byte_strides const& s, cache_shape const& cache, layer_id layer,
                                     std::int64_t tokens, std::int64_t dim) noexcept {
  basic_rows<Memory> made{};
  made.base = static_cast<std::byte const*>(base) + layer.value * s.layer;
  made.type = cache.type;
  made.heads = cache.kv_heads;
  made.tokens = tokens;
  made.head_dim = dim;
  made.head_stride = s.head;
  made.token_stride = s.token;
  made.dim_stride = s.dim;
  made.pack = s.pack;
  made.pack_stride = s.pack_stride;
  return made;
}

/// A cache without pages, with any strides: Hugging Face `[H, L, D]`, llama.cpp `[L, H, D]`, transposed values, and so on.
template <class Memory = host_memory>
struct strided_view {
  using memory = Memory;

  cache_shape cache{};
  std::int64_t token_count = 0;
  element_pointer key_base{};    ///< layer 0's first element
  element_pointer value_base{};  ///< layer 0's first element
  byte_strides key_strides{};
  byte_strides value_strides{};

  constexpr cache_shape shape() const noexcept { return cache; }
  constexpr std::int64_t tokens() const noexcept { return token_count; }
  /// Returns the view of the first n tokens.
  /// @param n  how many
  constexpr strided_view first(std::int64_t n) const noexcept {
    strided_view made = *this;
    made.token_count = n;
    return made;
  }
  constexpr basic_rows<Memory> keys(layer_id layer) const noexcept {
    return rows_at<Memory>(key_base, key_strides, cache, layer, token_count, cache.head_dim);
  }
  constexpr basic_rows<Memory> values(layer_id layer) const noexcept {
    return rows_at<Memory>(value_base, value_strides, cache, layer, token_count, cache.values_dim());
  }
};

/// Returns the shape by which values are laid out where keys and values are separate arrays, or one of latent rows.
/// @param cache  the cache's shape
/// @param keys,values  where they begin; at the same address values are the first channels of key rows
/// @return the shape, whose head_dim is what a row of the values' array has
constexpr cache_shape layout_of_values(cache_shape const& cache, element_pointer keys, element_pointer values) noexcept {
  cache_shape made = cache;
  if (keys.address == nullptr || keys.address != values.address) made.head_dim = cache.values_dim();
  return made;
}

/// The order of a page's axes: nhd is `[page_size, heads, head_dim]`, hnd `[heads, page_size, head_dim]`. It is never inferred.
enum class page_layout : std::uint8_t { nhd, hnd };

/// Computes the strides of a pool `[pages, page_size, heads, head_dim]` or `[pages, heads, page_size, head_dim]`, of keys, or
/// with the shape from layout_of_values() of values.
/// If a page holds more than these keys or values, set `page`, and `layer`, of the result to the real distances.
/// @param how  the order of a page's axes
/// @param cache  the shape, whose head_dim a row has
/// @param page_size  tokens of a page
/// @param layer  bytes between the pools of neighbouring layers
/// @return strides in bytes, for contiguous rows
constexpr byte_strides strides_of(page_layout how, cache_shape const& cache, std::int64_t page_size,
                                  std::int64_t layer = 0) noexcept {
  std::int64_t const row = bytes_of(cache.type, cache.head_dim);
  bool const by_token = how == page_layout::nhd;
  return {.layer = layer,
          .head = by_token ? row : page_size * row,
          .token = by_token ? cache.kv_heads * row : row,
          .dim = size_of(cache.type),
          .page = cache.kv_heads * page_size * row};
}

/// A paged cache, with any strides, and one page table for all layers and heads, or one for keys and one for values.
template <class Memory = host_memory>
struct paged_view {
  using memory = Memory;

  cache_shape cache{};
  std::int64_t token_count = 0;
  element_pointer key_base{};    ///< page 0 of layer 0
  element_pointer value_base{};  ///< page 0 of layer 0
  byte_strides key_strides{};
  byte_strides value_strides{};
  std::int64_t page_size = 0;                 ///< tokens
  std::int32_t const* pages = nullptr;        ///< `[ceil(tokens / page_size)]` physical pages
  std::int32_t const* value_pages = nullptr;  ///< the values' page table; null: `pages` holds for values too

  constexpr cache_shape shape() const noexcept { return cache; }
  constexpr std::int64_t tokens() const noexcept { return token_count; }
  /// Returns the view of the first n tokens.
  /// @param n  how many
  constexpr paged_view first(std::int64_t n) const noexcept {
    paged_view made = *this;
    made.token_count = n;
    return made;
  }
  constexpr basic_rows<Memory> keys(layer_id layer) const noexcept {
    return at(key_base, key_strides, pages, layer, cache.head_dim);
  }
  constexpr basic_rows<Memory> values(layer_id layer) const noexcept {
    return at(value_base, value_strides, value_pages == nullptr ? pages : value_pages, layer, cache.values_dim());
  }

 private:
  constexpr basic_rows<Memory> at(void const* base, byte_strides const& strides, std::int32_t const* table, layer_id layer,
                                  std::int64_t dim) const noexcept {
    basic_rows<Memory> made = rows_at<Memory>(base, strides, cache, layer, token_count, dim);
    made.pages = table;
    made.page_size = page_size;
    made.page_stride = strides.page;
    return made;
  }
};

/// Returns a view's shape, which start() needs.
/// @param view  the view
/// @return its shape
/// @throws invalid_value if the shape is impossible
template <kv_cache_view View>
cache_shape shape_of(View const& view) {
  check(view.shape());
  return view.shape();
}

/// A view of some tokens of another view: the tokens that a policy retained, in ascending order.
template <kv_cache_view View>
struct indexed_view {
  using memory = typename View::memory;

  View all{};
  std::int64_t count = 0;                 ///< tokens of each head
  std::int32_t const* indices = nullptr;  ///< `[heads, index_stride]` ascending tokens, of the layer whose rows are read
  std::int64_t index_stride = 0;          ///< entries; 0: the same indices for all heads

  constexpr cache_shape shape() const noexcept { return all.shape(); }
  constexpr std::int64_t tokens() const noexcept { return count; }
  constexpr basic_rows<memory> keys(layer_id layer) const noexcept { return indexed(all.keys(layer)); }
  constexpr basic_rows<memory> values(layer_id layer) const noexcept { return indexed(all.values(layer)); }

 private:
  constexpr basic_rows<memory> indexed(basic_rows<memory> few) const noexcept {
    few.tokens = indices == nullptr ? std::min(count, few.tokens) : count;
    few.indices = indices;
    few.index_stride = index_stride;
    return few;
  }
};

static_assert(shortened_view<strided_view<>> && shortened_view<paged_view<>>);
static_assert(kv_cache_view<strided_view<device_memory>> && kv_cache_view<paged_view<device_memory>>);

}  // namespace kvpolicy
