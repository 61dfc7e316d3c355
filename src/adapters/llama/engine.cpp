#include "engine.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "parameters.hpp"

namespace kvpolicy::llama {

session::engine::engine(host_policy policy, session_options options)
    : policy_(std::move(policy)), options_(std::move(options)) {
  KVPOLICY_EXPECTS(options_.observation_queries >= 0,
                   "observation_queries is " + std::to_string(options_.observation_queries) + "; it can't be negative");
  KVPOLICY_EXPECTS(options_.prompts || !options_.prompt_policy,
                   "a prompt policy needs prompts to be the session's: leave session_options::prompts true");
  check_managed_cache();
}

session::engine::~engine() {
  if (dummies_ != nullptr) ggml_free(dummies_);
}

void session::engine::attach(llama_context_params& params, llama_model const* model) {
  KVPOLICY_EXPECTS(dummies_ == nullptr, "this session is attached already; use one session for each context");
  served_layers found;
  try {
    check_parameters(params, model);
    if (params.cb_eval == &on_node) throw unsupported("another session is attached to these parameters; one context has one");
    found = served_layers(params, model);
    if (!options_.lenient && !found.avoidable().empty()) throw unsupported(found.avoidable());
  } catch (unsupported const& refusal) {
    if (!options_.lenient) throw;
    passed_by_ = refusal.what();
    return;
  }
  cache_shape shape = found.shape();
  shape.max_tokens = (params.n_ctx != 0 ? params.n_ctx : llama_model_n_ctx_train(model)) /
                     (params.kv_unified ? 1 : std::max<std::int64_t>(params.n_seq_max, 1));
  shape.type = *element_of(params.type_k);
  if (options_.managed_cache) {
    if (llama_model_is_hybrid(model))
      throw unsupported("a managed cache needs an engine's cache that can be cut, and this model has recurrent layers");
    if (!found.left().empty())
      throw unsupported("a managed cache needs every layer to be the session's, and " + found.left().front());
    trained_ = llama_model_n_ctx_train(model);
    shape.max_tokens = options_.longest != 0 ? options_.longest : trained_;
    check_memory(shape, *element_of(params.type_v));
    check_rope_factors(params, model, shape.max_tokens);
  }
  kvpolicy::check(policy_, shape);
  kvpolicy::check(options_.between_pieces, shape);
  check_pieces(policy_);
  if (options_.prompt_policy) kvpolicy::check(*options_.prompt_policy, shape);

  layers_ = std::move(found);
  attached_shape_ = shape;
  char about[128] = {};
  llama_model_desc(model, about, sizeof about);
  model_ = std::string(about) + ", " + std::to_string(llama_model_n_params(model)) + " parameters, " +
           std::to_string(llama_model_size(model)) + " bytes, values of " + name_of(*element_of(params.type_v));
  std::int64_t const layers = layers_.count();
  dummies_ = ggml_init(
      {.mem_size = ggml_tensor_overhead() * static_cast<std::size_t>(layers + 1), .mem_buffer = nullptr, .no_alloc = true});
  hooks_.resize(static_cast<std::size_t>(layers));
  for (std::int64_t l = 0; l < layers; ++l) {
    layer_hook& hook = hooks_[static_cast<std::size_t>(l)];
    hook.self = this;
    hook.layer = l;
    hook.dummy = ggml_custom_4d(dummies_, GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, &on_attention, GGML_N_TASKS_MAX, &hook);
  }
  unified_ = params.kv_unified;
  hybrid_ = llama_model_is_hybrid(model);
  threads_seen_ = std::max(1, params.n_threads);
  threads_of_batches_ = std::max(1, params.n_threads_batch);
  caller_abort_ = params.abort_callback;
  caller_abort_data_ = params.abort_callback_data;
  caller_eval_ = params.cb_eval;
  caller_eval_data_ = params.cb_eval_user_data;
  params.cb_eval = &on_node;
  params.cb_eval_user_data = this;
  params.abort_callback = &on_abort;
  params.abort_callback_data = this;
  attached_ = true;
}

void session::engine::detach() noexcept {
  detached_ = options_.managed_cache;
  if (detached_) return;
  attached_ = false;
  batch_.drop();
}

void session::engine::use(host_policy policy) {
  if (shape_.max_tokens != 0) kvpolicy::check(policy, shape_);
  check_pieces(policy);
  for (auto const& s : sequences_) {
    if (s) s->check_use();
  }
  for (auto const& s : sequences_) {
    if (s) s->use(policy);
  }
  policy_ = std::move(policy);
  attached_ = true;
  detached_ = false;
  failure_ = nullptr;
}

void session::engine::use(host_policy policy, llama_seq_id of) {
  check_pieces(policy);
  sequence_of(of).use(std::move(policy));
  attached_ = true;
  detached_ = false;
  failure_ = nullptr;
}

saved_prompt session::engine::save(llama_seq_id of) const {
  sequence const* const found = find(of);
  return found != nullptr ? found->save() : saved_prompt{};
}

sequence const* session::engine::find(llama_seq_id of) const noexcept {
  auto const at = static_cast<std::size_t>(of);
  return of >= 0 && at < sequences_.size() ? sequences_[at].get() : nullptr;
}

sequence& session::engine::sequence_of(llama_seq_id id) {
  auto const most = static_cast<llama_seq_id>(llama_max_parallel_sequences());
  KVPOLICY_EXPECTS(id >= 0 && id < most,
                   "there is no sequence " + std::to_string(id) + "; llama.cpp has 0 to " + std::to_string(most - 1));
  auto const at = static_cast<std::size_t>(id);
  if (at >= sequences_.size()) sequences_.resize(at + 1);
  if (sequences_[at] == nullptr) {
    auto made = std::make_unique<sequence>(id, policy_, options_, rotary_, cells_);
    if (shape_.max_tokens != 0) made->begin(shape_, value_type_, arena_.get());
    sequences_[at] = std::move(made);
  }
  return *sequences_[at];
}

void session::engine::check() {
  if (failure_ == nullptr) return;
  if (options_.lenient) return;  // report() tells, and the engine goes on alone
  std::exception_ptr const failure = std::exchange(failure_, nullptr);
  try {
    std::rethrow_exception(failure);
  } catch (error const& reason) {
    if (!hybrid_) throw;
    throw unsupported(std::string(reason.what()) +
                      "; the engine can't undo a part of this model's recurrent state: clear the sequence");
  }
}

std::vector<std::string> session::engine::report() const {
  std::vector<std::string> lines = layers_.left();
  if (!passed_by_.empty()) lines.push_back("all is the engine's: " + passed_by_);
  if (options_.lenient && failure_ != nullptr) {
    try {
      std::rethrow_exception(failure_);
    } catch (std::exception const& reason) {
      lines.push_back(std::string("the engine goes on alone: ") + reason.what());
    }
  }
  for (auto const& s : sequences_) {
    if (s && !s->left().empty()) {
      lines.push_back("in sequence " + std::to_string(s->id()) +
                      ", until its next prompt, the engine goes on alone: " + s->left());
    }
  }
  if (beyond_trained_) {
    lines.push_back("positions are beyond the " + std::to_string(trained_) + " tokens that the model was trained for");
  }
  return lines;
}

bool session::engine::anyone_needs(signals which) const noexcept {
  return contains(needs_of(policy_), which) ||
         std::ranges::any_of(sequences_, [&](auto const& s) { return s != nullptr && contains(s->needs(), which); });
}

void session::engine::forget_all() noexcept {
  for (auto const& s : sequences_) {
    if (s) s->forget_all();
  }
}

/// A callback that was there before is asked too, and told what it asked for.
bool session::engine::on_node(ggml_tensor* node, bool ask, void* self) noexcept {
  auto& engine = *static_cast<session::engine*>(self);
  if (ask) engine.asked_ = false;
  try {
    if (ask) engine.asked_ = engine.ask(node);
    else if (engine.asked_) engine.computed(node);
  } catch (...) {
    if (engine.active()) engine.fail();
  }
  if (ask) engine.caller_asked_ = engine.caller_eval_ != nullptr && engine.caller_eval_(node, true, engine.caller_eval_data_);
  if (ask) return engine.asked_ || engine.caller_asked_;
  return !engine.caller_asked_ || engine.caller_eval_(node, false, engine.caller_eval_data_);
}

bool session::engine::on_abort(void* self) noexcept {
  auto& engine = *static_cast<session::engine*>(self);
  if (engine.attached_ && engine.decoding_ && engine.failure_ != nullptr && !engine.options_.lenient) return true;
  return engine.caller_abort_ != nullptr && engine.caller_abort_(engine.caller_abort_data_);
}

void session::engine::fail() noexcept {
  failure_ = std::current_exception();
  batch_.drop();
  if (options_.managed_cache)
    return;  // what was dropped can't be looked at again; what the graph brought is cut by the next one
  // Steps of others are repeated as they were; a prompt's window was cut in the middle.
  if (served_ == nullptr) return forget_all();
  served_->forget_all();
  for (sequence* const s : prompts_) s->forget_all();
}

bool session::engine::ask(ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_SET_ROWS:
      decoding_ = true;
      if (layer_of(node) == 0) see_written(node);
      return false;
    case GGML_OP_FLASH_ATTN_EXT:
      return ask_attention(node);
    case GGML_OP_CUSTOM:
      if (layer_hook* const hook = hook_of(node)) {
        restore(node, *hook);
        return ask_attention(node);
      }
      return false;
    case GGML_OP_GET_ROWS:
      see_input(node);
      return false;
    case GGML_OP_CPY:
    case GGML_OP_ROPE:
      if (ggml_tensor const* const by = turned_by(node)) {
        decoding_ = false;
        auto const layer = layer_of(node);
        return layer && turn(by, *layer);
      }
      if (node->op == GGML_OP_ROPE && node->src[1]->data != nullptr) {
        graph_.positions = {static_cast<std::int32_t const*>(node->src[1]->data),
                            static_cast<std::size_t>(node->src[1]->ne[0])};
      }
      return false;
    case GGML_OP_SOFT_MAX:
      if (active() && std::string_view(node->name).starts_with("kq_soft_max")) {
        throw unsupported("flash attention is off in this context; set flash_attn_type to LLAMA_FLASH_ATTN_TYPE_ENABLED");
      }
      return false;
    default:
      return active() && std::string_view(node->name) == "result_output" &&
             std::ranges::any_of(steps_, [](sequence const* s) { return contains(s->needs(), signals::logits); });
  }
}

