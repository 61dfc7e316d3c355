// Which cells of a cache hold a sequence's tokens, in the tokens' order. Graphs say which cells a token sees, not in which
// order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvpolicy::ggml {

/// Cells [begin, end), counted through all streams.
struct cell_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(cell_range const&) const = default;
};

/// Cells that were written one after the other.
struct cell_run {
  std::int64_t cell = 0;
  std::int64_t count = 0;
  std::uint64_t written = 0;  ///< the first one's number in a write_order
};

/// When each cell was written: a sequence's later tokens are written later.
class write_order {
 public:
  /// @param cells  of all streams
  explicit write_order(std::int64_t cells = 0) : numbers_(static_cast<std::size_t>(cells), unknown) {}

  /// A token's row goes there now. Returns its number.
  std::uint64_t write(std::int64_t cell) { return numbers_.at(static_cast<std::size_t>(cell)) = ++last_; }
  /// Somebody else wrote these, in an order that is not known.
  void forget(cell_range cells) noexcept;
  /// What had this number is there now.
  void restore(std::int64_t cell, std::uint64_t number) { numbers_.at(static_cast<std::size_t>(cell)) = number; }
  std::uint64_t of(std::int64_t cell) const { return numbers_.at(static_cast<std::size_t>(cell)); }
  /// Whether a graph that was seen wrote what has this number.
  static bool is_known(std::uint64_t number) noexcept { return number < unknown; }
  /// Whether the cells have what they had when the run was made.
  bool holds(cell_run const& run) const noexcept;

 private:
  static constexpr std::uint64_t unknown = std::uint64_t{1} << 63;  ///< from here on: of forgotten cells, each another

  std::vector<std::uint64_t> numbers_;
  std::uint64_t last_ = 0;
};

/// A sequence's tokens: token t is in at(t).
class token_cells {
 public:
  token_cells() = default;
  /// Tokens that are seen in these cells, by when they were written.
  /// @param seen  ascending, apart from each other
  token_cells(std::span<cell_range const> seen, write_order const& order);

  std::int64_t tokens() const noexcept { return tokens_; }
  /// Whether their order is known: not if others wrote some of them.
  bool are_ordered() const noexcept { return ordered_ || tokens_ == 0; }
  std::span<cell_run const> runs() const noexcept { return runs_; }
  /// Whether its first tokens are the ones in these cells, as many as there are cells.
  bool begins_with(std::span<cell_range const> seen, write_order const& order) const;
  void append(std::int64_t cell, std::uint64_t written);
  void cut(std::int64_t tokens) noexcept;
  /// Whether token t is in cell `first` + t.
  bool follow_from(std::int64_t first) const noexcept { return runs_.empty() || (runs_.size() == 1 && runs_[0].cell == first); }

 private:
  std::vector<cell_run> runs_{};
  std::int64_t tokens_ = 0;
  bool ordered_ = true;
};

}  // namespace kvpolicy::ggml
