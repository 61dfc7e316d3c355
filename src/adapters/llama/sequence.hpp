// One sequence of a session: its policy at work on the tokens that its cells hold, and what its prompt left.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/interop/llama.hpp"
#include "kvpolicy/store/resident_rows.hpp"
#include "kvpolicy/store/row_store.hpp"
#include "micro_batch.hpp"
#include "nodes.hpp"
#include "prompt_memory.hpp"
#include "rotary.hpp"
#include "sequence_cells.hpp"

namespace kvpolicy::llama {

/// A micro-batch's queries, and what becomes of q.k.
struct node_queries {
  graph_queries of;
  float scale = 1;
  attention_terms terms{};
};

class sequence {
 public:
  /// What it refers to must outlive it.
  sequence(llama_seq_id id, host_policy policy, session_options const& options, rotary const& rope, cell_table& table);

  llama_seq_id id() const noexcept { return id_; }
  std::int64_t tokens() const noexcept { return cells_.tokens(); }
  /// Of each token, within its stream.
  std::span<std::int32_t const> cells() const noexcept { return cells_.cells(); }
  signals needs() const noexcept { return requirements_.needs; }
  step_statistics const& last_step() const noexcept { return statistics_; }
  std::int64_t steps() const noexcept { return steps_; }
  void visit_statistics(statistic_visitor const& visit) const {
    if (request_) request_->visit_statistics(visit);
  }
  tiers::resident_statistics tier_statistics() const noexcept {
    return resident_ ? resident_->statistics() : tiers::resident_statistics{};
  }

  /// The cache's shape is known. Throws what the policy's start throws.
  void begin(cache_shape const& shape, element_type values, block_arena* arena);
  /// Another policy. Throws what its check throws; nothing has changed then.
  void use(host_policy policy);
  saved_prompt save() const;
  /// Throws invalid_value; nothing has changed then.
  void load(saved_prompt const& saved);
  void forget_all() noexcept;

  /// With a managed cache: all that is known of the sequence, under a name of its policy; and back. Throws unsupported for
  /// policies that can't be saved, error where a tier lost rows; invalid_value, and has no tokens then, for a state of another
  /// policy.
  void save_state(state_writer& a);
  void load_state(std::span<std::byte const> state);
  void load_pending();
  /// A state that was loaded before begin(), or nothing.
  std::span<std::byte const> pending() const noexcept { return state_; }
  /// Throws invalid_value where use() can't be called.
  void check_use() const;
  /// Of a state that was loaded, or cut, and that no token has followed yet; 0: none.
  std::int64_t loaded() const noexcept { return just_loaded_; }

  /// The graph's tokens of this sequence come behind those that its first one sees. What was learnt of tokens that are no more
  /// is forgotten; what another sequence's prompt left of the same tokens is taken over. Throws unsupported where it is not
  /// certain which tokens they are.
  void follow(seen_cells const& now, std::span<std::unique_ptr<sequence> const> others);
  /// Lenient: until its next prompt the sequence attends to all that is there. `why` is for report().
  void leave(std::string const& why);
  /// The same where follow() could not tell which tokens are there.
  void leave(std::string const& why, seen_cells const& now);
  /// Why the policy was left; empty: it was not.
  std::string const& left() const noexcept { return left_; }
  /// Becomes a copy of the first tokens of another one with a managed cache; `stream` is its cells', -1: told by the next
  /// follow().
  void take_over(sequence const& other, std::int64_t tokens, std::int64_t stream);
  void gave_back(llama_pos first) noexcept { cells_.gave_back(first); }
  /// Tokens whose graphs ended well.
  std::int64_t sealed() const noexcept { return std::ssize(cells_.known()); }
  /// With a managed cache: the same, or of a state that was loaded before begin(); and the session's goes_on_from().
  std::int64_t own_tokens() const noexcept;
  std::int64_t goes_on_from() const noexcept;
  /// With a managed cache: there are no tokens any more, or no more than so many.
  void end() noexcept;
  void cut(std::int64_t tokens) noexcept;
  /// See sequence_cells.
  void check_history() { cells_.check_history(); }
  /// Where a layer's rows of the whole cache are.
  void see(std::int64_t layer, rows const& keys, rows const& values) noexcept;
  /// The graph writes tokens of a prompt, at these indices of its micro-batch.
  void add_prompt(std::span<std::int32_t const> batch_indices, graph_tokens const& graph);
  bool keeps_queries() const noexcept { return prompt_.keeps_queries(); }
  /// The last layer's attention of those tokens is computed.
  void end_prompt(float scale, simd_exec& exec);
  void keep_queries(std::int64_t layer, graph_queries const& q) {
    prompt_.keep(layer, q, batch_indices_, tokens() - std::ssize(batch_indices_));
  }