/// A node that was asked for is there: attention of prompts, with steps among them perhaps, or of a last layer, or a step's
/// logits, or the last of the cached keys that were turned.
void session::engine::computed(ggml_tensor* node) {
  if (node->op == GGML_OP_ROPE || node->op == GGML_OP_CPY) return cells_.rotated();
  if (node->op != GGML_OP_FLASH_ATTN_EXT) {
    if (active()) observe(node);
    return;
  }
  layer_hook& hook = hooks_[static_cast<std::size_t>(*layer_of(node->src[1]))];
  if (is_last(hook.layer)) cells_.seal(graph_.written);
  if (!active()) return;
  graph_queries const queries{node->src[0]};
  for (sequence* const s : prompts_) {
    if (s->keeps_queries()) s->keep_queries(hook.layer, queries);
    if (hook.layer + 1 == shape_.layers) s->end_prompt(hook.scale, *solo_);
  }
  if (steps_.empty()) return;
  thread_pool& alone = *thread_pools_.front();
  alone.together.lead_alone([&] { steps(node, hook, *alone.exec); });
}

void session::engine::observe(ggml_tensor const* logits) {
  if (logits->type != GGML_TYPE_F32) return;
  auto const vocabulary = static_cast<std::size_t>(logits->ne[0]);
  for (std::int64_t row = 0; row < logits->ne[1]; ++row) {
    std::int64_t const batch_index = outputs_.empty() ? row : outputs_[static_cast<std::size_t>(row)];
    for (sequence* const s : steps_) {
      if (s->batch_index() != batch_index || !contains(s->needs(), signals::logits)) continue;
      auto const* const values = reinterpret_cast<float const*>(static_cast<char const*>(logits->data) +
                                                                static_cast<std::size_t>(row) * logits->nb[1]);
      served_ = s;
      s->observe({values, vocabulary}, *solo_);
    }
  }
}

