// Which cells hold a sequence's tokens, in their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cell_table.hpp"
#include "nodes.hpp"

namespace kvpolicy::llama {

/// What the first of a sequence's tokens in a graph sees, beside what that graph writes.
struct seen_cells {
  graph_mask const& mask;
  std::int64_t batch_index = 0;  ///< the token's, in the micro-batch
  std::int32_t cell = 0;         ///< the token's own
  std::int64_t stream = 0;
  std::int32_t position = cell_table::unknown;  ///< the token's
  std::span<std::int32_t const> visible;        ///< ascending cells of the stream
};

/// Follows whatever the engine does to a sequence between two graphs by what the cells hold, or refuses it.
class sequence_cells {
 public:
  /// The table must outlive it.
  sequence_cells(llama_seq_id id, cell_table& table) : id_(id), table_(table) {}

  void reserve(std::int64_t tokens);
  /// Tokens, with those that the running graph writes.
  std::int64_t tokens() const noexcept { return std::ssize(cells_); }
  std::span<std::int32_t const> cells() const noexcept { return cells_; }
  /// The tokens that are known by their keys.
  std::span<fingerprint const> known() const noexcept { return known_; }
  std::int64_t stream() const noexcept { return stream_; }
  /// Of the first token; 0 but for sequences whose beginning was removed or moved.
  std::int32_t first_position() const noexcept { return first_position_; }

  /// Finds the tokens that are seen now, and their order. Returns how many of the first known ones are still the first ones:
  /// those stay known. Throws unsupported where the order is not certain; what was known stays known then.
  std::int64_t follow(seen_cells const& now);
  /// The same where the engine gave cells back: whether what is seen now, if anything, are tokens of this sequence, and it has
  /// all before them.
  bool continues(seen_cells const& now) const noexcept;
  /// The engine's cells of the tokens before this position are given back: those that are seen there are another sequence's.
  void gave_back(llama_pos first) noexcept { staged_from_ = std::max(staged_from_, first); }
  /// So many tokens are left, in a stream.
  void cut(std::int64_t tokens, std::int64_t stream);
  /// The first tokens of another sequence.
  void take_over(sequence_cells const& from, std::int64_t tokens, std::int64_t stream);
  void append(std::int32_t cell);
  /// The running graph's tokens are written.
  void seal();
  /// The last layer's keys can be read for the first time. Throws unsupported if they are not the keys that load() was given.
  void check_history();

  /// The engine restores a state: of these tokens, the first at `first_position`.
  void expect(std::span<fingerprint const> tokens, std::int32_t first_position);
  /// Of so many tokens that nothing is known of, in the order of their cells: the caller's word.
  void expect_in_order(std::int64_t tokens);
  void forget() noexcept;
  /// The cells that are seen now, in no order: enough to attend to all of them. What was known is forgotten.
  void place(seen_cells const& now);

  /// This sequence's tokens among all cells.
  rows placed(rows all) const noexcept;
  /// Of them, those that the running graph writes.
  rows fresh(rows all) const noexcept;

 private:
  struct placed_token {
    std::int32_t position;
    std::int32_t cell;
  };

  bool holds(seen_cells const& now) const noexcept;
  void order(seen_cells const& now);
  void remember();

  llama_seq_id id_;
  cell_table& table_;
  std::int64_t stream_ = -1;         ///< not known
  std::vector<std::int32_t> cells_;  ///< of each token, within its stream
  std::vector<fingerprint> known_;   ///< of each token, but for those that the running graph writes
  std::int32_t first_position_ = 0;
  std::int64_t in_order_ = 0;          ///< see expect_in_order
  llama_pos staged_from_ = 0;          ///< see gave_back
  bool in_a_row_ = true;               ///< each cell follows the one before
  std::vector<placed_token> ordered_;  ///< scratch
};

}  // namespace kvpolicy::llama
