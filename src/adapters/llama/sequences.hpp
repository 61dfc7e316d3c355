// All sequences of a session: whose a graph's tokens are, and whose policy attends for them.
#pragma once

#include <llama.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cell_table.hpp"
#include "graph_rewriter.hpp"
#include "kvpolicy/interop/llama.hpp"
#include "micro_batch.hpp"
#include "nodes.hpp"
#include "rotary.hpp"
#include "sequence.hpp"
#include "storage.hpp"

namespace kvpolicy::llama {

class sequences {
 public:
  /// Options, storage and rotary embedding must outlive it.
  sequences(host_policy policy, session_options const& options, storage& rows, rotary const& rope)
      : policy_(std::move(policy)), options_(options), storage_(rows), rope_(rope) {}

  host_policy const& policy() const noexcept { return policy_; }
  caller_batch& batch() noexcept { return batch_; }
  /// max_tokens is 0 until the first graph.
  cache_shape const& shape() const noexcept { return shape_; }
  /// Whether one stream of cells holds all sequences.
  bool unified() const noexcept { return unified_; }
  /// Null where it was never decoded.
  sequence const* find(llama_seq_id of) const noexcept;
  sequence* find(llama_seq_id of) noexcept;
  /// Throws invalid_value for an id that llama.cpp does not have.
  sequence& of(llama_seq_id id);
  std::span<std::unique_ptr<sequence> const> all() const noexcept { return all_; }

  /// The model's layers and heads, and whether one stream of cells holds all sequences; before the first graph.
  void attach(cache_shape const& of_model, bool unified, bool hybrid);
  void use(host_policy policy);
  bool needs(signals which) const noexcept;
  /// Whether a step of the running graph needs logits.
  bool wants_logits() const noexcept;

  /// See graph_client.
  void correct_positions(attention_node const& node, graph_tokens const& graph, std::span<std::int32_t> counted);
  bool follow(attention_node const& node, graph_tokens const& graph) noexcept;
  node_use serve(attention_node const& node, graph_tokens const& graph);
  void attend(attention_node const& node, simd_exec& exec);
  void attend_densely(attention_node const& node, simd_exec& exec) const;
  void computed(attention_node const& node, simd_exec& exec);
  void seal(attention_node const& node, graph_tokens const& graph) noexcept;
  void observe(std::int32_t batch_index, std::span<float const> logits);
  void rotate(std::span<std::int32_t const> by);
  void rotated() noexcept { cells_.rotated(); }
  /// Forgets what was learnt of the sequences whose graph failed: of all, where it is nobody's fault.
  void forget_graph() noexcept;

 private:
  void begin(attention_node const& node);
  void begin_graph(attention_node const& node, graph_tokens const& graph);
  void follow(sequence& s, seen_cells const& now);
  void add(llama_seq_id of, graph_mask const& mask, graph_tokens const& graph);
  void check_causal(llama_seq_id of, graph_mask const& mask, graph_tokens const& graph, std::int64_t visible);
  void see_cells(graph_mask const& mask, std::int32_t batch_index);
  void see_rows(attention_node const& node);
  void steps(attention_node const& node, simd_exec& exec);
  template <class Work>
  void or_leave(sequence& s, Work work);
  bool is_last(attention_node const& node) const noexcept { return node.layer + 1 == of_model_.layers; }

  host_policy policy_;  ///< each sequence starts its own request of it
  session_options const& options_;
  storage& storage_;
  rotary const& rope_;
  cache_shape of_model_{};
  bool unified_ = true;
  cache_shape shape_{};
  element_type value_type_{};  ///< the keys' is the shape's
  cell_table cells_;
  std::vector<std::unique_ptr<sequence>> all_;  ///< by id
  caller_batch batch_;
  std::optional<simd_exec> solo_;  ///< for logits, between graphs

  // Of the graph that runs now.
  sequence* served_ = nullptr;  ///< whose fault it is if something throws now; null: nobody's
  bool history_due_ = false;    ///< it is the first, and shows the last layer's keys when it comes to them
  ggml_tensor const* mask_ = nullptr;
  std::vector<sequence*> prompts_;  ///< that get tokens which are not a step
  std::vector<sequence*> steps_;
  std::vector<llama_seq_id> owners_;         ///< scratch
  std::vector<std::int32_t> batch_indices_;  ///< scratch
  std::vector<std::int32_t> seen_;           ///< scratch
  std::vector<std::int64_t> written_;        ///< scratch
};

}  // namespace kvpolicy::llama