/// Attention is the moment when a layer's inputs are set and its rows are about to be read.
bool session::engine::ask_attention(ggml_tensor* node) {
  decoding_ = true;
  auto const layer = layer_of(node->src[1]);
  if (!layer) return false;
  bool wanted = follow(node, *layer);
  if (active()) {
    try {
      wanted = serve(node, hooks_[static_cast<std::size_t>(*layer)]);
    } catch (...) {
      fail();
    }
  }
  if (*layer == 0) graph_.ids = graph_.positions = {};  // the next graph may have none
  return wanted;
}

/// Gives a layer of a graph to the policies, where there are steps. Returns whether to come back when it is computed.
bool session::engine::serve(ggml_tensor* attention, layer_hook& hook) {
  check_attention(attention);
  if (is_offloaded(attention)) throw unsupported(offloaded);
  if (detached_) throw unsupported("the session is detached, and the engine does not have its rows; call use()");
  bool const last = is_last(hook.layer);
  if (hook.layer == 0) {
    if (shape_.max_tokens == 0) begin(attention);
    begin_graph(attention);
  }
  if (graph_mask(attention).input() != mask_) throw unsupported("layers that attend to all tokens have masks of their own");
  see_rows(attention, hook);
  see_terms(attention, hook);
  if (last && history_due_) {
    for (auto const* const some : {&prompts_, &steps_}) {
      for (sequence* const s : *some) {
        served_ = s;
        or_leave(*s, [&] { s->check_history(); });
      }
    }
    served_ = nullptr;
  }
  if (prompts_.empty() || options_.prompts) {
    rewrite(attention, hook);
    return false;
  }
  return !steps_.empty() || last || std::ranges::any_of(prompts_, [](sequence const* s) { return s->keeps_queries(); });
}

