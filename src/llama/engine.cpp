#include "engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace kvpolicy::llama {
namespace {

constexpr std::int64_t nothing_due = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t print_every = 64;  // tokens

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_parameters(llama_context_params const& params, llama_model const* model) {
  KVPOLICY_EXPECTS(model != nullptr, "attach needs the model that the context will be made from");
  auto const refuse_if = [](bool refused, char const* what) {
    if (refused) throw unsupported(what);
  };
  refuse_if(llama_model_is_recurrent(model) || llama_model_is_hybrid(model), "recurrent and hybrid models are not supported");
  refuse_if(llama_model_has_encoder(model), "models with an encoder are not supported");
  refuse_if(llama_model_is_diffusion(model), "diffusion models are not supported");
  refuse_if(llama_model_n_swa(model) > 0, "models with sliding-window attention are not supported");
  refuse_if(params.attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL, "non-causal attention is not supported");
  refuse_if(params.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_DISABLED,
            "flash attention is disabled in the context's parameters; set flash_attn_type to LLAMA_FLASH_ATTN_TYPE_ENABLED");
  refuse_if(params.cb_eval != nullptr, "the context's parameters already have a cb_eval; only one can be attached");
  for (ggml_type const type : {params.type_k, params.type_v}) {
    if (type != GGML_TYPE_F16 && type != GGML_TYPE_BF16) {
      throw unsupported(std::string(ggml_is_quantized(type) ? "a quantised KV cache (" : "a KV cache of type (") +
                        ggml_type_name(type) + ") is not supported; set type_k and type_v to f16 or bf16");
    }
  }
  refuse_if(params.type_k != params.type_v, "keys and values of different types are not supported; set type_k = type_v");
}

}  // namespace

session::engine::engine(policy_runner runner, session_options options)
    : runner_(std::move(runner)), options_(std::move(options)), due_from_(0) {
  KVPOLICY_EXPECTS(options_.window_queries >= 0,
                   "window_queries is " + std::to_string(options_.window_queries) + "; it can't be negative");
}

session::engine::~engine() {
  if (dummies_ != nullptr) ggml_free(dummies_);
}

void session::engine::attach(llama_context_params& params, llama_model const* model) {
  KVPOLICY_EXPECTS(dummies_ == nullptr, "this session is attached already; use one session for each context");
  check_parameters(params, model);
  std::int64_t const layers = llama_model_n_layer(model);
  std::int64_t const heads = llama_model_n_head(model);
  runner_.check({.layers = layers,
                 .q_heads = heads,
                 .kv_heads = llama_model_n_head_kv(model),
                 .head_dim = llama_model_n_embd(model) / std::max<std::int64_t>(heads, 1),
                 .max_tokens = params.n_ctx != 0 ? params.n_ctx : llama_model_n_ctx_train(model)});

  dummies_ = ggml_init(
      {.mem_size = ggml_tensor_overhead() * static_cast<std::size_t>(layers + 1), .mem_buffer = nullptr, .no_alloc = true});
  hooks_.resize(static_cast<std::size_t>(layers));
  for (std::int64_t l = 0; l < layers; ++l) {
    layer_hook& hook = hooks_[static_cast<std::size_t>(l)];
    hook.self = this;
    hook.layer = l;
    hook.dummy = ggml_custom_4d(dummies_, GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, &on_attention, GGML_N_TASKS_MAX, &hook);
  }
  keys_.resize(hooks_.size());
  values_.resize(hooks_.size());
  team_.emplace(std::max(1, params.n_threads));
  threads_seen_ = team_->size();
  caller_abort_ = params.abort_callback;
  caller_abort_data_ = params.abort_callback_data;
  params.cb_eval = &on_node;
  params.cb_eval_user_data = this;
  params.abort_callback = &on_abort;
  params.abort_callback_data = this;
  attached_ = true;
}

void session::engine::use(policy_runner runner) {
  if (shape_.max_tokens != 0) {
    runner.check(shape_);
    runner.start(shape_);
  }
  runner_ = std::move(runner);
  make_prompt_room();
  attached_ = true;
  failure_ = nullptr;
  steps_ = 0;
  forget_all();
}

saved_prompt session::engine::save() const { return prompt_.save(); }

void session::engine::load(saved_prompt const& saved) {
  if (shape_.max_tokens == 0) {
    loaded_ = saved;
    return;
  }
  forget_all();
  prompt_.load(saved);
}

void session::engine::check() {
  if (failure_ == nullptr) return;
  std::exception_ptr const failure = std::exchange(failure_, nullptr);
  std::rethrow_exception(failure);
}

