// The KV-cache view: what the library knows of an engine's cache. Nothing is copied to use it.
#pragma once

#include <concepts>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// The fixed sizes of one sequence's cache, known when a request begins.
struct cache_shape {
  std::int64_t layers = 0;
  std::int64_t q_heads = 0;     ///< query heads of a layer, a multiple of kv_heads
  std::int64_t kv_heads = 0;    ///< KV heads of a layer
  std::int64_t head_dim = 0;    ///< elements of a key or value row
  std::int64_t max_tokens = 0;  ///< the most tokens that the sequence can ever hold
  element_type type = element_type::f16;

  constexpr std::int64_t group() const noexcept { return q_heads / kv_heads; }
  bool operator==(cache_shape const&) const = default;
};

/// Key or value rows of one layer, `[heads, tokens, head_dim]`, where they lie. Offsets are 64-bit throughout.
/// With a page table, token t of head h is row t % page_size of page pages[t / page_size]. With ranks, "token" r of head h is
/// token ranks[h * rank_stride + r] of all that: rows of a few tokens, as if the others did not exist.
template <class Memory>
struct basic_rows {
  using memory = Memory;

  std::byte const* base = nullptr;
  element_type type = element_type::f16;
  std::int64_t heads = 0;
  std::int64_t tokens = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_stride = 0;   ///< bytes
  std::int64_t token_stride = 0;  ///< bytes, within a page where there are pages
  std::int64_t dim_stride = 0;    ///< bytes; size_of(type) for contiguous rows

  std::int32_t const* pages = nullptr;  ///< `[ceil(tokens / page_size)]` physical pages, or null: no pages
  std::int64_t page_size = 0;           ///< tokens
  std::int64_t page_stride = 0;         ///< bytes

  std::int32_t const* ranks = nullptr;  ///< `[heads, rank_stride]` tokens, or null: every token is its own rank
  std::int64_t rank_stride = 0;         ///< elements; 0: the same for all heads

  constexpr bool contiguous() const noexcept { return dim_stride == size_of(type); }

  /// Address of the row's first element; no bounds check.
  constexpr std::byte const* address(head_id head, token_index token) const noexcept {
    std::int64_t offset = head.value * head_stride;
    if (ranks != nullptr) token.value = ranks[head.value * rank_stride + token.value];
    if (pages == nullptr) return base + offset + token.value * token_stride;
    offset += static_cast<std::int64_t>(pages[token.value / page_size]) * page_stride;
    return base + offset + (token.value % page_size) * token_stride;
  }

  /// The rows of a few heads.
  constexpr basic_rows of(head_range few) const noexcept {
    basic_rows result = *this;
    result.base += few.first * head_stride;
    result.heads = few.count;
    if (ranks != nullptr) result.ranks += few.first * rank_stride;
    return result;
  }

  /// The row as floats: `[head_dim]`. Host rows only.
  void load(head_id head, token_index token, std::span<float> row) const noexcept requires std::same_as<Memory, host_memory> {
    std::byte const* element = address(head, token);
    for (std::int64_t i = 0; i < head_dim; ++i, element += dim_stride) {
      std::uint16_t half = 0;
      float& out = row[static_cast<std::size_t>(i)];
      switch (type) {
        case element_type::f32:
          std::memcpy(&out, element, sizeof out);
          break;
        case element_type::f16:
          std::memcpy(&half, element, sizeof half);
          out = half_to_float(half);
          break;
        case element_type::bf16:
          std::memcpy(&half, element, sizeof half);
          out = bfloat_to_float(half);
          break;
      }
    }
  }
};

using rows = basic_rows<host_memory>;

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
  std::int64_t token = 0;
  std::int64_t dim = 0;
};

/// A cache without pages, any strides (Hugging Face `[H, L, D]`, llama.cpp `[L, H, D]`, transposed values, ...).
template <class Memory = host_memory>
struct strided_view {
  using memory = Memory;

  cache_shape cache{};
  std::int64_t token_count = 0;
  std::byte const* key_base = nullptr;
  std::byte const* value_base = nullptr;
  byte_strides key_strides{};
  byte_strides value_strides{};

  constexpr cache_shape shape() const noexcept { return cache; }
  constexpr std::int64_t tokens() const noexcept { return token_count; }
  constexpr basic_rows<Memory> keys(layer_id layer) const noexcept { return at(key_base, key_strides, layer); }
  constexpr basic_rows<Memory> values(layer_id layer) const noexcept { return at(value_base, value_strides, layer); }

