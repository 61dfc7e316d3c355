// Puts other attention into the engine's graphs: nodes are asked for, and attention comes out. Knows ggml, and no policy.
#pragma once

#include <llama.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "chosen_tokens.hpp"
#include "kvpolicy/exec/simd.hpp"
#include "kvpolicy/exec/team.hpp"
#include "layers.hpp"
#include "micro_batch.hpp"
#include "nodes.hpp"
#include "rotary.hpp"

namespace kvpolicy::llama {

/// What becomes of an attention node.
enum class node_use {
  leave,      ///< the engine computes it
  come_back,  ///< the engine computes it, and computed() follows
  take        ///< attend() computes it
};

/// Whoever attends in the engine's place. All calls come from the engine's leading thread while a graph runs.
class graph_client {
 public:
  /// False: graphs are followed, and nothing is taken.
  virtual bool active() const noexcept = 0;
  /// Whether a failure is to end the graph.
  virtual bool stops() const noexcept = 0;
  virtual bool wants_rope() const noexcept = 0;
  virtual bool wants_logits() const noexcept = 0;
  /// Whether attention of prompts is not to be left to the engine.
  virtual bool takes_prompts() const noexcept = 0;
  /// What simd_exec is made for; known once serve() was called.
  virtual cache_shape const& shape() const noexcept = 0;

  /// Positions of the graph's tokens, where it does not tell them. What is given is how many tokens each sees; where the cache
  /// does not have all of them, those that it has may be known.
  virtual void correct_positions(attention_node const& first, graph_tokens const& graph, std::span<std::int32_t> counted) = 0;
  /// Every attention of a served layer, before it is computed. Returns whether sealed() is to follow where nothing is taken.
  virtual bool follow(attention_node const& node, graph_tokens const& graph) noexcept = 0;
  /// The same where it is active. May throw: fail() follows, and the node is left.
  virtual node_use serve(attention_node const& node, graph_tokens const& graph) = 0;
  virtual void attend(attention_node const& node, graph_tokens const& graph, simd_exec& exec) noexcept = 0;
  /// A node that was not taken is computed; follow() or serve() asked for it.
  virtual void sealed(attention_node const& node, graph_tokens const& graph) noexcept = 0;
  virtual void computed(attention_node const& node, simd_exec& exec) = 0;
  virtual void observe(std::int32_t batch_index, std::span<float const> logits) = 0;
  /// llama_memory_seq_add: the cached keys are about to be rotated by so many positions each (empty: not known), and are.
  virtual void rotate(std::span<std::int32_t const> by) = 0;
  virtual void rotated() noexcept = 0;
  /// Something threw; std::current_exception() says what.
  virtual void fail() noexcept = 0;

 protected:
  ~graph_client() = default;
};

class graph_rewriter {
 public:
  /// The client must outlive it.
  explicit graph_rewriter(graph_client& client) : client_(client) {}
  ~graph_rewriter();
  graph_rewriter(graph_rewriter const&) = delete;
  graph_rewriter& operator=(graph_rewriter const&) = delete;

  /// Whether these parameters call another rewriter already.
  static bool is_attached(llama_context_params const& params) noexcept { return params.cb_eval == &on_node; }
  /// From now on the context of these parameters calls this rewriter, and it the callbacks that were there.
  void attach(llama_context_params& params, served_layers layers);
  bool attached() const noexcept { return dummies_ != nullptr; }
  served_layers const& layers() const noexcept { return layers_; }
  rotary const& rope() const noexcept { return rotary_; }

 private:
  /// What the dummy of one layer carries into the custom op.
  struct layer_hook {
    graph_rewriter* self = nullptr;
    ggml_tensor* dummy = nullptr;  ///< its op_params are copied over a node's
    bool chosen = false;           ///< its tokens, by the model
    std::array<std::int32_t, GGML_MAX_OP_PARAMS / sizeof(std::int32_t)> own_params{};  ///< the node's, before
    attention_node node{};                                                             ///< as it is in the running graph
  };

  /// The engine's threads, as many as it runs a graph on: graphs of one token and of several may differ.
  struct thread_pool {
    thread_pool(int threads, cache_shape const& shape) : together(threads), exec(shape, &together) {}
    team together;
    simd_exec exec;
  };

  static bool on_node(ggml_tensor* node, bool ask, void* self) noexcept;
  static bool on_abort(void* self) noexcept;
  static void on_attention(ggml_tensor* node, int rank, int threads, void* hook) noexcept;

  bool ask(ggml_tensor* node);
  bool ask_attention(ggml_tensor* node);
  void ask_chosen(ggml_tensor* node);
  void take(ggml_tensor* node, layer_hook& hook) noexcept;
  bool ask_rotation(ggml_tensor const* node, ggml_tensor const* by);
  void computed(ggml_tensor const* node);
  void see_input(ggml_tensor const* get_rows);
  void see_written(ggml_tensor const* set_rows);
  void complete_tokens(attention_node const& first);
  void observe(ggml_tensor const* logits);
  layer_hook* hook_of(ggml_tensor const* node) noexcept;
  static thread_pool* pool_of(std::vector<std::unique_ptr<thread_pool>> const& pools, int threads) noexcept;
  void make_pools(cache_shape const& shape, std::vector<std::unique_ptr<thread_pool>>& pools);
  /// The work of the engine's threads, which come one by one; the first one leads the others.
  template <class Work>
  static void work_together(std::vector<std::unique_ptr<thread_pool>> const& pools, int rank, int threads, Work work) noexcept;
  /// Which of the served layers' cached keys it is a view of.
  std::optional<std::int64_t> layer_of(ggml_tensor const* keys) const noexcept { return layers_.find(key_cache_layer(keys)); }

  graph_client& client_;
  ggml_backend_sched_eval_callback caller_eval_ = nullptr;
  void* caller_eval_data_ = nullptr;
  ggml_abort_callback caller_abort_ = nullptr;
  void* caller_abort_data_ = nullptr;
  bool asked_ = false;  ///< for the node that is offered, or computed
  bool caller_asked_ = false;

  ggml_context* dummies_ = nullptr;
  served_layers layers_;
  std::vector<layer_hook> hooks_;  ///< of the served layers, then of those whose tokens the model chooses
  chosen_tokens chosen_{};
  std::vector<float> slopes_;  ///< of ALiBi
  rotary rotary_;
  std::int64_t ropes_known_ = 0;  ///< layers whose embedding was read
  std::vector<std::unique_ptr<thread_pool>> pools_;
  std::vector<std::unique_ptr<thread_pool>> chosen_pools_;  ///< for chosen tokens, in all cells
  int threads_seen_ = 1;
  int threads_of_batches_ = 1;  ///< at attach

  // Of the graph that runs now.
  bool decoding_ = false;  ///< it is no rotation of cached keys, which must not be stopped
  graph_tokens tokens_;
  std::vector<std::int32_t> counted_;  ///< positions, where the model's graph has none
  std::vector<std::int32_t> outputs_;  ///< batch indices of the tokens that have logits; empty: all
};

}  // namespace kvpolicy::llama