void session::engine::forget_all() noexcept {
  forget(0);
  due_from_ = 0;
  for (layer_hook& hook : hooks_) hook.prefill_due = true;
}

/// Tokens from `tokens` on are gone; the policy is told when it next runs.
void session::engine::forget(std::int64_t tokens) noexcept {
  tokens_ = std::min(tokens_, tokens);
  if (due_from_ != nothing_due) due_from_ = std::min(due_from_, tokens);
  prompt_.forget(tokens);
  while (!prints_.empty() && prints_.back().token >= tokens) prints_.pop_back();
}

void session::engine::prompt_due(std::int64_t from) noexcept {
  due_from_ = std::min(due_from_, from);
  for (layer_hook& hook : hooks_) hook.prefill_due = true;
}

bool session::engine::on_node(ggml_tensor* node, bool ask, void* self) noexcept {
  auto& engine = *static_cast<session::engine*>(self);
  try {
    if (ask) return engine.ask(node);
    engine.computed(node);
  } catch (...) {
    engine.fail();
  }
  return !ask;
}

bool session::engine::on_abort(void* self) noexcept {
  auto const& engine = *static_cast<session::engine const*>(self);
  if (engine.attached_ && engine.failure_ != nullptr) return true;
  return engine.caller_abort_ != nullptr && engine.caller_abort_(engine.caller_abort_data_);
}

void session::engine::fail() noexcept {
  failure_ = std::current_exception();
  forget_all();
}

bool session::engine::active() const noexcept { return attached_ && failure_ == nullptr; }

bool session::engine::ask(ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_SET_ROWS:
      if (active() && key_cache_layer(node) == 0) begin_graph(cells_of(node));
      return false;
    case GGML_OP_FLASH_ATTN_EXT:
      return active() && ask_attention(node);
    case GGML_OP_CUSTOM:
      if (!active()) restore(node);
      else if (layer_hook* const hook = hook_of(node)) see_rows(node, *hook);
      return false;
    case GGML_OP_GET_ROWS:
      if (std::string_view(node->src[1]->name) == "inp_tokens") {
        graph_ids_ = {static_cast<std::int32_t const*>(node->src[1]->data), static_cast<std::size_t>(node->src[1]->ne[0])};
      }
      return false;
    case GGML_OP_ROPE:
      if (!active()) return false;
      if (key_cache_layer(node)) forget_all();  // llama_memory_seq_add turned the cached keys
      else if (contains(runner_.needs(), signals::rotation) && !prompt_.knows_rotation()) prompt_.learn_rotation(node);
      return false;
    case GGML_OP_SOFT_MAX:
      if (active() && std::string_view(node->name).starts_with("kq_soft_max")) {
        throw unsupported("flash attention is off in this context; set flash_attn_type to LLAMA_FLASH_ATTN_TYPE_ENABLED");
      }
      return false;
    default:
      return active() && contains(runner_.needs(), signals::logits) && graph_.count == 1 &&
             std::string_view(node->name) == "result_output";
  }
}

/// A node that was asked for is there: the prompt's queries of a layer, or a step's logits.
void session::engine::computed(ggml_tensor const* node) {
  if (!active()) return;
  if (node->op == GGML_OP_FLASH_ATTN_EXT) return prompt_.keep(*key_cache_layer(node->src[1]), node->src[0], graph_);
  if (std::string_view(node->name) != "result_output" || node->type != GGML_TYPE_F32) return;
  auto const start = std::chrono::steady_clock::now();
  auto const* const logits = static_cast<float const*>(node->data);
  auto const vocabulary = static_cast<std::size_t>(node->ne[0]);
  if (node->ne[1] == 1) runner_.observe({.logits = std::span(logits, vocabulary)}, *solo_);
  statistics_.choose_seconds += seconds_since(start);
}

/// A graph is about to run; its inputs are set, nothing of it is computed.
void session::engine::begin_graph(written_cells const& written) {
  graph_ = written;
  if (threads_seen_ != team_->size()) team_.emplace(threads_seen_);
  forget(written.first);
  prompt_.keep_ids(graph_ids_, written.first);
  // Somebody replaced the cache: what the keys say is learnt anew.
  if (!prints_.empty() && prints_.back().hash != hash_of(prints_.back().token)) forget_all();
  if (written.first > tokens_) prompt_due(tokens_);
  if (written.count > 1) {
    prompt_due(written.first);
    tokens_ = written.first + written.count;
  }
}

