// What the session knows of the cache's cells: the position of each one's token, and how to tell that token by its keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvpolicy/interop/llama.hpp"
#include "kvpolicy/rows.hpp"
#include "micro_batch.hpp"

namespace kvpolicy::llama {

/// The engine moves cells' contents without a word (copies of streams, restored states), so a position is known by content: a
/// token's last keys differ with its id, its position and every token before it. Cells are counted stream after stream.
class cell_table {
 public:
  static constexpr std::int32_t unknown = -1;

  /// Rows are layer 0's, of all cells. Keys wider than values are rotated behind as many channels as those have (MLA).
  void begin(rows const& keys, rows const& values, std::int64_t cells_of_a_stream);
  bool are_of(rows const& keys) const noexcept { return keys.base == first_.base && keys.tokens == first_.tokens; }
  /// The last layer's.
  void see_last(rows const& keys) noexcept {
    indexed_ = indexed_ && sees_history();
    last_ = keys;
  }
  bool sees_history() const noexcept { return last_.base != nullptr; }
  std::int64_t cells_of_a_stream() const noexcept { return per_stream_; }

  /// What is in the cell now. Without history until the last layer's keys were seen.
  fingerprint read(std::int64_t stream, std::int32_t cell) const noexcept { return read(index(stream, cell)); }
  /// Whether that is this token; compared by all that can be read.
  bool holds(std::int64_t stream, std::int32_t cell, fingerprint const& token) const noexcept;
  /// Of the token that is in the cell now; unknown where the session has not seen it written, or it was long ago.
  std::int32_t position(std::int64_t stream, std::int32_t cell) { return position(index(stream, cell)); }

  /// A graph is about to write its tokens; their positions are not known until all is computed.
  void write(graph_tokens const& graph);
  /// The last layer's keys of these cells are there.
  void seal(std::span<std::int64_t const> written) noexcept;
  /// A graph is about to rotate the cached keys by so many positions, a number for each cell (llama_memory_seq_add).
  void rotate(std::span<std::int32_t const> by);
  void rotated() noexcept;
  /// Of a token in a state that the engine has restored or will.
  void remember(fingerprint const& token, std::int32_t position);
  void forget() noexcept;

 private:
  struct record {
    fingerprint token{};
    std::int32_t position = unknown;
    bool sealed = false;  ///< the token's keys were all computed
  };

  std::int64_t index(std::int64_t stream, std::int32_t cell) const noexcept { return stream * per_stream_ + cell; }
  fingerprint read(std::int64_t cell) const noexcept;
  std::uint64_t key(fingerprint const& token) const noexcept { return sees_history() ? token.history : token.self; }
  std::int32_t position(std::int64_t cell);
  std::int32_t find(fingerprint const& token);
  void retire(record const& old);

  std::int64_t per_stream_ = 0;
  std::size_t other_ = 0;  ///< bytes before the second part of a key that is looked at
  rows first_{};
  rows last_{};
  std::vector<record> records_;  ///< of each cell, as it was last seen written
  std::vector<record> past_;     ///< a ring: what was overwritten may have been copied before, or come back
  std::size_t oldest_ = 0;       ///< of the ring
  std::vector<record> index_;    ///< both, by key()
  bool indexed_ = false;         ///< index_ is as they are
};

}  // namespace kvpolicy::llama
