#include "kvpolicy/interop/llama/compact.hpp"

#include <ggml-backend.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compactable.hpp"
#include "kvpolicy/error.hpp"
#include "layers.hpp"
#include "nodes.hpp"
#include "parameters.hpp"
#include "sequence_image.hpp"

namespace kvpolicy::llama {

/// The last queries of each sequence and layer, as prompts and steps bring them.
struct compactor::inside {
  /// A layer's last queries, of `window` tokens at most.
  struct seen {
    std::vector<float> queries{};        ///< `[tokens, q_heads, head_dim]`
    std::vector<llama_pos> positions{};  ///< `[tokens]`

    /// How many of the last ones are a sequence's, which ends at a position. Throws invalid_value for none.
    std::int64_t up_to(llama_pos last) const {
      std::int64_t count = 0;
      for (auto p = positions.rbegin(); p != positions.rend() && *p == last - count; ++p) ++count;
      std::string const of = positions.empty() ? "no position" : "position " + std::to_string(positions.back());
      KVPOLICY_EXPECTS(count > 0, "the sequence ends at position " + std::to_string(last) +
                                      ", and the last queries seen are of " + of +
                                      "; decode the prompt's end again before compact()");
      return count;
    }
  };

  host_policy policy;
  std::int64_t window;
  std::optional<served_layers> layers{};
  ggml_backend_sched_eval_callback theirs = nullptr;  ///< that the parameters had
  void* theirs_data = nullptr;
  bool they_ask = false;
  float scale = 1;
  bool biased = false;
  bool several = false;  ///< sequences
  bool told = false;     ///< set_batch() says whose each token is
  bool watching = true;
  std::exception_ptr failure{};
  std::vector<llama_pos> positions{};                        ///< of the micro-batch
  std::vector<llama_seq_id> batch{};                         ///< sequences of the batch's tokens
  std::int64_t done = 0;                                     ///< the batch's tokens in earlier micro-batches
  std::set<llama_seq_id> at_rest{};                          ///< whose queries are not kept
  std::map<llama_seq_id, std::vector<seen>> of_sequences{};  ///< `[layers]` each

  explicit inside(host_policy of) : policy(std::move(of)), window(requirements_of(policy).observation_queries) {}

  static bool on_node(ggml_tensor* node, bool ask, void* self_data) {
    auto& self = *static_cast<inside*>(self_data);
    if (ask) self.they_ask = self.theirs != nullptr && self.theirs(node, true, self.theirs_data);
    bool const mine = self.wants(node, ask);
    if (ask) return mine || self.they_ask;
    return !self.they_ask || self.theirs(node, false, self.theirs_data);
  }

  /// Before a node is computed: whether its queries are wanted; behind it, they are kept.
  bool wants(ggml_tensor const* node, bool ask) noexcept {
    try {
      if (node->op == GGML_OP_ROPE && ask && window > 0) learn_positions(node->src[1]);
      if (node->op != GGML_OP_FLASH_ATTN_EXT) return false;
      std::optional<std::int64_t> const layer = layers->find(attended_layer(node));
      if (!layer) return false;
      if (ask) {
        attention_parameters const of(node);
        scale = of.scale;
        biased = of.max_bias > 0;
        // Behind a compaction, steps need not be watched until the next prompt.
        watching = watching || (!told && node->src[0]->ne[1] > 1);
      } else if (watching && window > 0) {
        keep(static_cast<std::size_t>(*layer), node->src[0]);
      }
      return watching && window > 0;
    } catch (...) {
      failure = std::current_exception();
      of_sequences.clear();
      return false;
    }
  }

  /// Those of the micro-batch: read before the first node that uses them, as their memory may be another's later.
  void learn_positions(ggml_tensor const* from) {
    if (from == nullptr || from->type != GGML_TYPE_I32) return;
    positions.resize(static_cast<std::size_t>(from->ne[0]));
    ggml_backend_tensor_get(from, positions.data(), 0, positions.size() * sizeof(llama_pos));
  }