/// The first graph: now the cache's shape is known.
void session::engine::begin(ggml_tensor const* attention) {
  ggml_tensor const* const keys = attention->src[1];
  cache_shape shape = layers_.shape();
  shape.max_tokens = options_.managed_cache ? attached_shape_.max_tokens : storage_of(keys)->ne[1];
  shape.type = all_rows_of(keys).type;
  value_type_ = all_rows_of(attention->src[2]).type;
  seen_.reserve(static_cast<std::size_t>(storage_of(keys)->ne[1]));
  if (options_.managed_cache) arena_ = make_arena(shape);
  solo_.emplace(cache_shape{.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 1, .max_tokens = 1});
  for (auto const& s : sequences_) {
    if (s) s->begin(shape, value_type_, arena_.get());
  }
  shape_ = shape;
  std::exception_ptr refused;  // one that can't be loaded is empty, and the others are there
  for (auto const& s : sequences_) {
    try {
      if (s) s->load_pending();
    } catch (...) {
      refused = std::current_exception();
    }
  }
  if (refused) std::rethrow_exception(refused);
}

/// A graph is about to run; its inputs are set, nothing of it is computed. Divides its tokens among sequences.
void session::engine::begin_graph(ggml_tensor const* attention) {
  served_ = nullptr;
  for (int const threads : {threads_seen_, threads_of_batches_}) {
    if (thread_pool_of(threads) != nullptr) continue;
    thread_pools_.push_back(std::make_unique<thread_pool>(threads));
    thread_pools_.back()->exec.emplace(shape_, &thread_pools_.back()->together);
  }
  prompts_.clear();
  steps_.clear();
  outputs_.clear();
  graph_mask const mask(attention);
  mask_ = mask.input();
  batch_.owners(graph_, unified_, owners_);
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    llama_seq_id const of = owners_[i];
    if (of < 0) continue;
    batch_indices_.clear();
    for (std::size_t j = i; j < owners_.size(); ++j) {
      if (owners_[j] != of) continue;
      batch_indices_.push_back(static_cast<std::int32_t>(j));
      owners_[j] = -1;
    }
    add(of, mask);
  }
  served_ = nullptr;
}

