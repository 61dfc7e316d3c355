// The KV-cache view: what the library knows of an engine's cache. Nothing is copied to use it.
#pragma once

#include <concepts>
#include <string>
#include <type_traits>

#include "kvpolicy/rows.hpp"

namespace kvpolicy {

/// A non-owning description of one sequence's cache.
///
/// Requires: `memory` (host_memory or device_memory); `shape()`; `tokens()`, how many rows exist now; `keys(layer)` and
/// `values(layer)`, that layer's rows.
/// Semantics: trivially copyable and cheap to copy; rows stay where they are while a verb runs; rows ascend by position
/// (holes between positions are ordinary: a row's index is its rank, keys keep the rotation that they were stored with).
/// Model: strided_view, paged_view. Not a model: a std::vector of tensors (it owns).
template <class V>
concept kv_cache_view = std::is_trivially_copyable_v<V> && requires(V const& view, layer_id layer) {
  typename V::memory;
  { view.shape() } -> std::same_as<cache_shape>;
  { view.tokens() } -> std::convertible_to<std::int64_t>;
  { view.keys(layer) } -> std::same_as<basic_rows<typename V::memory>>;
  { view.values(layer) } -> std::same_as<basic_rows<typename V::memory>>;
};

/// Bytes between neighbours along each axis of a cache tensor.
struct byte_strides {
  std::int64_t layer = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;  ///< within a page where there are pages
  std::int64_t dim = 0;
  std::int64_t page = 0;
  std::int64_t pack = 0;         ///< elements of a run of channels; 0: `dim` holds for all of a row
  std::int64_t pack_stride = 0;  ///< between such runs
};

/// A layer's rows by those strides, without pages.
template <class Memory>
constexpr basic_rows<Memory> rows_at(void const* base, byte_strides const& s, cache_shape const& cache, layer_id layer,
                                     std::int64_t tokens) noexcept {
  basic_rows<Memory> made{};
  made.base = static_cast<std::byte const*>(base) + layer.value * s.layer;
  made.type = cache.type;
  made.heads = cache.kv_heads;
  made.tokens = tokens;
  made.head_dim = cache.head_dim;
  made.head_stride = s.head;
  made.token_stride = s.token;
  made.dim_stride = s.dim;
  made.pack = s.pack;
  made.pack_stride = s.pack_stride;
  return made;
}

/// A cache without pages, any strides (Hugging Face `[H, L, D]`, llama.cpp `[L, H, D]`, transposed values, ...).
template <class Memory = host_memory>
struct strided_view {
  using memory = Memory;

  cache_shape cache{};
  std::int64_t token_count = 0;
  void const* key_base = nullptr;
  void const* value_base = nullptr;
  byte_strides key_strides{};
  byte_strides value_strides{};

  constexpr cache_shape shape() const noexcept { return cache; }
  constexpr std::int64_t tokens() const noexcept { return token_count; }
  constexpr basic_rows<Memory> keys(layer_id layer) const noexcept {
    return rows_at<Memory>(key_base, key_strides, cache, layer, token_count);
  }
  constexpr basic_rows<Memory> values(layer_id layer) const noexcept {
    return rows_at<Memory>(value_base, value_strides, cache, layer, token_count);
  }
};

/// Order of a page's axes: `[page_size, heads, head_dim]` or `[heads, page_size, head_dim]`. Explicit, never inferred.
enum class page_layout : std::uint8_t { nhd, hnd };

/// Strides of a pool `[pages, page_size, heads, head_dim]` or `[pages, heads, page_size, head_dim]`; `layer` between layers'
/// pools. Where more lies in a page than its keys or values, set `page` (and `layer`) to what that makes it.
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

/// A paged cache, any strides; one page table for all layers and heads, or one for keys and one for values.
template <class Memory = host_memory>
struct paged_view {
  using memory = Memory;

  cache_shape cache{};
  std::int64_t token_count = 0;
  void const* key_base = nullptr;    ///< page 0 of layer 0
  void const* value_base = nullptr;  ///< the same for values
  byte_strides key_strides{};
  byte_strides value_strides{};
  std::int64_t page_size = 0;                 ///< tokens
  std::int32_t const* pages = nullptr;        ///< `[ceil(tokens / page_size)]`
  std::int32_t const* value_pages = nullptr;  ///< the same for values; null: they lie in the keys' pages

  constexpr cache_shape shape() const noexcept { return cache; }
  constexpr std::int64_t tokens() const noexcept { return token_count; }
  constexpr basic_rows<Memory> keys(layer_id layer) const noexcept { return at(key_base, key_strides, pages, layer); }
  constexpr basic_rows<Memory> values(layer_id layer) const noexcept {
    return at(value_base, value_strides, value_pages == nullptr ? pages : value_pages, layer);
  }

 private:
  constexpr basic_rows<Memory> at(void const* base, byte_strides const& strides, std::int32_t const* table,
                                  layer_id layer) const noexcept {
    basic_rows<Memory> made = rows_at<Memory>(base, strides, cache, layer, token_count);
    made.pages = table;
    made.page_size = page_size;
    made.page_stride = strides.page;
    return made;
  }
};

/// What start() needs to know of a cache: its shape. Throws as check() does.
template <kv_cache_view View>
cache_shape shape_of(View const& view) {
  check(view.shape());
  return view.shape();
}

/// A view of a few of another view's tokens: those that a policy retained, in index order.
template <kv_cache_view View>
struct indexed_view {
  using memory = typename View::memory;

  View all{};
  std::int64_t count = 0;                 ///< tokens of each head that is read
  std::int32_t const* indices = nullptr;  ///< `[heads, index_stride]` tokens, ascending; of the layer that is asked for
  std::int64_t index_stride = 0;

  constexpr cache_shape shape() const noexcept { return all.shape(); }
  constexpr std::int64_t tokens() const noexcept { return count; }
  constexpr basic_rows<memory> keys(layer_id layer) const noexcept { return indexed(all.keys(layer)); }
  constexpr basic_rows<memory> values(layer_id layer) const noexcept { return indexed(all.values(layer)); }

 private:
  constexpr basic_rows<memory> indexed(basic_rows<memory> few) const noexcept {
    few.tokens = count;
    few.indices = indices;
    few.index_stride = index_stride;
    return few;
  }
};

static_assert(kv_cache_view<strided_view<>> && kv_cache_view<paged_view<>>);
static_assert(kv_cache_view<strided_view<device_memory>> && kv_cache_view<paged_view<device_memory>>);

}  // namespace kvpolicy
