// What a session follows of one sequence: the cells of its tokens, what its prompt left, its policy and the policy's state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvpolicy/interop/llama.hpp"
#include "micro_batch.hpp"
#include "nodes.hpp"
#include "prompt_memory.hpp"
#include "rotary.hpp"

namespace kvpolicy::llama {

/// What the first of a sequence's tokens in a graph sees, beside what that graph writes.
struct seen_cells {
  graph_mask const& mask;
  std::int64_t place = 0;  ///< the token's, in the micro-batch
  std::int32_t cell = 0;   ///< the token's own
  std::int64_t stream = 0;
  std::int64_t position = -1;             ///< the token's, where it is known
  std::span<std::int32_t const> visible;  ///< ascending cells of the stream
};

class sequence {
 public:
  /// What it refers to must outlive it.
  sequence(llama_seq_id id, host_policy policy, session_options const& options, rotary const& turned, cache_cells const& cache);

  llama_seq_id id() const noexcept { return id_; }
  /// Tokens whose cells are known.
  std::int64_t tokens() const noexcept { return std::ssize(cells_); }
  signals needs() const noexcept { return facts_.needs; }
  step_statistics const& last_step() const noexcept { return statistics_; }
  std::int64_t steps() const noexcept { return steps_; }
  tier::resident_statistics tier_statistics() const noexcept {
    return resident_ ? resident_->statistics() : tier::resident_statistics{};
  }

  /// The cache's shape is known. Throws what the policy's start throws.
  void begin(cache_shape const& shape);
  /// Another policy. Throws what its check throws; nothing has changed then.
  void use(host_policy policy);
  saved_prompt save() const { return prompt_.save(); }
  void load(saved_prompt const& saved);
  void forget_all() noexcept;

  /// The graph's tokens of this sequence come behind those that its first one sees: which are what is known already, or what
  /// another sequence knows (llama_memory_seq_cp), or, where nobody saw them written, cells in order. Throws unsupported where
  /// none of it is so.
  void follow(seen_cells const& now, std::span<std::unique_ptr<sequence> const> others);
  /// Where a layer's rows of the whole cache are.
  void see(std::int64_t layer, rows const& keys, rows const& values) noexcept;
  /// The graph writes tokens of a prompt, at these places of its micro-batch.
  void add_prompt(std::span<std::int32_t const> places, graph_tokens const& graph);
  bool keeps_queries() const noexcept { return prompt_.keeps_queries(); }
  /// The last layer's keys of those tokens are written.
  void end_prompt();
  void keep_queries(std::int64_t layer, graph_queries const& q) {
    prompt_.keep(layer, q, places_, tokens() - std::ssize(places_));
  }

  /// The graph writes one token, and the policy chooses what it reads.
  void add_step(std::int32_t place, graph_tokens const& graph);
  /// One layer's attention of that token, into `out`, `[q_heads, head_dim]`.
  void step(layer_id layer, graph_queries const& q, float scale, float* out, simd_exec& exec);
  void observe(std::span<float const> logits, simd_exec& exec);
  /// The token's place in the micro-batch, or the last token's.
  std::int32_t place() const noexcept { return places_.back(); }

 private:
  /// The last layer's keys of one token depend on every token before it: their hash tells whether the cache is still the same.
  struct history_print {
    std::int64_t token = 0;
    std::uint64_t hash = 0;
    bool stays = false;  ///< not replaced by the next token's
  };

  void make_room();
  void forget(std::int64_t tokens) noexcept;
  void prompt_due(std::int64_t from) noexcept;
  void copy(sequence const& other, std::int64_t tokens);
  void learn(seen_cells const& now);
  bool holds(seen_cells const& now, std::int64_t count) const noexcept;
  bool is_printed(std::int64_t count) const noexcept;
  bool same_rows(std::int64_t stream, std::int64_t count) const noexcept;
  void append(std::int32_t cell);
  rows placed(rows all) const noexcept;
  void end_step();
  prompt_signals prompt_of(layer_id layer, std::int64_t tokens, float scale) const;
  layer_table_view view_of(std::int64_t tokens) const noexcept {
    return {.cache = shape_, .count = tokens, .key_rows = keys_.data(), .value_rows = values_.data()};
  }
  void remember(std::int64_t token, bool stays);
  std::uint64_t hash_of(std::int64_t token) const noexcept {
    return cache_.hash(stream_, cells_[static_cast<std::size_t>(token)]);
  }

  llama_seq_id id_;
  host_policy policy_;
  act_facts facts_;  ///< of the policy
  std::optional<host_request> request_;
  session_options const& options_;
  rotary const& turned_;
  cache_cells const& cache_;
  cache_shape shape_{};  ///< max_tokens is 0 until begin()

  std::int64_t stream_ = -1;           ///< not known
  std::vector<std::int32_t> cells_;    ///< of each token, within its stream
  std::vector<std::uint32_t> writes_;  ///< the cell's, when the token was written
  bool in_a_row_ = true;               ///< each cell follows the one before
  std::vector<rows> keys_;             ///< `[layers]`, of this sequence's tokens
  std::vector<rows> values_;

  std::int64_t due_from_ = 0;         ///< first token of the prompt that the policy has not seen
  std::vector<char> prefill_due_;     ///< `[layers]`
  std::vector<std::int32_t> places_;  ///< of the sequence's tokens in the micro-batch that runs now
  std::int32_t token_id_ = -1;        ///< of the step that runs now
  prompt_memory prompt_;
  std::optional<saved_prompt> loaded_;  ///< before begin()
  bool restored_ = false;               ///< load() was the last that was heard of the sequence
  std::vector<history_print> prints_;   ///< ascending: every 64th token's, each prompt's last, and the last token's

  std::optional<tier::resident_rows<tier::any_tier>> resident_;  ///< where rows live in a tier
  step_statistics statistics_;
  std::int64_t steps_ = 0;
};

}  // namespace kvpolicy::llama
