#include "graph_rewriter.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

namespace kvpolicy::llama {

graph_rewriter::~graph_rewriter() {
  if (dummies_ != nullptr) ggml_free(dummies_);
}

void graph_rewriter::attach(llama_context_params& params, served_layers layers) {
  layers_ = std::move(layers);
  auto const count = static_cast<std::size_t>(layers_.count()) + layers_.chosen().size();
  dummies_ = ggml_init({.mem_size = ggml_tensor_overhead() * (count + 1), .mem_buffer = nullptr, .no_alloc = true});
  hooks_.resize(count);
  for (layer_hook& hook : hooks_) {
    hook.self = this;
    hook.dummy = ggml_custom_4d(dummies_, GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, &on_attention, GGML_N_TASKS_MAX, &hook);
  }
  threads_seen_ = std::max(1, params.n_threads);
  threads_of_batches_ = std::max(1, params.n_threads_batch);
  caller_abort_ = std::exchange(params.abort_callback, &on_abort);
  caller_abort_data_ = std::exchange(params.abort_callback_data, this);
  caller_eval_ = std::exchange(params.cb_eval, &on_node);
  caller_eval_data_ = std::exchange(params.cb_eval_user_data, this);
}

/// A callback that was there before is asked too, and called for the nodes that it asked for.
bool graph_rewriter::on_node(ggml_tensor* node, bool ask, void* data) noexcept {
  auto& self = *static_cast<graph_rewriter*>(data);
  if (ask) self.asked_ = false;
  try {
    if (ask) self.asked_ = self.ask(node);
    else if (self.asked_) self.computed(node);
  } catch (...) {
    if (self.client_.active()) self.client_.fail();
  }
  if (ask) self.caller_asked_ = self.caller_eval_ != nullptr && self.caller_eval_(node, true, self.caller_eval_data_);
  if (ask) return self.asked_ || self.caller_asked_;
  return !self.caller_asked_ || self.caller_eval_(node, false, self.caller_eval_data_);
}

bool graph_rewriter::on_abort(void* data) noexcept {
  auto& self = *static_cast<graph_rewriter*>(data);
  if (self.decoding_ && self.client_.stops()) return true;
  return self.caller_abort_ != nullptr && self.caller_abort_(self.caller_abort_data_);
}

bool graph_rewriter::ask(ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_SET_ROWS:
      decoding_ = true;
      see_written(node);
      return false;
    case GGML_OP_FLASH_ATTN_EXT:
      return ask_attention(node);
    case GGML_OP_CUSTOM:
      if (layer_hook* const hook = hook_of(node)) {
        // Graphs are used again: a node that was taken in another one is the engine's again.
        std::memcpy(node->op_params, hook->own_params.data(), sizeof node->op_params);
        node->op = GGML_OP_FLASH_ATTN_EXT;
        return ask_attention(node);
      }
      return false;
    case GGML_OP_GET_ROWS:
      see_input(node);
      return false;
    case GGML_OP_CPY:
    case GGML_OP_ROPE:
      if (ggml_tensor const* const by = rotated_by(node)) return ask_rotation(node, by);
      if (node->op == GGML_OP_ROPE && node->src[1]->data != nullptr) {
        tokens_.positions = {static_cast<std::int32_t const*>(node->src[1]->data),
                             static_cast<std::size_t>(node->src[1]->ne[0])};
      }
      return false;
    case GGML_OP_SOFT_MAX:
      if (client_.active() && std::string_view(node->name).starts_with("kq_soft_max")) {
        throw unsupported("flash attention is off in this context; set flash_attn_type to LLAMA_FLASH_ATTN_TYPE_ENABLED");
      }
      return false;
    default:
      return client_.active() && std::string_view(node->name) == "result_output" && client_.wants_logits();
  }
}

/// Attention is the moment when a layer's inputs are set and its rows are about to be read.
bool graph_rewriter::ask_attention(ggml_tensor* node) {
  decoding_ = true;
  auto const layer = layer_of(node->src[1]);
  if (!layer) return ask_chosen(node), false;
  layer_hook& hook = hooks_[static_cast<std::size_t>(*layer)];
  hook.node = read_attention(node, *layer, slopes_);
  if (*layer == 0) complete_tokens(hook.node);
  bool wanted = client_.follow(hook.node, tokens_);
  if (client_.active()) {
    try {
      node_use const use = client_.serve(hook.node, tokens_);
      if (*layer == 0) make_pools(client_.shape(), pools_);
      wanted = use == node_use::come_back;
      if (use == node_use::take) take(node, hook);
    } catch (...) {
      client_.fail();
    }
  }
  if (*layer == 0) tokens_.ids = tokens_.positions = {};  // the next graph may have none
  return wanted;
}

