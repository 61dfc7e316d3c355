// Looks over a session's shoulder: what every attention node of a context read and wrote.
#pragma once

#include <llama.h>

#include <cstdint>
#include <vector>

#include "kvpolicy/selection.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::llama::testing {

/// One attention node after it ran. Floats hold the cache's f16 or bf16 exactly.
struct seen_attention {
  std::int64_t layer = 0;
  std::int64_t queries = 0;  ///< tokens of the micro-batch
  std::int64_t first = 0;    ///< the micro-batch's first cell
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0, cells = 0;
  bool by_policy = false;     ///< ran as a custom op
  std::vector<float> q;       ///< `[queries, q_heads, head_dim]`
  std::vector<float> keys;    ///< `[cells, kv_heads, head_dim]`
  std::vector<float> values;  ///< the same
  std::vector<float> out;     ///< `[queries, q_heads, head_dim]`
};

/// Wraps the parameters' cb_eval, whether a session has set one or nobody. Must outlive the context.
class attention_probe {
 public:
  explicit attention_probe(llama_context_params& params);
  attention_probe(attention_probe const&) = delete;
  attention_probe& operator=(attention_probe const&) = delete;

  std::vector<seen_attention> seen;

 private:
  static bool on_node(ggml_tensor* node, bool ask, void* self);

  ggml_backend_sched_eval_callback inner_;
  void* inner_data_;
  bool inner_wants_ = false;
  std::int64_t first_ = 0;
};

/// Attention of token 0 of `node` in double precision, head h over the tokens that `kept` lists for its KV head (one list:
/// for all of them): `[q_heads, head_dim]`.
std::vector<double> reference_attention(seen_attention const& node, std::vector<range_list> const& kept);

/// A one-layer f32 view of the node's first `tokens` rows.
strided_view<> view_of(seen_attention const& node, std::int64_t tokens);

}  // namespace kvpolicy::llama::testing
