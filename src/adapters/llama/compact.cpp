#include "kvpolicy/interop/llama/compact.hpp"

#include <ggml-backend.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/error.hpp"
#include "layers.hpp"
#include "nodes.hpp"
#include "parameters.hpp"
#include "sequence_image.hpp"

namespace kvpolicy::llama {
namespace {

/// Throws unsupported unless the policy chooses once, by what a compaction can give it.
void check_kind(host_policy const& policy) {
  requirements const of = requirements_of(policy);
  requirements const retain = requirements_of(parts_of(policy).retain);
  auto const refuse = [](std::string const& why) { throw unsupported("a compaction can't serve this policy: " + why); };
  if (!requirements_of(parts_of(policy).retrieve).keeps_all)
    refuse("at each step it chooses what to read, which the engine's own steps don't; use a session");
  if (retain.keeps_all) refuse("it drops nothing");
  if (of.after > 0)
    refuse("it waits for " + std::to_string(of.after) +
           " tokens of the answer; set its after to 0, and call compact() when the answer has that many");
  if (retain.evicts) refuse("it drops tokens in steps, too; use a session");
  constexpr signals given = signals::keys | signals::values | signals::observation_queries;
  if ((of.needs | given) != given) refuse("it needs more than keys, values and the prompt's last queries; use a session");
  if (of.observation_queries == all_queries) refuse("it looks at every query of the prompt; use a session");
}

}  // namespace

/// The last queries of each layer, as prompts and steps bring them.
struct compactor::inside {
  host_policy policy;
  std::int64_t window;
  std::optional<served_layers> layers{};
  ggml_backend_sched_eval_callback theirs = nullptr;  ///< that the parameters had
  void* theirs_data = nullptr;
  bool they_ask = false;
  float scale = 1;
  bool biased = false;
  std::exception_ptr failure{};
  std::vector<std::vector<float>> queries{};  ///< `[layers][tokens, q_heads, head_dim]`, the last `window` tokens

  explicit inside(host_policy of) : policy(std::move(of)), window(requirements_of(policy).observation_queries) {}

  static bool on_node(ggml_tensor* node, bool ask, void* self_data) {
    auto& self = *static_cast<inside*>(self_data);
    if (ask) self.they_ask = self.theirs != nullptr && self.theirs(node, true, self.theirs_data);
    std::optional<std::int64_t> const layer =
        node->op == GGML_OP_FLASH_ATTN_EXT ? self.layers->find(key_cache_layer(node->src[1])) : std::nullopt;
    bool const mine = layer && self.window > 0;
    if (ask) {
      if (layer) {
        attention_parameters const of(node);
        self.scale = of.scale;
        self.biased = of.max_bias > 0;
      }
      return mine || self.they_ask;
    }
    if (mine) self.keep(*layer, node->src[0]);
    return !self.they_ask || self.theirs(node, false, self.theirs_data);
  }

