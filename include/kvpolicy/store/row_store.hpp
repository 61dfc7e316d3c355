// Rows that the library owns: the keys and values of one sequence, of which a policy may let any go, head by head.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvpolicy/archive.hpp"
#include "kvpolicy/layer_table_view.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/store/block_arena.hpp"

namespace kvpolicy {

/// Rows by layer and KV head, each head its own number of them, packed into blocks of `rows_of_block`; a row is a token's key
/// and its value. Tokens keep their indices when others are dropped, so that its view is an ordinary one to every policy: what
/// may not be read any more are the rows that it dropped. Stores that were forked share blocks until one of them writes there.
/// Not thread-safe. Compiled (link kvpolicy::store).
class row_store {
 public:
  static constexpr std::int64_t rows_of_block = 64;
  /// Of a row, and of a block of an arena, for such a cache, whose values may be of another type than its keys.
  static std::int64_t row_bytes(cache_shape const& shape, element_type values);
  static std::int64_t block_bytes(cache_shape const& shape, element_type values) {
    return rows_of_block * row_bytes(shape, values);
  }
  static std::int64_t block_bytes(cache_shape const& shape) { return block_bytes(shape, shape.type); }

  /// The arena must outlive it. Throws invalid_value where the shape can't be, or the arena is for another.
  row_store(block_arena& arena, cache_shape const& shape, element_type values);
  row_store(block_arena& arena, cache_shape const& shape) : row_store(arena, shape, shape.type) {}
  row_store(row_store&&) noexcept = default;
  row_store& operator=(row_store&&) noexcept;
  ~row_store() { clear(); }
  /// The first `tokens` tokens, without copying a row.
  row_store fork(std::int64_t tokens) const;

  cache_shape const& shape() const noexcept { return shape_; }
  block_arena const& arena() const noexcept { return *arena_; }
  /// Tokens of the sequence, those that were dropped included, whose rows this layer was given.
  std::int64_t tokens(layer_id layer) const noexcept { return tokens_[static_cast<std::size_t>(layer.value)]; }
  /// The same of all layers: an engine's own rows of these tokens may go.
  std::int64_t released() const noexcept;
  /// Whether no row was ever dropped from between those that are left.
  bool whole() const noexcept { return whole_; }
  std::int64_t rows_of(layer_id layer, std::int64_t head) const noexcept { return at(layer, head).count; }
  /// In all, and what they take of the arena where nothing is shared.
  std::int64_t rows_held() const noexcept;
  std::int64_t bytes_held() const noexcept;

  /// The layer's next tokens: all that `keys` and `values` have, of any layout whose rows are contiguous. Throws invalid_value
  /// for rows of another shape, and beyond max_tokens; error where the arena is exhausted. Nothing is appended then.
  void append(layer_id layer, rows const& keys, rows const& values);
  /// Of the layer's first `tokens` tokens, those that are not named are gone.
  void retain(layer_id layer, selection const& kept, std::int64_t tokens);
  /// Tokens from `tokens` on are gone, in every layer.
  void truncate(std::int64_t tokens) noexcept;
  void clear() noexcept;

  /// A token's key, and behind it its value; null where they are not here.
  std::byte const* row(layer_id layer, std::int64_t head, std::int32_t token) const noexcept;
  /// These tokens, ascending, are elsewhere from now on: not dropped, but not here.
  void evict(layer_id layer, std::int64_t head, std::span<std::int32_t const> tokens) noexcept;
  /// Room for a token that is not here, for its key and then its value. Throws as append().
  std::byte* readmit(layer_id layer, std::int64_t head, std::int32_t token);

  /// A layer's rows as bytes, all of them here; and back, into a layer that has none. Throws invalid_value for a layer of
  /// another shape, and as append(); clear() then.
  void save(layer_id layer, state_writer& a) const;
  void load(layer_id layer, state_reader& a);

  /// Of a head's first `tokens` tokens, those that are here.
  void list(layer_id layer, std::int64_t head, std::int64_t tokens, range_list& into) const;
  /// The first `tokens` tokens. Valid as long as the store, but for append(), retain() and truncate() while it is read.
  layer_table_view view(std::int64_t tokens) const noexcept { return {shape_, tokens, keys_.data(), values_.data()}; }

 private:
  static constexpr std::int32_t nowhere = -1;

  /// Places are counted through a head's blocks.
  struct head_rows {
    std::vector<std::int32_t> blocks;
    std::vector<std::int32_t> token_at;  ///< of each place, or nowhere
    std::vector<std::int32_t> free;      ///< places between others, the lowest last
    std::int64_t count = 0;              ///< tokens that are there
  };

  head_rows& at(layer_id layer, std::int64_t head) noexcept { return heads_[index(layer, head)]; }
  head_rows const& at(layer_id layer, std::int64_t head) const noexcept { return heads_[index(layer, head)]; }
  std::size_t index(layer_id layer, std::int64_t head) const noexcept {
    return static_cast<std::size_t>(layer.value * shape_.kv_heads + head);
  }
  /// Of each token, the row of the arena that it has, or nowhere.
  std::int32_t* row_of(layer_id layer, std::int64_t head) const noexcept {
    return row_of_.get() + static_cast<std::int64_t>(index(layer, head)) * shape_.max_tokens;
  }
  static std::int32_t row_at(head_rows const& head, std::int64_t place) noexcept {
    return head.blocks[static_cast<std::size_t>(place / rows_of_block)] * static_cast<std::int32_t>(rows_of_block) +
           static_cast<std::int32_t>(place % rows_of_block);
  }
  std::byte* address(head_rows const& head, std::int64_t place) const noexcept {
    return arena_->base() + row_at(head, place) * (key_bytes_ + value_bytes_);
  }
  static std::int64_t place_of(head_rows const& head, std::int32_t row) noexcept;
  std::int64_t needs(head_rows const& head, std::int64_t tokens) const noexcept;
  std::int64_t next_place(head_rows& head, std::int32_t* row_of);
  void put(head_rows& head, std::int64_t place, std::int32_t token, std::int32_t* row_of) noexcept;
  static void make_room(head_rows& head);
  void own(head_rows& head, std::int64_t block, std::int32_t* row_of);
  void drop(head_rows& head, std::int64_t place, std::int32_t* row_of) noexcept;
  void settle(head_rows& head) noexcept;
  void close_gaps(head_rows& head, std::int32_t* row_of) noexcept;
  bool can_pack(head_rows const& head) const noexcept;
  void pack(head_rows& head, std::int32_t* row_of) noexcept;

  block_arena* arena_;
  cache_shape shape_;
  std::int64_t key_bytes_;
  std::int64_t value_bytes_;
  bool whole_ = true;
  std::vector<std::int64_t> tokens_;        ///< `[layers]`
  std::vector<head_rows> heads_;            ///< `[layers, kv_heads]`
  std::unique_ptr<std::int32_t[]> row_of_;  ///< `[layers, kv_heads, max_tokens]`
  std::vector<rows> keys_;                  ///< `[layers]`
  std::vector<rows> values_;                ///< `[layers]`
};

static_assert(kv_cache_view<decltype(std::declval<row_store const&>().view(0))>);

}  // namespace kvpolicy