  /// Whose a token of the micro-batch is. Throws invalid_value for one that set_batch() did not name.
  llama_seq_id sequence_of(std::int64_t token) const {
    if (!told && !several) return 0;
    KVPOLICY_EXPECTS(done + token < std::ssize(batch),
                     "a batch of more tokens than the " + std::to_string(batch.size()) +
                         " whose sequences set_batch() was told; call set_batch() before each llama_decode");
    return batch[static_cast<std::size_t>(done + token)];
  }

  /// Appends the micro-batch's last queries of each sequence. They have not been overwritten: nothing behind their attention
  /// was computed yet.
  void keep(std::size_t layer, ggml_tensor const* q) {
    std::int64_t const tokens = q->ne[1];
    if (std::ssize(positions) != tokens)
      throw unsupported("a compaction by queries without rotary positions: nothing says of which tokens they are");
    std::map<llama_seq_id, std::vector<std::int64_t>> own;
    for (std::int64_t t = 0; t < tokens; ++t) own[sequence_of(t)].push_back(t);
    for (auto const& [of, mine] : own) {
      if (at_rest.contains(of)) continue;
      std::vector<seen>& layers_of = of_sequences[of];
      layers_of.resize(static_cast<std::size_t>(layers->count()));
      append(layers_of[layer], q, mine);
    }
    if (layer + 1 == static_cast<std::size_t>(layers->count())) done += tokens;
  }
  /// `mine`: which of the micro-batch's tokens are the sequence's.
  void append(seen& to, ggml_tensor const* q, std::span<std::int64_t const> mine) const {
    std::int64_t const row = q->ne[0] * q->ne[2];
    auto const position = [&](std::int64_t token) { return positions[static_cast<std::size_t>(token)]; };
    while (!to.positions.empty() && to.positions.back() >= position(mine.front())) to.positions.pop_back();  // taken back
    mine = mine.last(std::min(mine.size(), static_cast<std::size_t>(window)));
    std::int64_t const had = std::ssize(to.positions);
    std::int64_t const stay = std::min(had, window - std::ssize(mine));
    to.queries.resize(static_cast<std::size_t>(had * row));
    to.queries.erase(to.queries.begin(), to.queries.end() - stay * row);
    to.queries.resize(static_cast<std::size_t>((stay + std::ssize(mine)) * row));
    to.positions.erase(to.positions.begin(), to.positions.end() - stay);
    for (std::int64_t const t : mine) to.positions.push_back(position(t));
    float* into = to.queries.data() + stay * row;
    std::size_t const head = static_cast<std::size_t>(q->ne[0]) * sizeof(float);
    for (std::int64_t const t : mine) {
      std::size_t const at = static_cast<std::size_t>(t) * q->nb[1];
      if (q->nb[2] == head) {  // a token's heads are neighbours
        ggml_backend_tensor_get(q, into, at, head * static_cast<std::size_t>(q->ne[2]));
        into += row;
        continue;
      }
      for (std::int64_t h = 0; h < q->ne[2]; ++h, into += q->ne[0])
        ggml_backend_tensor_get(q, into, at + static_cast<std::size_t>(h) * q->nb[2], head);
    }
  }
};

compactor::compactor(host_policy policy) : inside_(std::make_unique<inside>(std::move(policy))) {
  check_compactable(inside_->policy);
}
compactor::~compactor() = default;

void compactor::attach(llama_context_params& params, llama_model const* model) {
  inside& in = *inside_;
  KVPOLICY_EXPECTS(!in.layers, "this compactor is attached already; use one for each context");
  auto const refuse_if = [](bool refused, char const* why) {
    if (refused) throw unsupported(why);
  };
  check_parameters(params, model);
  refuse_if(llama_model_is_hybrid(model), "a compaction of a model with recurrent layers, whose state is no row of a token");
  llama_rope_type const turns = llama_model_rope_type(model);
  refuse_if(turns == LLAMA_ROPE_TYPE_MROPE || turns == LLAMA_ROPE_TYPE_IMROPE || turns == LLAMA_ROPE_TYPE_VISION,
            "a compaction of a model with positions of several axes");
  refuse_if(params.n_seq_max > 1 && !params.kv_unified, "a compaction of a cache of several streams; set kv_unified");
  served_layers found(params, model, true);
  refuse_if(found.shape().values_dim() != found.shape().head_dim, "a compaction of keys and values of unequal sizes");
  if (!found.left().empty()) throw unsupported("a compaction of some of a model's layers; " + found.left().front());
  cache_shape shape = found.shape();
  shape.max_tokens = params.n_ctx != 0 ? params.n_ctx : llama_model_n_ctx_train(model);
  kvpolicy::check(in.policy, shape);
  in.several = params.n_seq_max > 1;
  in.layers = std::move(found);
  in.theirs = std::exchange(params.cb_eval, &inside::on_node);
  in.theirs_data = std::exchange(params.cb_eval_user_data, &in);
}

cache_shape compactor::shape() const { return inside_->layers ? inside_->layers->shape() : cache_shape{}; }

void compactor::set_batch(std::span<llama_seq_id const> sequences, std::span<llama_seq_id const> at_rest) {
  inside& in = *inside_;
  in.told = true;
  in.batch.assign(sequences.begin(), sequences.end());
  in.at_rest = std::set(at_rest.begin(), at_rest.end());
  in.done = 0;
  in.watching = std::ranges::any_of(in.batch, [&](llama_seq_id of) { return !in.at_rest.contains(of); });
}

void compactor::forget(llama_seq_id of) { inside_->of_sequences.erase(of); }

compaction compactor::compact(llama_context* context, llama_seq_id of) {
  inside& in = *inside_;
  KVPOLICY_EXPECTS(in.layers.has_value(), "a compaction before attach(); attach the compactor to the context's parameters");
  KVPOLICY_EXPECTS(of >= 0 && of < static_cast<llama_seq_id>(llama_n_seq_max(context)),
                   "sequence " + std::to_string(of) + " of a context for " + std::to_string(llama_n_seq_max(context)));
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
  std::vector<inside::seen>& of_layers = in.of_sequences[of];
  of_layers.resize(static_cast<std::size_t>(shape.layers));
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    prompt_signals prompt{};
    if (in.window > 0) {
      inside::seen const& seen = of_layers[static_cast<std::size_t>(l)];
      std::int64_t const row = shape.q_heads * shape.head_dim;
      std::int64_t const count = std::min(seen.up_to(image.last()), made.tokens);
      prompt.queries = {
          seen.queries.data() + std::ssize(seen.queries) - count * row, count, shape.q_heads, row, shape.head_dim, in.scale};
      prompt.observed_from = made.tokens - count;
    }
    request.prefill(view, {l}, prompt, exec);
    selection const kept = request.retained({l});
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      std::vector<std::int32_t>& list = lists.emplace_back();
      each_token(kept.of({h}), [&](std::int32_t t) { list.push_back(t); });
      if (list.size() != lists.front().size())
        throw unsupported("head " + std::to_string(h) + " of layer " + std::to_string(l) + " retains " +
                          std::to_string(list.size()) + " tokens, the first one " + std::to_string(lists.front().size()) +
                          "; llama.cpp's cells are the same in all layers and heads: use a policy that keeps as many in each");
    }
  }
  made.kept = std::ssize(lists.front());
  if (!in.told) in.watching = false;
  if (made.kept == made.tokens) return made;
  std::vector<std::uint8_t> const small = image.with(made.kept, [&](layer_id l, head_id h, std::int64_t i) {
    return lists[static_cast<std::size_t>(l.value * shape.kv_heads + h.value)][static_cast<std::size_t>(i)];
  });
  if (llama_state_seq_set_data(context, small.data(), small.size(), of) == small.size()) return made;
  bool const back = llama_state_seq_set_data(context, image.bytes().data(), image.bytes().size(), of) == image.bytes().size();
  std::string const what = "llama.cpp does not take a compacted state of " + std::to_string(made.kept) + " cells; ";
  if (back) throw error(what + "the sequence is as it was");
  in.of_sequences.erase(of);
  throw sequence_lost(what + "nor the one before, so the sequence is lost: decode its prompt again");
}

}  // namespace kvpolicy::llama
