// The session's inside: follows the graphs of one llama_context and puts the policy's attention into its decode steps.
#pragma once

#include <llama.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "kvpolicy/exec/team.hpp"
#include "kvpolicy/interop/llama.hpp"
#include "nodes.hpp"
#include "prompt_memory.hpp"

namespace kvpolicy::llama {

class session::engine {
 public:
  engine(policy_runner runner, session_options options);
  ~engine();
  engine(engine const&) = delete;
  engine& operator=(engine const&) = delete;

  void attach(llama_context_params& params, llama_model const* model);
  void detach() noexcept { attached_ = false; }
  void use(policy_runner runner);
  saved_prompt save() const;
  void load(saved_prompt const& saved);
  void check();
  step_statistics const& last_step() const noexcept { return statistics_; }
  std::int64_t steps() const noexcept { return steps_; }
  tier::resident_statistics tier_statistics() const noexcept {
    return resident_ ? resident_->statistics() : tier::resident_statistics{};
  }

 private:
  /// What the dummy of one layer carries into the custom op.
  struct layer_hook {
    engine* self = nullptr;
    std::int64_t layer = 0;
    ggml_tensor* dummy = nullptr;  ///< its op and op_params are copied over a node's
    std::array<std::int32_t, GGML_MAX_OP_PARAMS / sizeof(std::int32_t)> own_params{};  ///< the node's, before
    float scale = 1;
    bool prefill_due = true;  ///< the policy has not seen this layer's prompt
  };

  static bool on_node(ggml_tensor* node, bool ask, void* self) noexcept;
  static bool on_abort(void* self) noexcept;
  static void on_attention(ggml_tensor* node, int rank, int threads, void* hook) noexcept;

  /// The last layer's keys of one token depend on every token before it: their hash tells whether the cache is still the same.
  struct history_print {
    std::int64_t token = 0;
    std::uint64_t hash = 0;
    bool stays = false;  ///< not replaced by the next token's
  };

  bool ask(ggml_tensor* node);
  void computed(ggml_tensor const* node);
  void begin_graph(written_cells const& written);
  bool ask_attention(ggml_tensor* node);
  void begin(ggml_tensor const* attention);
  void see_rows(ggml_tensor const* node, layer_hook const& hook);
  layer_hook* hook_of(ggml_tensor const* node) noexcept;
  void restore(ggml_tensor* node) noexcept;
  void step(ggml_tensor* node, layer_hook& hook);
  void forget(std::int64_t tokens) noexcept;
  void forget_all() noexcept;
  void prompt_due(std::int64_t from) noexcept;
  void fail() noexcept;
  bool active() const noexcept;
  void make_prompt_room();
  prompt_signals prompt_of(std::int64_t layer, std::int64_t tokens) const;
  layer_table_view view_of(std::int64_t tokens) const noexcept;
  void remember(std::int64_t token, bool stays) noexcept;
  std::uint64_t hash_of(std::int64_t token) const noexcept;

  policy_runner runner_;
  session_options options_;
  bool attached_ = false;
  ggml_abort_callback caller_abort_ = nullptr;
  void* caller_abort_data_ = nullptr;
  std::exception_ptr failure_;

  ggml_context* dummies_ = nullptr;
  std::vector<layer_hook> hooks_;  ///< `[layers]`
  cache_shape shape_{};            ///< max_tokens is 0 until the first graph
  std::vector<rows> keys_;         ///< `[layers]`, all cells of the cache
  std::vector<rows> values_;
  std::optional<team> team_;
  int threads_seen_ = 1;
  std::optional<simd_exec> exec_;  ///< on the team
  std::optional<simd_exec> solo_;  ///< for logits, between graphs

  written_cells graph_{};      ///< of the graph that runs now
  std::int64_t tokens_ = 0;    ///< that the session followed
  std::int64_t due_from_ = 0;  ///< first token of the prompt that the policy has not seen
  prompt_memory prompt_;
  std::span<std::int32_t const> graph_ids_;  ///< token ids of the graph that runs now
  std::optional<saved_prompt> loaded_;       ///< before the first graph: kept until the shape is known
  std::vector<history_print> prints_;        ///< ascending: every 64th token's, each prompt's last, and the last token's

  std::optional<tier::resident_rows<tier::any_tier>> resident_;  ///< where rows live in a tier

  step_statistics statistics_;
  std::int64_t steps_ = 0;
};

}  // namespace kvpolicy::llama
