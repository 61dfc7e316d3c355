// Rows that the library owns: the keys and values of one sequence. A policy may drop any of them, head by head.
#pragma once

#include <array>
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

/// Owns a sequence's rows, each head its own number of them, packed into blocks of `rows_of_block`.
/// A row is a token's key and its value. Tokens keep their indices when others are dropped, so every policy sees an ordinary
/// view, in which it must not read the rows that it dropped. Forked stores share blocks until one of them writes there. Not
/// thread-safe. Compiled (link kvpolicy::store).
class row_store {
 public:
  static constexpr std::int64_t rows_of_block = 64;  ///< rows of a block
  /// Returns the bytes of a row.
  /// @param shape  the cache's shape, with the type of its keys
  /// @param values  the type of its values
  /// @return bytes of a key and a value
  static std::int64_t row_bytes(cache_shape const& shape, element_type values);
  /// Returns the bytes of an arena's block.
  /// @param shape  the cache's shape, with the type of its keys
  /// @param values  the type of its values
  /// @return bytes of `rows_of_block` rows
  static std::int64_t block_bytes(cache_shape const& shape, element_type values) {
    return rows_of_block * row_bytes(shape, values);
  }
  /// Does the same for values of the keys' type.
  static std::int64_t block_bytes(cache_shape const& shape) { return block_bytes(shape, shape.type); }

  /// Makes an empty store on an arena, which must outlive it.
  /// @param arena  whose blocks have `block_bytes(shape, values)` bytes
  /// @param shape  the cache's shape, with the type of its keys
  /// @param values  the type of its values
  /// @throws invalid_value if the shape makes no sense, or the arena is for another shape
  row_store(block_arena& arena, cache_shape const& shape, element_type values);
  /// Does the same for values of the keys' type.
  row_store(block_arena& arena, cache_shape const& shape) : row_store(arena, shape, shape.type) {}
  row_store(row_store&&) noexcept = default;
  row_store& operator=(row_store&&) noexcept;
  ~row_store() { clear(); }
  /// Copies the first tokens, without copying a row.
  /// @param tokens  how many
  /// @return a store on the same arena
  row_store fork(std::int64_t tokens) const;

  cache_shape const& shape() const noexcept { return shape_; }
  block_arena const& arena() const noexcept { return *arena_; }
  /// Returns the tokens that a layer was given, dropped ones included.
  /// @param layer  the layer
  /// @throws invalid_value for a layer that there is not
  std::int64_t tokens(layer_id layer) const;
  /// Returns the tokens that every layer was given: the engine may free its own rows of them.
  std::int64_t released() const noexcept;
  /// Whether no row was ever dropped from between the rows that are left.
  bool whole() const noexcept { return whole_; }
  /// Returns the rows that a head has.
  /// @param layer,head  the head
  /// @throws invalid_value for a head that there is not
  std::int64_t rows_of(layer_id layer, std::int64_t head) const;
  /// Returns the rows of all heads.
  std::int64_t rows_held() const noexcept;
  /// Returns the bytes of the blocks in use, shared ones included.
  std::int64_t bytes_held() const noexcept;

  /// Appends a layer's next tokens. An exception appends nothing.
  /// @param layer  the layer
  /// @param keys,values  all of their tokens; any layout whose rows are contiguous
  /// @throws invalid_value for rows of another shape, or beyond `max_tokens`
  /// @throws error if the arena is exhausted
  void append(layer_id layer, rows const& keys, rows const& values);
  /// Drops the tokens that a selection does not name.
  /// @param layer  the layer
  /// @param kept  the tokens that stay
  /// @param tokens  the selection decides about the first `tokens` tokens; later ones stay
  void retain(layer_id layer, selection const& kept, std::int64_t tokens);
  /// Drops the tokens from `tokens` on, in every layer.
  /// @param tokens  how many first tokens stay
  void truncate(std::int64_t tokens);
  void clear() noexcept;
  /// Returns the fewest tokens that truncate() and clear() were told to leave since forget_least_left(); 0 of a new store.
  std::int64_t least_left() const noexcept { return least_left_; }
  /// Begins anew: nothing was removed yet.
  void forget_least_left() noexcept { least_left_ = INT64_MAX; }