void graph_rewriter::take(ggml_tensor* node, layer_hook& hook) noexcept {
  std::memcpy(hook.own_params.data(), node->op_params, sizeof node->op_params);
  std::memcpy(node->op_params, hook.dummy->op_params, sizeof node->op_params);
  node->op = GGML_OP_CUSTOM;
}

/// Where the model chooses few of many tokens, they are read alone. Else the engine's kernel is as fast.
void graph_rewriter::ask_chosen(ggml_tensor* node) {
  auto const at = std::ranges::find(layers_.chosen(), key_cache_layer(node->src[1]).value_or(-1));
  if (at == layers_.chosen().end() || !client_.active()) return;
  auto const most = chosen_at_most(node);
  constexpr std::int64_t worth_it = 4;
  bool const prompt = node->src[0]->ne[1] > 1;
  if (!most || (prompt && !client_.takes_prompts()) || node->src[1]->ne[1] < worth_it * *most) return;
  cache_shape shape = layers_.chosen_shape();
  ggml_tensor const* const cache = storage_of(node->src[1]);
  shape.max_tokens = cache->ne[1] * cache->ne[2];
  make_pools(shape, chosen_pools_);
  layer_hook& hook = hooks_[static_cast<std::size_t>(layers_.count() + (at - layers_.chosen().begin()))];
  hook.chosen = true;
  take(node, hook);
}

/// llama_memory_seq_add: a graph of its own rotates the cached keys, layer by layer. Returns whether to come back.
bool graph_rewriter::ask_rotation(ggml_tensor const* node, ggml_tensor const* by) {
  decoding_ = false;
  auto const layer = layer_of(node);
  bool const known = by->type == GGML_TYPE_I32 && by->data != nullptr;
  if (layer == 0)
    client_.rotate({static_cast<std::int32_t const*>(by->data), known ? static_cast<std::size_t>(ggml_nelements(by)) : 0});
  return layer && *layer + 1 == layers_.count();
}

/// A node that was asked for is there.
void graph_rewriter::computed(ggml_tensor const* node) {
  if (node->op == GGML_OP_ROPE || node->op == GGML_OP_CPY) return client_.rotated();
  if (node->op != GGML_OP_FLASH_ATTN_EXT) {
    if (client_.active()) observe(node);
    return;
  }
  attention_node const& read = hooks_[static_cast<std::size_t>(*layer_of(node->src[1]))].node;
  client_.sealed(read, tokens_);
  if (!client_.active()) return;
  thread_pool& alone = *pools_.front();
  alone.together.lead_alone([&] { client_.computed(read, alone.exec); });
}

void graph_rewriter::observe(ggml_tensor const* logits) {
  if (logits->type != GGML_TYPE_F32) return;
  for (std::int64_t row = 0; row < logits->ne[1]; ++row) {
    auto const* const values =
        reinterpret_cast<float const*>(static_cast<char const*>(logits->data) + static_cast<std::size_t>(row) * logits->nb[1]);
    client_.observe(outputs_.empty() ? static_cast<std::int32_t>(row) : outputs_[static_cast<std::size_t>(row)],
                    {values, static_cast<std::size_t>(logits->ne[0])});
  }
}

