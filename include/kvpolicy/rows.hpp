// Key or value rows where an engine stores them: strides, pages, packed channels, indices.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>

#include "kvpolicy/detail/element.hpp"
#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// The sizes of one sequence's cache. They are known when a request begins, and never change.
struct cache_shape {
  std::int64_t layers = 0;
  std::int64_t q_heads = 0;               ///< query heads of a layer, a multiple of kv_heads
  std::int64_t kv_heads = 0;              ///< KV heads of a layer
  std::int64_t head_dim = 0;              ///< elements of a key row
  std::int64_t max_tokens = 0;            ///< the most tokens that the sequence can ever hold
  element_type type = element_type::f16;  ///< of keys and values
  std::int64_t value_dim = 0;             ///< elements of a value row; 0: as many as of a key row

  /// Query heads that share a KV head.
  constexpr std::int64_t group() const noexcept { return q_heads / kv_heads; }
  /// Elements of a value row, and of what attention gives.
  constexpr std::int64_t values_dim() const noexcept { return value_dim != 0 ? value_dim : head_dim; }
  constexpr bool operator==(cache_shape const& other) const noexcept {
    return layers == other.layers && q_heads == other.q_heads && kv_heads == other.kv_heads && head_dim == other.head_dim &&
           max_tokens == other.max_tokens && type == other.type && values_dim() == other.values_dim();
  }
};

/// The most tokens that a request can be started for. Beyond this, no size of its state is safe.
inline constexpr std::int64_t longest_sequence = std::int64_t{1} << 26;

/// Describes a shape, for messages.
/// @param shape  the shape
/// @return for example "30 layers, 9/3 heads x 64 of f16"
inline std::string text_of(cache_shape const& shape) {
  return std::to_string(shape.layers) + " layers, " + std::to_string(shape.q_heads) + "/" + std::to_string(shape.kv_heads) +
         " heads x " + std::to_string(shape.head_dim) +
         (shape.values_dim() == shape.head_dim ? "" : " (values " + std::to_string(shape.values_dim()) + ")") + " of " +
         name_of(shape.type);
}

/// Checks a shape.
/// @param shape  the shape
/// @throws invalid_value if a size is not positive, `max_tokens` is above longest_sequence, `q_heads` is no multiple of
/// `kv_heads`, or `head_dim` or `value_dim` is no multiple of the type's block
inline void check(cache_shape const& shape) {
  KVPOLICY_EXPECTS(shape.layers > 0 && shape.kv_heads > 0 && shape.q_heads > 0 && shape.head_dim > 0,
                   "a cache needs layers, heads and a head size; got " + text_of(shape));
  KVPOLICY_EXPECTS(shape.q_heads % shape.kv_heads == 0, std::to_string(shape.q_heads) + " query heads are no multiple of " +
                                                            std::to_string(shape.kv_heads) + " KV heads");
  KVPOLICY_EXPECTS(
      shape.max_tokens > 0 && shape.max_tokens <= longest_sequence,
      "max_tokens is " + std::to_string(shape.max_tokens) + ", it must be in 1.." + std::to_string(longest_sequence));
  KVPOLICY_EXPECTS(shape.value_dim >= 0, "value_dim is " + std::to_string(shape.value_dim) +
                                             "; give the elements of a value row, or 0 for as many as a key row has");
  for (std::int64_t const dim : {shape.head_dim, shape.values_dim()})
    KVPOLICY_EXPECTS(dim % elements_of_block(shape.type) == 0,
                     std::string(name_of(shape.type)) + " rows are blocks of " + std::to_string(elements_of_block(shape.type)) +
                         " elements; a head size of " + std::to_string(dim) + " is no multiple of that");
}

/// Checks a layer's number.
/// @param layer  the layer
/// @param layers  how many there are
/// @throws invalid_value for a layer that there is not
inline void check_layer(layer_id layer, std::int64_t layers) {
  KVPOLICY_EXPECTS(layer.value >= 0 && layer.value < layers,
                   "layer " + std::to_string(layer.value) + "; there are 0 to " + std::to_string(layers - 1));
}