/// The graph writes tokens of this sequence, at batch_indices_.
void session::engine::add(llama_seq_id of, graph_mask const& mask) {
  sequence& s = sequence_of(of);
  served_ = &s;
  std::int32_t const first = batch_indices_.front();
  auto const see = [&](std::int32_t batch_index) {
    seen_.clear();
    for (std::int64_t cell = 0; cell < mask.cells(); ++cell) {
      if (mask.visible(batch_index, cell)) seen_.push_back(static_cast<std::int32_t>(cell));
    }
  };
  see(first);
  if (std::erase(seen_, graph_.cell(first)) != 1) throw unsupported("attention is not causal: a token does not see itself");
  auto const visible = std::ssize(seen_);
  seen_cells const now{mask, first, graph_.cell(first), graph_.stream(first), graph_.position(first), seen_};
  try {
    s.follow(now, sequences_);
  } catch (unsupported const& why) {
    if (!options_.lenient || mask.biased()) throw;
    s.leave(why.what(), now);
  }
  std::int64_t const before = s.tokens();
  see_length(before + std::ssize(batch_indices_));
  for (std::int64_t t = 0; t < before && mask.biased(); ++t) {
    if (mask.is_apart(first, s.cells()[static_cast<std::size_t>(t)], before - t)) continue;
    throw unsupported("sequence " + std::to_string(of) + " has holes between its positions, which ALiBi would see");
  }
  if (batch_indices_.size() == 1 && batch_.may_step(of)) {
    s.add_step(first, graph_);
    steps_.push_back(&s);
    return;
  }
  s.add_prompt(batch_indices_, graph_);
  prompts_.push_back(&s);
  // Tokens see those before them and not the next: the last one's cells are counted, the others read at their edges.
  see(batch_indices_.back());
  bool causal = std::ssize(seen_) == visible + std::ssize(batch_indices_);
  for (std::size_t i = 0; i + 1 < batch_indices_.size(); ++i) {
    causal = causal && mask.visible(batch_indices_[i], graph_.cell(batch_indices_[i])) &&
             !mask.visible(batch_indices_[i], graph_.cell(batch_indices_[i + 1]));
  }
  if (!causal) {
    throw unsupported("tokens of sequence " + std::to_string(of) +
                      " do not see exactly those before them: only causal attention is supported, and several sequences in one "
                      "unified cache need set_batch() before their decode");
  }
}

/// Where a layer's rows are now; the same as in all other layers, or refused.
void session::engine::see_rows(ggml_tensor const* node, layer_hook const& hook) {
  rows const keys = all_rows_of(node->src[1]);
  rows const values = all_rows_of(node->src[2]);
  for (rows const& r : {keys, values}) {
    if (r.heads != shape_.kv_heads || r.head_dim != shape_.head_dim || node->src[0]->ne[2] != shape_.q_heads) {
      throw unsupported("layer " + std::to_string(hook.layer) + " of those that are served has other heads than before");
    }
  }
  for (sequence* const s : prompts_) s->see(hook.layer, keys, values);
  for (sequence* const s : steps_) s->see(hook.layer, keys, values);
}

/// What the node adds to the softmax of scale q.k.
void session::engine::see_terms(ggml_tensor const* node, layer_hook& hook) {
  attention_parameters const said(node);
  if (said.max_bias != 0 && options_.managed_cache) {
    throw unsupported("with a managed cache, models with ALiBi are not supported: their graphs do not tell a token's position");
  }
  if (said.max_bias != 0 && slopes_.empty()) slopes_ = slopes_of(said.max_bias, shape_.q_heads);
  hook.scale = said.scale;
  hook.terms = {.soft_cap = said.soft_cap,
                .slopes = said.max_bias != 0 ? slopes_.data() : nullptr,
                .sinks = node->src[4] != nullptr ? static_cast<float const*>(node->src[4]->data) : nullptr};
}

session::engine::layer_hook* session::engine::hook_of(ggml_tensor const* node) noexcept {
  for (layer_hook& hook : hooks_) {
    if (std::memcmp(node->op_params, hook.dummy->op_params, sizeof node->op_params) == 0) return &hook;
  }
  return nullptr;
}

/// The policies' attention in place of the engine's, for this graph.
void session::engine::rewrite(ggml_tensor* node, layer_hook& hook) noexcept {
  std::memcpy(hook.own_params.data(), node->op_params, sizeof node->op_params);
  std::memcpy(node->op_params, hook.dummy->op_params, sizeof node->op_params);
  node->op = GGML_OP_CUSTOM;
}

/// Graphs are used again: what was rewritten for another one is the engine's again.
void session::engine::restore(ggml_tensor* node, layer_hook const& hook) noexcept {
  std::memcpy(node->op_params, hook.own_params.data(), sizeof node->op_params);
  node->op = GGML_OP_FLASH_ATTN_EXT;
}

}  // namespace kvpolicy::llama
