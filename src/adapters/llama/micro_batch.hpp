// The micro-batch that a graph computes: which cell each token is written to, and whose token it is.
#pragma once

#include <llama.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kvpolicy/interop/llama.hpp"

namespace kvpolicy::llama {

/// What the graph's inputs say of its tokens; valid while it runs.
struct graph_tokens {
  std::span<std::int64_t const> written;    ///< see written_cells
  std::int64_t stream_cells = 0;            ///< cells of a stream
  std::span<std::int32_t const> ids;        ///< of the vocabulary; empty for embeddings
  std::span<std::int32_t const> positions;  ///< empty where the model does not tell
  bool counted = false;                     ///< positions are how far each token sees others: the model has none

  std::int64_t stream(std::int32_t batch_index) const noexcept {
    return written[static_cast<std::size_t>(batch_index)] / stream_cells;
  }
  std::int32_t cell(std::int32_t batch_index) const noexcept {
    return static_cast<std::int32_t>(written[static_cast<std::size_t>(batch_index)] % stream_cells);
  }
  std::int32_t id(std::int32_t batch_index) const noexcept {
    return ids.empty() ? -1 : ids[static_cast<std::size_t>(batch_index)];
  }
  std::int32_t position(std::int32_t batch_index) const noexcept {
    return positions.empty() ? -1 : positions[static_cast<std::size_t>(batch_index)];
  }
};

/// Follows a decode through the batch that the caller said it would bring, micro-batch by micro-batch.
class caller_batch {
 public:
  /// How the engine cuts a batch of a unified cache: in its order; or, of a hybrid model, as many tokens of each sequence that
  /// has some, one sequence after the other.
  void cut_by_sequences(bool so) noexcept { by_sequences_ = so; }
  void set(llama_batch const& batch, batch_reading how);
  void set(std::span<llama_seq_id const> sequences, std::span<std::int8_t const> outputs, batch_reading how);
  void drop() noexcept { tokens_.clear(); }

  /// Writes the sequence of each of the graph's tokens: in a cache of streams, the stream's; in a unified one, as it was
  /// said; or 0. What was said and is not what comes is refused (unsupported) in a unified cache, and dropped in streams, which
  /// can do without.
  void owners(graph_tokens const& graph, bool unified, std::vector<llama_seq_id>& of);
  /// Whether a sequence's tokens of a graph, so many, are a step: the whole batch has no others of it, each has an output, and
  /// they were not called a prompt's. Where nothing was said of it, a single token is a step.
  bool may_step(llama_seq_id sequence, std::int64_t tokens) const noexcept;
  /// Whether steps are to read everything.
  bool reads_everything() const noexcept { return !tokens_.empty() && how_ != batch_reading::by_policy; }

 private:
  struct token {
    std::int32_t id;        ///< -1: an embedding
    std::int32_t position;  ///< -1: the engine's to find
    llama_seq_id sequence;
    bool output = true;
    bool came = false;  ///< in a graph

    /// Whether the graph may mean this token.
    bool is(graph_tokens const& graph, std::int32_t batch_index) const noexcept {
      std::int32_t const given = graph.id(batch_index);
      std::int32_t const at = graph.counted ? -1 : graph.position(batch_index);
      return (id < 0 || given < 0 || id == given) && (position < 0 || at < 0 || position == at);
    }
  };
  /// Whether the engine may cut the next `count` tokens so that they are of the first `sequences` that have some, the same
  /// number of each; these are due_ then.
  bool cuts(std::size_t count, std::size_t sequences);
  void expect(graph_tokens const& graph);
  /// In streams: whether the graph's first token is the next of its sequence. Then the graph's tokens have come.
  bool take(graph_tokens const& graph, std::vector<llama_seq_id> const& of);

  std::vector<token> tokens_;
  batch_reading how_ = batch_reading::by_policy;
  bool by_sequences_ = false;
  std::vector<std::size_t> due_;              ///< scratch: places in tokens_
  std::vector<llama_seq_id> next_sequences_;  ///< scratch: those with tokens left, in the batch's order
  std::vector<std::size_t> left_;             ///< scratch: of a graph, by sequence
};

}  // namespace kvpolicy::llama
