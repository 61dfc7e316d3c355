#include "engine.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "parameters.hpp"

namespace kvpolicy::llama {

session::engine::engine(host_policy policy, session_options options)
    : options_(std::move(options)),
      storage_(options_.cache ? make_managed_cache(options_) : make_engine_cells()),
      rewriter_(*this),
      sequences_(std::move(policy), options_, *storage_, rewriter_.rope()) {
  KVPOLICY_EXPECTS(options_.observation_queries >= 0,
                   "observation_queries is " + std::to_string(options_.observation_queries) + "; it can't be negative");
  KVPOLICY_EXPECTS(options_.prompts || !options_.prompt_policy,
                   "a prompt policy needs prompts to be the session's: leave session_options::prompts true");
}

void session::engine::attach(llama_context_params& params, llama_model const* model) {
  KVPOLICY_EXPECTS(!rewriter_.attached(), "this session is attached already; use one session for each context");
  served_layers found;
  try {
    check_parameters(params, model);
    if (graph_rewriter::is_attached(params))
      throw unsupported("another session is attached to these parameters; one context has one");
    found = served_layers(params, model);
    if (!options_.lenient && !found.avoidable().empty()) throw unsupported(found.avoidable());
    check_chooses(sequences_.policy(), found);
    for (auto const& s : sequences_.all())
      if (s) check_chooses(s->policy(), found);
  } catch (unsupported const& refusal) {
    if (!options_.lenient) throw;
    passed_by_ = refusal.what();
    return;
  }
  cache_shape shape = found.shape();
  shape.max_tokens = (params.n_ctx != 0 ? params.n_ctx : llama_model_n_ctx_train(model)) /
                     (params.kv_unified ? 1 : std::max<std::int64_t>(params.n_seq_max, 1));
  shape.type = *element_of(params.type_k);
  storage_->fit(shape, params, model, found);
  kvpolicy::check(sequences_.policy(), shape);
  storage_->check(sequences_.policy());
  if (options_.prompt_policy) kvpolicy::check(*options_.prompt_policy, shape);

  attached_shape_ = shape;
  char about[128] = {};
  llama_model_desc(model, about, sizeof about);
  model_ = std::string(about) + ", " + std::to_string(llama_model_n_params(model)) + " parameters, " +
           std::to_string(llama_model_size(model)) + " bytes, values of " + name_of(*element_of(params.type_v));
  hybrid_ = llama_model_is_hybrid(model);
  whole_windows_ = params.swa_full;
  windows_ = !found.left().empty();
  sequences_.attach(found.shape(), params.kv_unified, hybrid_);
  rewriter_.attach(params, std::move(found));
  attached_ = true;
}

void session::engine::check_chooses(host_policy const& policy, served_layers const& layers) const {
  bool const reads_all = requirements_of(policy.retain).keeps_all && requirements_of(policy.retrieve).keeps_all;
  if (!layers.chosen().empty() && (!reads_all || options_.prompt_policy))
    throw unsupported("this model's own indexer chooses the tokens that " + std::to_string(layers.chosen().size()) +
                      " layers read, and no policy may choose others; give full, which reads exactly those");
}

void session::engine::detach() noexcept {
  detached_ = !storage_->engine_has_rows();
  if (detached_) return;
  attached_ = false;
  sequences_.batch().drop();
}

void session::engine::running_again() noexcept {
  attached_ = true;
  detached_ = false;
  failure_ = nullptr;
}

void session::engine::use(host_policy policy) {
  check_chooses(policy, rewriter_.layers());
  storage_->check(policy);
  sequences_.use(std::move(policy));
  running_again();
}

void session::engine::use(host_policy policy, llama_seq_id of) {
  check_chooses(policy, rewriter_.layers());
  storage_->check(policy);
  sequences_.of(of).use(std::move(policy));
  running_again();
}

saved_prompt session::engine::save(llama_seq_id of) const {
  sequence const* const found = find(of);
  return found != nullptr ? found->save() : saved_prompt{};
}

void session::engine::load(saved_prompt const& saved, llama_seq_id of) {
  if (!storage_->engine_has_rows())
    throw unsupported("a state of the engine's does not have rows that are the session's own; restore those too");
  sequences_.of(of).load(saved);
}

void session::engine::check() {
  if (failure_ == nullptr) return;
  if (options_.lenient) return;  // report() says so, and the engine goes on alone
  std::exception_ptr const failure = std::exchange(failure_, nullptr);
  try {
    std::rethrow_exception(failure);
  } catch (error const& reason) {
    if (!hybrid_) throw;
    throw unsupported(std::string(reason.what()) +
                      "; the engine can't undo a part of this model's recurrent states, and may have been moving those of "
                      "other sequences: call llama_memory_clear()");
  }
}

void session::engine::check_lossless(bool drafts) const {
  KVPOLICY_EXPECTS(attached_, "lossless decoding needs a session that is attached; call attach() first");
  if (!storage_->engine_has_rows())
    throw unsupported("lossless decoding verifies in the engine's cells, and the session has a managed cache; leave it away");
  if (!requirements_of(sequences_.policy().retain).keeps_all)
    throw unsupported(
        "lossless decoding verifies with every row, and the policy drops some; draft with one that only retrieves");
  if (drafts && hybrid_)
    throw unsupported("drafts are cut from the cache, and the engine can't cut this model's recurrent state; set drafts to 0");
}

std::vector<std::string> session::engine::report() const {
  std::vector<std::string> lines = rewriter_.layers().left();
  if (!passed_by_.empty()) lines.push_back("all is the engine's: " + passed_by_);
  if (options_.lenient && failure_ != nullptr) {
    try {
      std::rethrow_exception(failure_);
    } catch (std::exception const& reason) {
      lines.push_back(std::string("the engine goes on alone: ") + reason.what());
    }
  }
  for (auto const& s : sequences_.all()) {
    if (s && s->why_left() != nullptr) {
      lines.push_back("in sequence " + std::to_string(s->id()) +
                      ", until its next prompt, the engine goes on alone: " + *s->why_left());
    }
  }
  if (std::string const remark = storage_->remark(); !remark.empty()) lines.push_back(remark);
  return lines;
}

memory_statistics session::engine::memory() const noexcept {
  memory_statistics made = storage_->memory();
  for (auto const& s : sequences_.all()) made.rows += s ? s->memory().rows : 0;
  return made;
}

node_use session::engine::serve(attention_node const& node, graph_tokens const& graph) {
  if (!node.refused.empty()) throw unsupported(node.refused);
  if (detached_) throw unsupported("the session is detached, and the engine does not have its rows; call use()");
  return sequences_.serve(node, graph);
}

/// After a failure the graph is stopped, if the caller has not put another callback in stops()'s place; else it reads this.
void session::engine::attend(attention_node const& node, graph_tokens const& graph, simd_exec& exec) noexcept {
  sequences_.seal(node, graph);
  try {
    if (failure_ == nullptr) return sequences_.attend(node, exec);
  } catch (...) {
    fail();
  }
  try {
    sequences_.attend_densely(node, exec);
  } catch (...) {
    std::fill_n(node.out, node.queries.tokens() * node.queries.heads() * attached_shape_.values_dim(),
                std::numeric_limits<float>::quiet_NaN());
  }
}

void session::engine::fail() noexcept {
  failure_ = std::current_exception();
  sequences_.batch().drop();
  // Else what was dropped can't be looked at again; what the graph brought is cut by the next one.
  if (storage_->engine_has_rows()) sequences_.forget_graph();
}

}  // namespace kvpolicy::llama
