// The session's inside: follows the graphs of one llama_context and puts the policies' attention into its decode steps.
#pragma once

#include <llama.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cell_table.hpp"
#include "kvpolicy/exec/team.hpp"
#include "kvpolicy/interop/llama.hpp"
#include "layers.hpp"
#include "micro_batch.hpp"
#include "nodes.hpp"
#include "rotary.hpp"
#include "sequence.hpp"

namespace kvpolicy::llama {

class session::engine {
 public:
  engine(host_policy policy, session_options options);
  ~engine();
  engine(engine const&) = delete;
  engine& operator=(engine const&) = delete;

  void attach(llama_context_params& params, llama_model const* model);
  void detach() noexcept;
  void use(host_policy policy);
  void use(host_policy policy, llama_seq_id of);
  template <class... Batch>
  void set_batch(Batch const&... batch) {
    if (attached_) batch_.set(batch...);
  }
  saved_prompt save(llama_seq_id of) const;
  void load(saved_prompt const& saved, llama_seq_id of) { sequence_of(of).load(saved); }
  int decode(llama_context* context, llama_batch const& batch);
  void copy(llama_seq_id from, llama_seq_id to);
  void end(llama_seq_id of) noexcept;
  void cut(llama_seq_id of, std::int64_t tokens) noexcept;
  void give_back(llama_context* context, std::span<llama_seq_id const> sequences);
  memory_statistics memory() const noexcept;
  std::vector<std::byte> save_state(std::string const& policy, llama_seq_id of);
  void load_state(std::span<std::byte const> state, std::string const& policy, llama_seq_id of);
  void check();
  cache_shape const& shape() const noexcept { return attached_shape_; }
  std::vector<std::string> report() const;
  /// Null where it was never decoded.
  sequence const* find(llama_seq_id of) const noexcept;

 private:
  /// What the dummy of one layer carries into the custom op.
  struct layer_hook {
    engine* self = nullptr;
    std::int64_t layer = 0;        ///< of those that are served
    ggml_tensor* dummy = nullptr;  ///< its op and op_params are copied over a node's
    std::array<std::int32_t, GGML_MAX_OP_PARAMS / sizeof(std::int32_t)> own_params{};  ///< the node's, before
    float scale = 1;
    attention_terms terms{};
  };

  /// The engine's threads, as many as it runs a graph on: graphs of one token and of several may differ.
  struct thread_pool {
    explicit thread_pool(int threads) : together(threads) {}
    team together;
    std::optional<simd_exec> exec;  ///< from its first graph on
  };

  static bool on_node(ggml_tensor* node, bool ask, void* self) noexcept;
  static bool on_abort(void* self) noexcept;
  static void on_attention(ggml_tensor* node, int rank, int threads, void* hook) noexcept;

  bool ask(ggml_tensor* node);
  void computed(ggml_tensor* node);
  void see_input(ggml_tensor const* get_rows);
  bool ask_attention(ggml_tensor* node);
  bool follow(ggml_tensor const* attention, std::int64_t layer) noexcept;
  void count_positions(ggml_tensor const* attention);
  bool turn(ggml_tensor const* by, std::int64_t layer);
  void see_written(ggml_tensor const* set_rows);
  bool serve(ggml_tensor* attention, layer_hook& hook);
  void begin(ggml_tensor const* attention);
  void begin_graph(ggml_tensor const* attention);
  void add(llama_seq_id of, graph_mask const& mask);
  void see_rows(ggml_tensor const* node, layer_hook const& hook);
  void see_terms(ggml_tensor const* node, layer_hook& hook);
  void see_length(std::int64_t tokens);
  void check_managed_cache() const;
  void check_rope_factors(llama_context_params const& params, llama_model const* model, std::int64_t longest) const;
  void check_state() const;
  bool follows_state(llama_context* context, llama_batch const& batch);
  static std::string state_format();
  std::string cache() const;
  bool drops_between_pieces() const { return !requirements_of(options_.between_pieces.retain).keeps_all; }
  void check_memory(cache_shape const& shape, element_type values) const;
  void check_pieces(host_policy const& policy) const;
  std::unique_ptr<block_arena> make_arena(cache_shape const& shape) const;
  /// Which of the served layers' cached keys it is a view of.
  std::optional<std::int64_t> layer_of(ggml_tensor const* keys) const noexcept { return layers_.find(key_cache_layer(keys)); }
  layer_hook* hook_of(ggml_tensor const* node) noexcept;
  void rewrite(ggml_tensor* node, layer_hook& hook) noexcept;
  void restore(ggml_tensor* node, layer_hook const& hook) noexcept;
  void attend(ggml_tensor* node, layer_hook const& hook, simd_exec& exec);
  void steps(ggml_tensor* node, layer_hook const& hook, simd_exec& exec);
  template <class Work>
  void or_leave(sequence& s, Work work);
  void attend_densely(ggml_tensor* node, layer_hook const& hook, simd_exec& exec) noexcept;
  void observe(ggml_tensor const* logits);
  sequence& sequence_of(llama_seq_id id);
  thread_pool* thread_pool_of(int threads) const noexcept;
  bool anyone_needs(signals which) const noexcept;
  void forget_all() noexcept;
  void fail() noexcept;
  bool active() const noexcept { return attached_ && failure_ == nullptr; }
  bool is_last(std::int64_t layer) const noexcept { return layer + 1 == layers_.count(); }