 private:
  constexpr basic_rows<Memory> at(std::byte const* base, byte_strides const& s, layer_id layer) const noexcept {
    return {.base = base + layer.value * s.layer,
            .type = cache.type,
            .heads = cache.kv_heads,
            .tokens = token_count,
            .head_dim = cache.head_dim,
            .head_stride = s.head,
            .token_stride = s.token,
            .dim_stride = s.dim};
  }
};

/// Order of a page's axes: `[page_size, heads, head_dim]` or `[heads, page_size, head_dim]`. Explicit, never inferred.
enum class page_layout : std::uint8_t { nhd, hnd };

/// A paged cache: contiguous rows, one page table for all layers and heads; K and V in pools of their own or packed.
template <class Memory = host_memory>
struct paged_view {
  using memory = Memory;

  cache_shape cache{};
  std::int64_t token_count = 0;
  std::byte const* key_base = nullptr;    ///< page 0 of layer 0
  std::byte const* value_base = nullptr;  ///< the same for values; key_base + one page's keys where they are packed
  std::int64_t layer_stride = 0;          ///< bytes between layers, keys and values alike
  std::int64_t page_stride = 0;           ///< bytes between pages, keys and values alike
  std::int64_t page_size = 0;             ///< tokens
  page_layout layout = page_layout::nhd;
  std::int32_t const* pages = nullptr;  ///< `[ceil(tokens / page_size)]`

  constexpr cache_shape shape() const noexcept { return cache; }
  constexpr std::int64_t tokens() const noexcept { return token_count; }
  constexpr basic_rows<Memory> keys(layer_id layer) const noexcept { return at(key_base, layer); }
  constexpr basic_rows<Memory> values(layer_id layer) const noexcept { return at(value_base, layer); }

 private:
  constexpr basic_rows<Memory> at(std::byte const* base, layer_id layer) const noexcept {
    std::int64_t const row = cache.head_dim * size_of(cache.type);
    bool const by_token = layout == page_layout::nhd;
    return {.base = base + layer.value * layer_stride,
            .type = cache.type,
            .heads = cache.kv_heads,
            .tokens = token_count,
            .head_dim = cache.head_dim,
            .head_stride = by_token ? row : page_size * row,
            .token_stride = by_token ? cache.kv_heads * row : row,
            .dim_stride = size_of(cache.type),
            .pages = pages,
            .page_size = page_size,
            .page_stride = page_stride};
  }
};

/// What start() needs to know of a cache: its shape. Throws invalid_value where the shape makes no sense.
template <kv_cache_view View>
cache_shape shape_of(View const& view) {
  cache_shape const shape = view.shape();
  KVPOLICY_EXPECTS(shape.layers > 0 && shape.kv_heads > 0 && shape.q_heads > 0 && shape.head_dim > 0,
                   "a cache needs layers, heads and a head size; got " + std::to_string(shape.layers) + " layers, " +
                       std::to_string(shape.q_heads) + "/" + std::to_string(shape.kv_heads) + " heads x " +
                       std::to_string(shape.head_dim));
  KVPOLICY_EXPECTS(shape.q_heads % shape.kv_heads == 0, std::to_string(shape.q_heads) + " query heads are no multiple of " +
                                                            std::to_string(shape.kv_heads) + " KV heads");
  KVPOLICY_EXPECTS(shape.max_tokens > 0 && shape.max_tokens <= INT32_MAX,
                   "max_tokens is " + std::to_string(shape.max_tokens) + ", it must be in 1..2147483647");
  return shape;
}

/// A view of a few of another view's tokens: those that a policy retained, in rank order.
template <kv_cache_view View>
struct ranked_view {
  using memory = typename View::memory;

  View all{};
  std::int64_t count = 0;               ///< tokens of each head that is read
  std::int32_t const* ranks = nullptr;  ///< `[heads, rank_stride]` tokens, ascending; of the layer that is asked for
  std::int64_t rank_stride = 0;

  constexpr cache_shape shape() const noexcept { return all.shape(); }
  constexpr std::int64_t tokens() const noexcept { return count; }
  constexpr basic_rows<memory> keys(layer_id layer) const noexcept { return ranked(all.keys(layer)); }
  constexpr basic_rows<memory> values(layer_id layer) const noexcept { return ranked(all.values(layer)); }

 private:
  constexpr basic_rows<memory> ranked(basic_rows<memory> few) const noexcept {
    few.tokens = count;
    few.ranks = ranks;
    few.rank_stride = rank_stride;
    return few;
  }
};

static_assert(kv_cache_view<strided_view<>> && kv_cache_view<paged_view<>>);
static_assert(kv_cache_view<strided_view<device_memory>> && kv_cache_view<paged_view<device_memory>>);

}  // namespace kvpolicy