bool session::engine::ask_attention(ggml_tensor* node) {
  check_attention(node);
  std::int64_t const layer = *key_cache_layer(node->src[1]);
  if (layer >= std::ssize(hooks_)) {
    throw unsupported("the cache has a layer " + std::to_string(layer) + ", the model " + std::to_string(hooks_.size()));
  }
  layer_hook& hook = hooks_[static_cast<std::size_t>(layer)];
  if (shape_.max_tokens == 0) begin(node);
  see_rows(node, hook);
  if (node->src[0]->ne[1] != 1) {
    ggml_tensor const* const mask = node->src[3];
    if (layer == 0 && mask->op == GGML_OP_NONE && mask->data != nullptr) check_mask(mask, graph_);
    return prompt_.keeps_queries();
  }
  std::memcpy(&hook.scale, node->op_params, sizeof hook.scale);
  std::memcpy(hook.own_params.data(), node->op_params, sizeof node->op_params);
  std::memcpy(node->op_params, hook.dummy->op_params, sizeof node->op_params);
  node->op = GGML_OP_CUSTOM;
  return false;
}

/// The first graph: now the cache's shape is known, and everything is allocated.
void session::engine::begin(ggml_tensor const* attention) {
  ggml_tensor const* const keys = attention->src[1];
  cache_shape const shape{.layers = std::ssize(hooks_),
                          .q_heads = attention->src[0]->ne[2],
                          .kv_heads = keys->ne[2],
                          .head_dim = keys->ne[0],
                          .max_tokens = storage_of(keys)->ne[1],
                          .type = rows_of(keys).type};
  runner_.check(shape);
  runner_.start(shape);
  exec_.emplace(shape, &*team_);
  if (options_.rows != nullptr) resident_.emplace(*options_.rows, shape, options_.resident);
  solo_.emplace(cache_shape{.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 1, .max_tokens = 1});
  prints_.reserve(static_cast<std::size_t>(2 * shape.max_tokens / print_every + 2));
  shape_ = shape;
  make_prompt_room();
  if (loaded_) {
    load(std::exchange(loaded_, std::nullopt).value());
    prompt_.keep_ids(graph_ids_, graph_.first);
  }
}

/// For the queries that the policy wants, or that later ones may.
void session::engine::make_prompt_room() {
  if (shape_.max_tokens != 0) prompt_.reserve(shape_, std::max(options_.window_queries, runner_.window_queries()));
}

/// Where a layer's rows are now; the same as in all other layers, or refused.
void session::engine::see_rows(ggml_tensor const* node, layer_hook const& hook) {
  auto const at = static_cast<std::size_t>(hook.layer);
  keys_[at] = rows_of(node->src[1]);
  values_[at] = rows_of(node->src[2]);
  for (rows const& r : {keys_[at], values_[at]}) {
    if (r.heads != shape_.kv_heads || r.head_dim != shape_.head_dim || r.type != shape_.type ||
        node->src[0]->ne[2] != shape_.q_heads) {
      throw unsupported("layer " + std::to_string(hook.layer) +
                        " has other heads than layer 0; layers of equal shape are supported");
    }
  }
}

session::engine::layer_hook* session::engine::hook_of(ggml_tensor const* node) noexcept {
  for (layer_hook& hook : hooks_) {
    if (std::memcmp(node->op_params, hook.dummy->op_params, sizeof node->op_params) == 0) return &hook;
  }
  return nullptr;
}

/// Graphs are used again: what was rewritten while attached comes back, and must be the engine's again.
void session::engine::restore(ggml_tensor* node) noexcept {
  layer_hook const* const hook = hook_of(node);
  if (hook == nullptr) return;
  std::memcpy(node->op_params, hook->own_params.data(), sizeof node->op_params);
  node->op = GGML_OP_FLASH_ATTN_EXT;
}

void session::engine::on_attention(ggml_tensor* node, int rank, int threads, void* hook_data) noexcept {
  auto& hook = *static_cast<layer_hook*>(hook_data);
  engine& self = *hook.self;
  bool const together = threads == self.team_->size() && threads > 1;
  if (rank != 0) {
    if (together) self.team_->follow();
    return;
  }
  auto const work = [&]() noexcept {
    try {
      if (self.failure_ == nullptr) return self.step(node, hook);
    } catch (...) {
      self.fail();
    }
    std::memset(node->data, 0, ggml_nbytes(node));  // never read: the step is aborted
  };
  self.threads_seen_ = threads;
  if (together) self.team_->lead(work);
  else self.team_->lead_alone(work);
}