  host_policy policy_;  ///< each sequence starts its own request of it
  session_options options_;
  bool attached_ = false;
  ggml_backend_sched_eval_callback caller_eval_ = nullptr;
  void* caller_eval_data_ = nullptr;
  bool asked_ = false;  ///< for the node that is offered, or computed
  bool caller_asked_ = false;
  ggml_abort_callback caller_abort_ = nullptr;
  void* caller_abort_data_ = nullptr;
  std::exception_ptr failure_;
  bool decoding_ = false;  ///< the graph that runs is no turning of cached keys, which must not be stopped

  ggml_context* dummies_ = nullptr;
  served_layers layers_;
  cache_shape attached_shape_{};   ///< as the parameters were at attach
  std::string passed_by_;          ///< lenient: why nothing is served
  std::vector<layer_hook> hooks_;  ///< of the served layers
  std::vector<float> slopes_;      ///< of ALiBi
  bool unified_ = true;            ///< one stream for all sequences
  bool hybrid_ = false;            ///< a refused micro-batch is not undone
  cache_shape shape_{};            ///< max_tokens is 0 until the first graph
  element_type value_type_{};      ///< the keys' is the shape's
  rotary rotary_;
  std::vector<std::unique_ptr<thread_pool>> thread_pools_;
  int threads_seen_ = 1;
  int threads_of_batches_ = 1;     ///< at attach
  std::optional<simd_exec> solo_;  ///< for logits, between graphs

  std::unique_ptr<block_arena> arena_;  ///< of a managed cache
  std::string model_;                   ///< which one, for a state
  bool detached_ = false;               ///< with a managed cache
  std::int64_t trained_ = 0;            ///< tokens that the model was trained for
  bool beyond_trained_ = false;

  cell_table cells_;
  std::vector<std::unique_ptr<sequence>> sequences_;  ///< by id, null where it was never decoded
  caller_batch batch_;
  sequence* served_ = nullptr;  ///< whose fault it is if something throws now; null: nobody's

  // Of the graph that runs now.
  bool history_due_ = false;  ///< it is the first, and shows the last layer's keys when it comes to them
  graph_tokens graph_;
  ggml_tensor const* mask_ = nullptr;  ///< of the served layers
  std::vector<std::int32_t> counted_;  ///< positions, where the model's graph has none
  std::vector<std::int32_t> outputs_;  ///< batch indices of the tokens that have logits; empty: all
  std::vector<sequence*> prompts_;     ///< that get tokens which are not a step
  std::vector<sequence*> steps_;
  std::vector<llama_seq_id> owners_;         ///< scratch
  std::vector<std::int32_t> batch_indices_;  ///< scratch
  std::vector<std::int32_t> seen_;           ///< scratch
  std::vector<llama_seq_id> of_batch_;       ///< scratch
  std::vector<llama_pos> positions_;         ///< scratch
};

/// Lenient: a sequence whose policy fails is left, and does its work again without; the others go on.
template <class Work>
void session::engine::or_leave(sequence& s, Work work) {
  try {
    work();
  } catch (std::exception const& why) {
    if (!options_.lenient || !s.left().empty()) throw;
    s.leave(why.what());
    work();
  }
}

}  // namespace kvpolicy::llama