  void keep(std::int64_t layer, ggml_tensor const* q) noexcept {
    try {
      std::int64_t const row = q->ne[0] * q->ne[2];
      std::int64_t const count = std::min<std::int64_t>(window, q->ne[1]);
      std::vector<float>& mine = queries[static_cast<std::size_t>(layer)];
      std::int64_t const stay = std::min<std::int64_t>(std::ssize(mine) / row, window - count);
      mine.erase(mine.begin(), mine.end() - stay * row);
      mine.resize(static_cast<std::size_t>((stay + count) * row));
      float* to = mine.data() + stay * row;
      std::size_t const head = static_cast<std::size_t>(q->ne[0]) * sizeof(float);
      for (std::int64_t t = q->ne[1] - count; t < q->ne[1]; ++t) {
        std::size_t const at = static_cast<std::size_t>(t) * q->nb[1];
        if (q->nb[2] == head) {  // a token's heads are neighbours
          ggml_backend_tensor_get(q, to, at, head * static_cast<std::size_t>(q->ne[2]));
          to += row;
          continue;
        }
        for (std::int64_t h = 0; h < q->ne[2]; ++h, to += q->ne[0])
          ggml_backend_tensor_get(q, to, at + static_cast<std::size_t>(h) * q->nb[2], head);
      }
    } catch (...) {
      failure = std::current_exception();
    }
  }
};

compactor::compactor(host_policy policy) : inside_(std::make_unique<inside>(std::move(policy))) { check_kind(inside_->policy); }
compactor::~compactor() = default;

void compactor::attach(llama_context_params& params, llama_model const* model) {
  inside& in = *inside_;
  KVPOLICY_EXPECTS(!in.layers, "this compactor is attached already; use one for each context");
  auto const refuse_if = [](bool refused, char const* why) {
    if (refused) throw unsupported(why);
  };
  refuse_if(llama_model_is_recurrent(model) || llama_model_is_hybrid(model),
            "a compaction of a model with recurrent layers, whose state is no row of a token");
  refuse_if(llama_model_rope_type(model) == LLAMA_ROPE_TYPE_MROPE || llama_model_rope_type(model) == LLAMA_ROPE_TYPE_IMROPE ||
                llama_model_rope_type(model) == LLAMA_ROPE_TYPE_VISION,
            "a compaction of a model with positions of several axes");
  refuse_if(params.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_DISABLED,
            "a compaction without flash attention; set flash_attn_type to LLAMA_FLASH_ATTN_TYPE_ENABLED");
  refuse_if(in.window > 0 && params.n_seq_max > 1,
            "a compaction by the last queries of several sequences' prompts, which can't be told apart here; set n_seq_max to "
            "1, or use a policy that looks at keys alone (knorm, keydiff)");
  served_layers found(params, model, true);
  if (!found.left().empty()) throw unsupported("a compaction of some of a model's layers; " + found.left().front());
  cache_shape shape = found.shape();
  shape.max_tokens = params.n_ctx != 0 ? params.n_ctx : llama_model_n_ctx_train(model);
  kvpolicy::check(in.policy, shape);
  in.queries.resize(static_cast<std::size_t>(found.count()));
  in.layers = std::move(found);
  in.theirs = std::exchange(params.cb_eval, &inside::on_node);
  in.theirs_data = std::exchange(params.cb_eval_user_data, &in);
}

compaction compactor::compact(llama_context* context, llama_seq_id of) {
  inside& in = *inside_;
  KVPOLICY_EXPECTS(in.layers.has_value(), "a compaction before attach(); attach the compactor to the context's parameters");
  if (in.failure) std::rethrow_exception(std::exchange(in.failure, {}));
  if (in.biased) throw unsupported("a compaction of a model with ALiBi, whose attention depends on positions");
  cache_shape shape = in.layers->shape();
  sequence_image const image(context, of, shape);
  compaction made{.tokens = image.tokens()};
  KVPOLICY_EXPECTS(made.tokens > 0, "sequence " + std::to_string(of) + " has no tokens; decode its prompt first");
  shape.max_tokens = made.tokens;
  std::vector<rows> keys;
  std::vector<rows> values;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    keys.push_back(image.keys({l}));
    values.push_back(image.values({l}));
  }
  shape.type = keys.front().type;
  layer_table_view const view{.cache = shape, .count = made.tokens, .key_rows = keys.data(), .value_rows = values.data()};
  host_request request = start(in.policy, shape);
  simd_exec exec(shape);
  std::vector<std::vector<std::int32_t>> lists;  // `[layers, kv_heads]` tokens
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::vector<float> const& seen = in.queries[static_cast<std::size_t>(l)];
    std::int64_t const row = shape.q_heads * shape.head_dim;
    prompt_signals prompt{};
    if (in.window > 0) {
      std::int64_t const count = std::min<std::int64_t>(std::ssize(seen) / row, made.tokens);
      prompt.queries = {seen.data() + std::ssize(seen) - count * row, count, shape.q_heads, row, shape.head_dim, in.scale};
      prompt.observed_from = made.tokens - count;
    }
    request.prefill(view, {l}, prompt, exec);
    selection const kept = request.retained({l});
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      std::vector<std::int32_t>& list = lists.emplace_back();
      for (token_range const& range : kept.of({h}))
        for (std::int32_t t = range.begin; t < range.end; ++t) list.push_back(t);
      if (list.size() != lists.front().size())
        throw unsupported("head " + std::to_string(h) + " of layer " + std::to_string(l) + " retains " +
                          std::to_string(list.size()) + " tokens, the first one " + std::to_string(lists.front().size()) +
                          "; llama.cpp's cells are the same in all layers and heads: use a policy that keeps as many in each");
    }
  }
  made.kept = std::ssize(lists.front());
  if (made.kept == made.tokens) return made;
  std::vector<std::uint8_t> const small = image.with(made.kept, [&](layer_id l, head_id h, std::int64_t i) {
    return lists[static_cast<std::size_t>(l.value * shape.kv_heads + h.value)][static_cast<std::size_t>(i)];
  });
  if (llama_state_seq_set_data(context, small.data(), small.size(), of) == small.size()) return made;
  bool const back = llama_state_seq_set_data(context, image.bytes().data(), image.bytes().size(), of) == image.bytes().size();
  throw error("llama.cpp does not take a compacted state of " + std::to_string(made.kept) + " cells; " +
              (back ? "the sequence is as it was" : "nor the one before, so the sequence is lost: decode its prompt again"));
}

}  // namespace kvpolicy::llama