/// Key or value rows of one layer, `[heads, tokens, head_dim]`, in place. All offsets have 64 bits.
/// With a page table, token t of head h is row t % page_size of page pages[t / page_size]. With indices, "token" r of head h is
/// token indices[h * index_stride + r]: the rows show a few tokens, as if the others did not exist. If elements come in blocks,
/// a row is a run of blocks: dim_stride leads from one block to the next, and rows are not packed.
template <class Memory>
struct basic_rows {
  using memory = Memory;

  std::byte const* base = nullptr;  ///< head 0's first element: of token 0, or of page 0
  element_type type = element_type::f16;
  std::int64_t heads = 0;
  std::int64_t tokens = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_stride = 0;   ///< bytes
  std::int64_t token_stride = 0;  ///< bytes; within a page, if there are pages
  std::int64_t dim_stride = 0;    ///< bytes from one element, or block, to the next; size_of(type) for contiguous rows
  std::int64_t pack = 0;          ///< elements of a run, dim_stride apart; 0: a row is one run
  std::int64_t pack_stride = 0;   ///< bytes from one run to the next

  std::int32_t const* pages = nullptr;  ///< `[ceil(tokens / page_size)]` physical pages; null: no pages
  std::int64_t page_size = 0;           ///< tokens
  std::int64_t page_stride = 0;         ///< bytes
  std::int64_t page_table_stride = 0;   ///< entries between heads' tables; 0: one table for all heads (device rows: only 0)

  std::int32_t const* indices = nullptr;  ///< on the host: `[heads, index_stride]` tokens; null: every token is its own rank
  std::int64_t index_stride = 0;          ///< entries; 0: the same indices for all heads

  /// Whether a row is one run of neighbouring elements or blocks, so that its address alone suffices to read it.
  constexpr bool contiguous() const noexcept { return pack == 0 && dim_stride == size_of(type); }

  /// Whether kernels can read the elements in place: rows are contiguous, and elements are not in blocks.
  constexpr bool plain() const noexcept { return contiguous() && elements_of_block(type) == 1; }

  /// Computes where an element lies in its row.
  /// @param i  the element, in 0..head_dim - 1
  /// @return bytes from the row's address to the element, or to its block
  constexpr std::int64_t offset_of(std::int64_t i) const noexcept {
    i /= elements_of_block(type);
    return pack == 0 ? i * dim_stride : i / pack * pack_stride + i % pack * dim_stride;
  }

  /// Looks up which token of the sequence a row belongs to.
  /// @param head  the head
  /// @param token  the row, counted among the rows that are shown
  /// @return the token, counted in the sequence
  constexpr token_index at(head_id head, token_index token) const noexcept {
    return indices == nullptr ? token : token_index{indices[head.value * index_stride + token.value]};
  }

  /// Computes a row's address, without a bounds check.
  /// @param head  the head
  /// @param token  the row, counted among the rows that are shown
  /// @return the address of the row's first element
  constexpr std::byte const* address(head_id head, token_index token) const noexcept {
    std::int64_t offset = head.value * head_stride;
    token = at(head, token);
    if (pages == nullptr) return base + offset + token.value * token_stride;
    std::int32_t const* const table = pages + head.value * page_table_stride;
    offset += static_cast<std::int64_t>(table[token.value / page_size]) * page_stride;
    return base + offset + (token.value % page_size) * token_stride;
  }

  /// Selects some of the heads.
  /// @param few  the heads, counted among these rows' heads
  /// @return the rows of these heads alone
  constexpr basic_rows of(head_range few) const noexcept {
    basic_rows result = *this;
    result.base += few.first * head_stride;
    result.heads = few.count;
    if (indices != nullptr) result.indices += few.first * index_stride;
    if (pages != nullptr) result.pages += few.first * page_table_stride;
    return result;
  }

  /// Converts a row to floats. Only for rows in host memory.
  /// @param head  the head
  /// @param token  the row, counted among the rows that are shown
  /// @param row  `[head_dim]`, written
  void load(head_id head, token_index token, std::span<float> row) const noexcept requires std::same_as<Memory, host_memory> {
    std::byte const* const first = address(head, token);
    for (std::int64_t i = 0; i < head_dim; ++i) {
      std::byte const* const element = first + offset_of(i);
      row[static_cast<std::size_t>(i)] = elements_of_block(type) == 1
                                             ? element_at(element, 0, type)
                                             : block_element(type, element, i % elements_of_block(type));
    }
  }
};

/// Rows in host memory.
using rows = basic_rows<host_memory>;

}  // namespace kvpolicy