  prompt_statistics const& prompts() const noexcept { return prompts_; }
  memory_statistics memory() const noexcept;

  /// One layer's attention of those tokens to their places in `out`, `[tokens, q_heads, head_dim]` of the micro-batch: over all
  /// before each, or what the prompt policy chooses of it.
  void prompt(layer_id layer, node_queries const& q, float* out, simd_exec& exec);
  /// The same over all tokens, whatever the policy says. Throws unsupported with a managed cache.
  void dense_prompt(layer_id layer, node_queries const& q, float* out, simd_exec& exec) const;

  /// The graph writes one token, and the policy chooses what it reads.
  void add_step(std::int32_t batch_index, graph_tokens const& graph);
  /// One layer's attention of that token, into `out`, `[q_heads, head_dim]`.
  void step(layer_id layer, node_queries const& q, float* out, simd_exec& exec);
  /// The same over all tokens, whatever the policy says.
  void dense_step(layer_id layer, node_queries const& q, float* out, simd_exec& exec) const;
  void observe(std::span<float const> logits, simd_exec& exec);
  /// The token's index in the micro-batch, or the last token's.
  std::int32_t batch_index() const noexcept { return batch_indices_.back(); }

 private:
  void follow_staged(seen_cells const& now, std::span<std::unique_ptr<sequence> const> others);
  void take_rows(layer_id layer);
  void put_away(layer_id layer, std::int64_t tokens);
  void load_all(state_reader& a);
  template <class Archive>
  void archive(Archive& a);
  void mend_cut();
  void drop_rows(host_request const& by, std::int64_t tokens);
  template <class Resident>
  void attend_prompt(layer_id layer, node_queries const& q, float* out, simd_exec& exec, Resident resident) const;
  selection resident(layer_id layer, std::int64_t tokens);
  static constexpr std::int64_t nothing_due = std::numeric_limits<std::int64_t>::max();

  void make_room();
  void forget(std::int64_t tokens) noexcept;
  void prompt_due(std::int64_t from) noexcept;
  void paged_prompt(layer_id layer, node_queries const& q, float* out, simd_exec& exec);
  query_heads queries_of(node_queries const& q) const noexcept;
  query_window window_of(node_queries const& q, std::int64_t first, std::int64_t count) const noexcept;
  template <class Block>
  void each_block(std::int64_t most, Block block) const;
  void end_step();
  void step_left(layer_id layer, node_queries const& q, float* out, simd_exec& exec);
  prompt_signals prompt_of(layer_id layer, std::int64_t tokens, float scale);
  layer_table_view view_of(std::int64_t tokens) const noexcept {
    if (store_) return store_->view(tokens);
    return {.cache = shape_, .count = tokens, .key_rows = keys_.data(), .value_rows = values_.data()};
  }

  llama_seq_id id_;
  host_policy policy_;
  requirements requirements_;  ///< of the policy
  std::optional<host_request> request_;
  session_options const& options_;
  rotary const& rope_;
  cache_shape shape_{};  ///< max_tokens is 0 until begin()

  sequence_cells cells_;
  std::vector<rows> keys_;  ///< `[layers]`, of this sequence's tokens; with a managed cache, of those that the graph writes
  std::vector<rows> values_;
  std::optional<row_store> store_;         ///< the managed cache's rows
  std::optional<resident_rows> resident_;  ///< where a part of them is in a tier
  std::vector<std::int64_t> stay_;         ///< `[kv_heads]`, scratch
  std::optional<host_request> pieces_;     ///< what drops rows between a prompt's pieces
  std::vector<range_list> lists_;          ///< `[kv_heads]`, scratch

  std::int64_t due_from_ = 0;                ///< first token of the prompt that the policy has not seen
  std::vector<char> prefill_due_;            ///< `[layers]`
  std::vector<std::int32_t> batch_indices_;  ///< of the sequence's tokens in the micro-batch that runs now
  std::int32_t token_id_ = -1;               ///< of the step that runs now
  prompt_memory prompt_;
  std::optional<saved_prompt> loaded_;  ///< before begin()
  std::vector<std::byte> state_;        ///< the same, of a managed cache
  std::int64_t just_loaded_ = 0;        ///< tokens
  std::int64_t goes_on_from_ = 0;

  std::optional<prompt_pages::state> pages_;  ///< where prompts read less than all
  prompt_statistics prompts_;
  step_statistics statistics_;
  std::int64_t steps_ = 0;
  std::string left_;        ///< see leave()
  bool unordered_ = false;  ///< the cells of the running graph are in no order
};

}  // namespace kvpolicy::llama