/// A GET_ROWS node that picks by one of the graph's inputs: the tokens' ids or positions, or the batch indices of those that
/// have logits.
void graph_rewriter::see_input(ggml_tensor const* get_rows) {
  ggml_tensor const* const picks = get_rows->src[1];
  bool const input = picks->op == GGML_OP_NONE && (picks->flags & GGML_TENSOR_FLAG_INPUT) != 0 && picks->data != nullptr;
  // For embeddings, the engine has its tokens' rows in the graph too, and does not compute them.
  if (!input || picks->type != GGML_TYPE_I32 || (get_rows->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) return;
  std::span const values(static_cast<std::int32_t const*>(picks->data), static_cast<std::size_t>(picks->ne[0]));
  bool const of_weights = get_rows->src[0]->op == GGML_OP_NONE;
  std::string_view const name = picks->name;
  if (name == "inp_tokens") tokens_.ids = values;
  else if (of_weights) tokens_.positions = values;
  else if (name.ends_with("out_ids")) outputs_.assign(values.begin(), values.end());
}

/// A layer's keys go to these cells. With the first served layer's a graph begins.
void graph_rewriter::see_written(ggml_tensor const* set_rows) {
  auto const layer = layer_of(set_rows);
  if (layer == 0) {
    tokens_.written = {};  // whatever throws, not the last graph's
    tokens_.written = written_cells(set_rows);
  }
  if (layer != ropes_known_ || !client_.active() || !client_.wants_rope()) return;
  rotary_.learn(set_rows, layers_.shape().head_dim);
  ++ropes_known_;
}

/// The first served layer says the rest of what the graph's tokens are.
void graph_rewriter::complete_tokens(attention_node const& first) {
  outputs_.clear();
  tokens_.stream_cells = first.stream_cells;
  auto const whole = std::ssize(tokens_.written);
  if (std::ssize(tokens_.ids) != whole) tokens_.ids = {};
  if (client_.active() && client_.wants_rope()) rotary_.check_text(tokens_.positions, whole);
  // Embeddings of several axes have their positions axis by axis; text's are the same in all.
  if (std::ssize(tokens_.positions) >= whole) {
    tokens_.positions = tokens_.positions.first(tokens_.written.size());
  } else {
    tokens_.positions = {};
  }
  tokens_.counted = false;
  if (!tokens_.positions.empty() || !first.refused.empty()) return;
  // The model has none in its graph (ALiBi): a token is as far as it sees others.
  counted_.clear();
  for (std::int64_t i = 0; i < whole; ++i) {
    std::int32_t seen = -1;  // but for itself
    for (std::int64_t cell = 0; cell < first.mask.cells(); ++cell) seen += first.mask.visible(i, cell) ? 1 : 0;
    counted_.push_back(seen);
  }
  client_.correct_positions(first, tokens_, counted_);
  tokens_.positions = counted_;
  tokens_.counted = true;
}

graph_rewriter::layer_hook* graph_rewriter::hook_of(ggml_tensor const* node) noexcept {
  for (layer_hook& hook : hooks_) {
    if (std::memcmp(node->op_params, hook.dummy->op_params, sizeof node->op_params) == 0) return &hook;
  }
  return nullptr;
}

void graph_rewriter::make_pools(cache_shape const& shape, std::vector<std::unique_ptr<thread_pool>>& pools) {
  for (int const threads : {threads_seen_, threads_of_batches_}) {
    if (pool_of(pools, threads) == nullptr) pools.push_back(std::make_unique<thread_pool>(threads, shape));
  }
}

graph_rewriter::thread_pool* graph_rewriter::pool_of(std::vector<std::unique_ptr<thread_pool>> const& pools,
                                                     int threads) noexcept {
  auto const found = std::ranges::find(pools, threads, [](auto const& pool) { return pool->together.size(); });
  return found != pools.end() ? found->get() : nullptr;
}

template <class Work>
void graph_rewriter::work_together(std::vector<std::unique_ptr<thread_pool>> const& pools, int rank, int threads,
                                   Work work) noexcept {
  thread_pool* const all = threads > 1 ? pool_of(pools, threads) : nullptr;
  if (rank != 0) {
    if (all != nullptr) all->together.follow();
    return;
  }
  thread_pool& lead = all != nullptr ? *all : *pools.front();
  auto const with_exec = [&]() noexcept { work(lead.exec); };
  if (all != nullptr) all->together.lead(with_exec);
  else lead.together.lead_alone(with_exec);
}

void graph_rewriter::on_attention(ggml_tensor* node, int rank, int threads, void* data) noexcept {
  auto& hook = *static_cast<layer_hook*>(data);
  graph_rewriter& self = *hook.self;
  if (rank == 0) self.threads_seen_ = threads;
  if (hook.chosen) {
    // The op's parameters are a custom op's now.
    return work_together(self.chosen_pools_, rank, threads, [&](simd_exec& exec) {
      ggml_tensor as_it_was = *node;
      std::memcpy(as_it_was.op_params, hook.own_params.data(), sizeof as_it_was.op_params);
      try {
        self.chosen_.attend(&as_it_was, exec);
      } catch (...) {
        self.client_.fail();
        std::fill_n(static_cast<float*>(node->data), ggml_nelements(node), std::numeric_limits<float>::quiet_NaN());
      }
    });
  }
  if (rank == 0) {
    hook.node.queries = {node->src[0]};
    hook.node.out = static_cast<float*>(node->data);
  }
  work_together(self.pools_, rank, threads, [&](simd_exec& exec) { self.client_.attend(hook.node, self.tokens_, exec); });
}

}  // namespace kvpolicy::llama