  /// Returns a token's key, followed by its value.
  /// @param layer,head,token  whose row
  /// @return the row; null if it is not here
  /// @throws invalid_value for a head that there is not
  std::byte const* row(layer_id layer, std::int64_t head, std::int32_t token) const;
  /// Marks rows as being elsewhere: not dropped, but not here.
  /// @param layer,head  whose rows
  /// @param tokens  ascending
  void evict(layer_id layer, std::int64_t head, std::span<std::int32_t const> tokens) noexcept;
  /// Makes room for the row of a token that is not here.
  /// @param layer,head,token  whose row
  /// @return where the caller puts the key, followed by the value
  /// @throws error if the arena is exhausted
  std::byte* readmit(layer_id layer, std::int64_t head, std::int32_t token);

  /// Writes a layer's rows as bytes. All of them must be here.
  /// @param layer  the layer
  /// @param a  the writer
  void save(layer_id layer, state_writer& a) const;
  /// Reads what save() wrote, into a layer without rows. After an exception call clear().
  /// @param layer  the layer
  /// @param a  the reader
  /// @throws invalid_value for a layer of another shape, or one that has rows
  /// @throws error if the arena is exhausted
  void load(layer_id layer, state_reader& a);

  /// Lists the tokens whose rows a head has here.
  /// @param layer,head  the head
  /// @param tokens  how many first tokens to look at
  /// @param into  receives the list
  void list(layer_id layer, std::int64_t head, std::int64_t tokens, range_list& into) const;
  /// Views the first tokens. The view is valid as long as the store, but do not change the store while the view is read.
  /// @param tokens  how many
  /// @return the view
  layer_table_view view(std::int64_t tokens) const noexcept { return {shape_, tokens, keys_.data(), values_.data(), true}; }

 private:
  static constexpr std::int32_t nowhere = -1;

  /// One head's rows. Places are counted through its blocks.
  struct head_rows {
    std::vector<std::int32_t> blocks;
    std::vector<std::int32_t> token_at;  ///< of each place, or nowhere
    std::vector<std::int32_t> free;      ///< places between others, the lowest last
    std::int64_t count = 0;              ///< tokens that have a place
  };

  head_rows& at(layer_id layer, std::int64_t head) noexcept { return heads_[index(layer, head)]; }
  head_rows const& at(layer_id layer, std::int64_t head) const noexcept { return heads_[index(layer, head)]; }
  std::size_t index(layer_id layer, std::int64_t head) const noexcept {
    return static_cast<std::size_t>(layer.value * shape_.kv_heads + head);
  }
  void check_layer(layer_id layer) const;
  void check_head(layer_id layer, std::int64_t head) const;
  std::array<std::int64_t, 5> saved_shape() const;
  /// The layer's rows are as many as it has tokens.
  void show_tokens(layer_id layer) noexcept {
    auto const at = static_cast<std::size_t>(layer.value);
    keys_[at].tokens = values_[at].tokens = tokens_[at];
  }
  /// The row of the arena that each token has, or nowhere.
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
  std::int64_t least_left_ = 0;
  std::vector<std::int64_t> tokens_;        ///< `[layers]`
  std::vector<head_rows> heads_;            ///< `[layers, kv_heads]`
  std::unique_ptr<std::int32_t[]> row_of_;  ///< `[layers, kv_heads, max_tokens]`
  std::vector<rows> keys_;                  ///< `[layers]`
  std::vector<rows> values_;                ///< `[layers]`
};

static_assert(kv_cache_view<decltype(std::declval<row_store const&>().view(0))>);

}  // namespace kvpolicy
