// A session's attention in place of the engine's: what runs on the engine's threads when a rewritten node is computed.
#include <algorithm>
#include <exception>
#include <limits>

#include "engine.hpp"

namespace kvpolicy::llama {

void session::engine::on_attention(ggml_tensor* node, int rank, int threads, void* hook_data) noexcept {
  auto& hook = *static_cast<layer_hook*>(hook_data);
  engine& self = *hook.self;
  thread_pool* const all = threads > 1 ? self.thread_pool_of(threads) : nullptr;
  if (rank != 0) {
    if (all != nullptr) all->together.follow();
    return;
  }
  thread_pool& lead = all != nullptr ? *all : *self.thread_pools_.front();
  auto const work = [&]() noexcept {
    try {
      if (self.failure_ == nullptr) return self.attend(node, hook, *lead.exec);
    } catch (...) {
      self.fail();
    }
    self.attend_densely(node, hook, *lead.exec);
  };
  self.threads_seen_ = threads;
  if (all != nullptr) all->together.lead(work);
  else lead.together.lead_alone(work);
}

session::engine::thread_pool* session::engine::thread_pool_of(int threads) const noexcept {
  auto const found = std::ranges::find(thread_pools_, threads, [](auto const& c) { return c->together.size(); });
  return found != thread_pools_.end() ? found->get() : nullptr;
}

/// One layer's attention of every sequence, prompts and steps; `node` is `[head_dim, q_heads, tokens]`, streams and all.
void session::engine::attend(ggml_tensor* node, layer_hook const& hook, simd_exec& exec) {
  bool const last = hook.layer + 1 == shape_.layers;
  if (last) cells_.seal(graph_.written);
  graph_queries const queries{node->src[0]};
  for (sequence* const s : prompts_) {
    served_ = s;
    if (s->keeps_queries()) s->keep_queries(hook.layer, queries);
    or_leave(*s, [&] { s->prompt({hook.layer}, {queries, hook.scale, hook.terms}, static_cast<float*>(node->data), exec); });
    if (last) s->end_prompt(hook.scale, exec);
  }
  served_ = nullptr;
  steps(node, hook, exec);
}

/// Steps alone.
void session::engine::steps(ggml_tensor* node, layer_hook const& hook, simd_exec& exec) {
  node_queries const queries{{node->src[0]}, hook.scale, hook.terms};
  for (sequence* const s : steps_) {
    auto* const out = static_cast<float*>(node->data) + s->batch_index() * shape_.q_heads * shape_.head_dim;
    served_ = s;
    or_leave(*s, [&] { s->step({hook.layer}, queries, out, exec); });
  }
  served_ = nullptr;
}

/// After a failure: on_abort stops the engine, if the caller has not put another callback in its place; else it reads
/// this.
void session::engine::attend_densely(ggml_tensor* node, layer_hook const& hook, simd_exec& exec) noexcept {
  auto const count = shape_.q_heads * shape_.head_dim;
  try {
    if (hook.layer + 1 == shape_.layers) cells_.seal(graph_.written);
    node_queries const queries{{node->src[0]}, hook.scale, hook.terms};
    for (sequence const* const s : prompts_) s->dense_prompt({hook.layer}, queries, static_cast<float*>(node->data), exec);
    for (sequence const* const s : steps_) {
      s->dense_step({hook.layer}, queries, static_cast<float*>(node->data) + s->batch_index() * count, exec);
    }
  } catch (...) {
    std::fill_n(static_cast<float*>(node->data), ggml_nelements(node), std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace kvpolicy::llama