/// One layer's attention of a decode step.
void session::engine::step(ggml_tensor* node, layer_hook& hook) {
  layer_id const layer{hook.layer};
  std::int64_t const tokens = graph_.first + 1;
  if (layer.value == 0) {
    check_mask(node->src[3], graph_);
    statistics_ = {.tokens = tokens};
  }
  bool const prompted = hook.prefill_due;
  if (prompted) {
    auto const start = std::chrono::steady_clock::now();
    if (tokens > 1) {
      runner_.prefill(view_of(tokens - 1), layer, prompt_of(layer.value, tokens - 1), *exec_);
    }
    hook.prefill_due = false;
    statistics_.prefill_seconds += seconds_since(start);
  }
  auto const start = std::chrono::steady_clock::now();
  ggml_tensor const* const q = node->src[0];
  query_heads const queries{.data = static_cast<float const*>(q->data),
                            .heads = q->ne[2],
                            .head_stride = static_cast<std::int64_t>(q->nb[2] / sizeof(float)),
                            .scale = hook.scale};
  layer_table_view const view = view_of(tokens);
  if (options_.on_queries) options_.on_queries(layer, view, queries, *exec_);
  selection kept = runner_.choose(view, layer, {queries, graph_ids_.empty() ? -1 : graph_ids_.back()}, *exec_);
  statistics_.choose_seconds += seconds_since(start);
  rows keys = view.keys(layer);
  rows values = view.values(layer);
  if (resident_) {
    auto const fetching = std::chrono::steady_clock::now();
    if (prompted) resident_->store(view_of(tokens - 1), layer, runner_.retained(layer));
    kept = resident_->ready(view, layer, kept);
    keys = resident_->keys(layer);
    values = resident_->values(layer);
    (prompted ? statistics_.prefill_seconds : statistics_.fetch_seconds) += seconds_since(fetching);
  }
  statistics_.tokens_read += static_cast<double>(kept.tokens()) / static_cast<double>(shape_.kv_heads * shape_.layers);
  if (options_.on_choice) options_.on_choice(layer, tokens, kept);
  auto const attending = std::chrono::steady_clock::now();
  table<float> const out{static_cast<float*>(node->data), shape_.q_heads, shape_.head_dim, shape_.head_dim};
  attend(queries, keys, values, kept, out, {}, *exec_);
  statistics_.attend_seconds += seconds_since(attending);
  if (layer.value + 1 == shape_.layers) {
    if (due_from_ != nothing_due) {
      std::int64_t const known = prints_.empty() ? 0 : prints_.back().token + 1;
      for (std::int64_t t = known; t < graph_.first; ++t) {
        if (t % print_every == print_every - 1 || t + 1 == graph_.first) remember(t, true);
      }
    }
    remember(graph_.first, graph_.first % print_every == print_every - 1);
    due_from_ = nothing_due;
    tokens_ = tokens;
    ++steps_;
  }
}

/// What prefill is told of the prompt that ends before token `tokens`. Throws unsupported where it is not known.
prompt_signals session::engine::prompt_of(std::int64_t layer, std::int64_t tokens) const {
  signals const needs = runner_.needs();
  prompt_signals prompt{.first = due_from_,
                        .queries = prompt_.window_of(layer, tokens, hooks_[static_cast<std::size_t>(layer)].scale),
                        .turned = prompt_.turned(),
                        .token_ids = prompt_.ids_of(due_from_, tokens)};
  if (contains(needs, signals::token_ids) && std::ssize(prompt.token_ids) != tokens - due_from_) {
    throw unsupported(
        "the policy needs the prompt's token ids, and they were not observed: decode it as tokens, not embeddings, "
        "with the policy attached");
  }
  if (contains(needs, signals::rotation) && !prompt_.knows_rotation()) {
    throw unsupported("the policy needs the keys' rotary embedding, and this model has none");
  }
  return prompt;
}

layer_table_view session::engine::view_of(std::int64_t tokens) const noexcept {
  return {.cache = shape_, .count = tokens, .key_rows = keys_.data(), .value_rows = values_.data()};
}

void session::engine::remember(std::int64_t token, bool stays) noexcept {
  if (!prints_.empty() && !prints_.back().stays) prints_.pop_back();
  prints_.push_back({token, hash_of(token), stays});
}

/// FNV-1a over the last layer's keys of one token, eight bytes at a time.
std::uint64_t session::engine::hash_of(std::int64_t token) const noexcept {
  rows const& keys = keys_.back();
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    std::byte const* const key = keys.address({h}, {token});
    for (std::int64_t at = 0; at < keys.head_dim * size_of(keys.type); at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, key + at,
                  static_cast<std::size_t>(std::min<std::int64_t>(8, keys.head_dim * size_of(keys.type) - at)));
      hash = (hash ^ word) * 0x100000001b3u;
    }
  }
  return hash;
}

}  // namespace kvpolicy::llama
