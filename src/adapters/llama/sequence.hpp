// One sequence of a session: its policy at work on the rows that its storage holds, and what its prompt left.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kvpolicy/interop/llama.hpp"
#include "managed_rows.hpp"
#include "micro_batch.hpp"
#include "nodes.hpp"
#include "prompt_memory.hpp"
#include "rotary.hpp"
#include "sequence_cells.hpp"
#include "sequence_states.hpp"

namespace kvpolicy::llama {

class sequence {
 public:
  /// What it refers to must outlive it.
  sequence(llama_seq_id id, host_policy policy, session_options const& options, rotary const& rope,
           std::unique_ptr<row_source> rows);

  llama_seq_id id() const noexcept { return id_; }
  row_source const& rows() const noexcept { return *rows_; }
  memory_statistics memory() const noexcept { return managed_ != nullptr ? managed_->memory() : memory_statistics{}; }
  tiers::resident_statistics tier_statistics() const noexcept {
    return managed_ != nullptr ? managed_->tier_statistics() : tiers::resident_statistics{};
  }
  std::int64_t tokens() const noexcept { return rows_->cells().tokens(); }
  signals needs() const noexcept { return requirements_.needs; }
  host_policy const& policy() const noexcept { return policy_; }
  step_statistics const& last_step() const noexcept { return statistics_; }
  prompt_statistics const& prompts() const noexcept { return prompts_; }
  std::int64_t steps() const noexcept { return steps_; }
  void visit_statistics(statistic_visitor const& visit) const {
    if (request_) request_->visit_statistics(visit);
  }

  /// The cache's shape is known. Throws what the policy's start throws.
  void begin(cache_shape const& shape, element_type values);
  /// Another policy. Throws what its check throws; nothing has changed then.
  void use(host_policy policy);
  /// Throws invalid_value where use() can't be called.
  void check_use() const;
  saved_prompt save() const;
  /// Throws invalid_value; nothing has changed then.
  void load(saved_prompt const& saved);
  void forget_all() noexcept;

  // Of a managed cache.
  /// All that is known of the sequence, and back. Throws unsupported for policies that can't be saved, error where a tier lost
  /// rows; invalid_value, and has no tokens then, for a state of another policy.
  void save_state(state_writer& a);
  void load_state(std::span<std::byte const> state);
  void load_pending();
  /// A state that was loaded before begin(), or nothing.
  std::span<std::byte const> pending() const noexcept {
    auto const* const begun = std::get_if<fresh>(&state_);
    return begun != nullptr ? std::span<std::byte const>(begun->rows) : std::span<std::byte const>{};
  }
  /// Tokens of a state that was loaded, or cut, and that no token has followed yet; 0: none.
  std::int64_t loaded() const noexcept { return just_loaded_; }
  /// Tokens whose rows are the session's; and the session's goes_on_from().
  std::int64_t owned() const noexcept {
    if (!pending().empty()) return just_loaded_;
    return managed_ != nullptr ? managed_->owned() : 0;
  }
  std::int64_t goes_on_from() const noexcept;
  /// Becomes a copy of the first tokens of another one; `stream` is its cells', -1: told by the next follow().
  void take_over(sequence const& other, std::int64_t tokens, std::int64_t stream);
  void gave_back(llama_pos first) noexcept { rows_->cells().gave_back(first); }
  /// There are no tokens any more, or no more than so many.
  void end() noexcept;
  void cut(std::int64_t tokens) noexcept;

  /// What follow() found of the tokens before a graph's.
  enum class history {
    known,      ///< the sequence's own
    of_others,  ///< tokens whose prompt came in another sequence
    elsewhere,  ///< their rows are not here
  };
  /// The graph's tokens of this sequence come behind those that its first one sees. What was learnt of tokens that are no more
  /// is forgotten. Throws unsupported where it is not certain which tokens they are.
  history follow(seen_cells const& now);
  /// Whether another sequence's tokens, up to those that are seen now, have their rows here.
  bool has(seen_cells const& now) const noexcept { return managed_ != nullptr && managed_->has(now); }
  /// Whether this sequence's prompt was another one's, up to all the other's tokens.
  bool knows(sequence const& other) const noexcept;
  /// Takes over what the prompt of a sequence that knows() this one left.
  void learn_from(sequence const& other);
  /// Lenient: until its next prompt the sequence attends to all that is there. `why` is for report().
  void leave(std::string const& why);
  /// The same where follow() could not tell which tokens are there.
  void leave(std::string const& why, seen_cells const& now);
  /// Why the policy was left; null: it was not.
  std::string const* why_left() const noexcept {
    auto const* const is = std::get_if<left>(&state_);
    return is != nullptr ? &is->why : nullptr;
  }
  /// See sequence_cells.
  void check_history() { rows_->cells().check_history(); }
  void see(attention_node const& node) noexcept { rows_->see(node.layer, node.keys, node.values); }

  /// The graph writes tokens of a prompt, at these indices of its micro-batch, which read what the prompt policy chooses, or
  /// everything.
  void add_prompt(std::span<std::int32_t const> batch_indices, graph_tokens const& graph, bool everything);
  bool keeps_queries() const noexcept { return prompt_.keeps_queries(); }
  void keep_queries(attention_node const& node) {
    prompt_.keep(node.layer, node.queries, batch_indices_, tokens() - std::ssize(batch_indices_));
  }
  /// One layer's attention of those tokens to their places in the node's outcome: over all before each, or what the prompt
  /// policy chooses of it.
  void prompt(attention_node const& node, simd_exec& exec);
  /// The same over all tokens, whatever the policy says.
  void dense_prompt(attention_node const& node, simd_exec& exec) const;
  /// The last layer's attention of those tokens is computed.
  void end_prompt(float scale, simd_exec& exec);

  void begin_repetition(repetition const& piece);
  /// No more of the piece comes. Whether the policy heard it; throws what the policy threw.
  bool heard_repetition();
  /// All pieces were heard and removed: rows of the first `tokens` tokens that were not chosen go.
  void end_repetition(std::int64_t tokens);
  /// Ids of the first `tokens` tokens, or none where they are not all known.
  std::span<std::int32_t const> known_ids(std::int64_t tokens) const noexcept { return prompt_.ids_of(0, tokens); }

  /// Whether tokens at these indices of a micro-batch can be a step.
  bool may_step(std::span<std::int32_t const> batch_indices) const noexcept;
  /// The graph writes a step's tokens, which read what the policy chooses, or everything.
  void add_step(std::span<std::int32_t const> batch_indices, graph_tokens const& graph, bool everything);
  /// One layer's attention of those tokens.
  void step(attention_node const& node, simd_exec& exec);
  /// The same over all tokens, whatever the policy says.
  void dense_step(attention_node const& node, simd_exec& exec) const;
  void observe(std::span<float const> logits, simd_exec& exec);
  /// The tokens' indices in the micro-batch.
  std::span<std::int32_t const> batch_indices() const noexcept { return batch_indices_; }

 private:
  /// Whether all tokens' rows are there.
  bool whole() const noexcept { return managed_ == nullptr || managed_->whole(); }
  void make_room();
  void forget(std::int64_t tokens) noexcept;
  prompting unseen() const noexcept;
  void set_unseen(prompting of) noexcept;
  void prompt_due(std::int64_t from) noexcept;
  void seal();
  void paged_prompt(attention_node const& node, simd_exec& exec);
  bool compressed() const noexcept;
  selection compressed_to(layer_id layer, std::int64_t before);
  template <class Resident>
  void attend_prompt(attention_node const& node, simd_exec& exec, Resident resident) const;
  template <class Block>
  void each_block(std::int64_t most, Block block) const;
  query_window window_of(attention_node const& node, std::int64_t first, std::int64_t count) const noexcept;
  table<float> out_of(attention_node const& node, std::int64_t first, std::int64_t count) const noexcept;
  prompt_signals prompt_of(layer_id layer, std::int64_t tokens, float scale);
  void prefill(layer_id layer, float scale, simd_exec& exec);
  void end_step();
  void hear(repeating& now, float scale, simd_exec& exec);
  void load_all(state_reader& a);
  template <class Archive>
  void archive(Archive& a);

  llama_seq_id id_;
  host_policy policy_;
  requirements requirements_;  ///< of the policy
  std::optional<host_request> request_;
  session_options const& options_;
  rotary const& rope_;
  cache_shape shape_{};  ///< max_tokens is 0 until begin()
  std::unique_ptr<row_source> rows_;
  managed_rows* managed_;               ///< the same where they are the library's, or null
  std::optional<host_request> pieces_;  ///< what drops rows between a prompt's pieces

  std::variant<fresh, prompting, stepping, repeating, left> state_;
  std::vector<std::int32_t> batch_indices_;  ///< of the sequence's tokens in the micro-batch that runs now
  std::vector<std::int32_t> ids_;            ///< of the step that runs now; empty for embeddings
  bool everything_ = false;                  ///< whether it reads everything
  bool waited_ = false;                      ///< whether the step's choice waited when the step began
  prompt_memory prompt_;
  bool compressed_ = false;                   ///< by a repetition, for all that follows
  std::vector<range_list> compressed_lists_;  ///< scratch
  std::int64_t just_loaded_ = 0;              ///< tokens

  std::optional<prompt_pages::state> pages_;  ///< where prompts read less than all
  prompt_statistics prompts_;
  step_statistics statistics_;
  std::int64_t steps_ = 0;
};

}  // namespace kvpolicy::llama
