// A sequence's attention of one layer: a step's, over what the policy chooses, and a prompt's.
#include <algorithm>
#include <chrono>

#include "sequence.hpp"

namespace kvpolicy::llama {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

/// What a step's policy makes of the prompt before it.
void sequence::prefill(layer_id layer, float scale, simd_exec& exec) {
  // One choice for all layers may look at all of them when the first one chooses.
  bool const all = layer.value == 0 && requirements_.granularity == scope::request;
  if (managed_ != nullptr) managed_->bring(layer.value, all ? shape_.layers : layer.value + 1);
  auto const start = std::chrono::steady_clock::now();
  std::int64_t const before = tokens() - std::ssize(batch_indices_);
  if (before > 0) request_->prefill(rows_->view(before), layer, prompt_of(layer, before, scale), exec);
  set_unseen({unseen().from, layer.value + 1});
  statistics_.prefill_seconds += seconds_since(start);
}

void sequence::step(attention_node const& node, simd_exec& exec) {
  layer_id const layer{static_cast<std::int32_t>(node.layer)};
  bool const last = node.layer + 1 == shape_.layers;
  if (why_left() != nullptr) {
    dense_step(node, exec);
    statistics_ = {.tokens = tokens(), .tokens_read = static_cast<double>(tokens())};
    if (last) seal();
    return;
  }
  if (layer.value == 0) statistics_ = {.tokens = tokens()};
  if (managed_ != nullptr) managed_->begin_step(layer, requirements_.unit);
  bool const prompted = unseen().from != prompting::none && unseen().layers <= layer.value;
  if (prompted) prefill(layer, node.scale, exec);
  auto const start = std::chrono::steady_clock::now();
  auto const brought = std::ssize(batch_indices_);
  query_window const queries = window_of(node, batch_indices_.front(), brought);
  layer_table_view const view = rows_->view(tokens());
  if (options_.on_queries) options_.on_queries(id_, layer, rows_->view(tokens() - brought + 1), queries.token(0), exec);
  // One choice for all layers ends every layer's wait at once, in layer 0.
  if (layer.value == 0 || requirements_.granularity != scope::request) waited_ = request_->waits(layer);
  if (layer.value == 0) request_->cut(tokens() - brought);  // which tokens there are is the engine's to say
  selection const chosen = request_->choose(view, layer, step_window{brought, queries, ids_}, exec);
  bool const decided = prompted || (waited_ && !request_->waits(layer));
  statistics_.choose_seconds += seconds_since(start);
  auto const fetching = std::chrono::steady_clock::now();
  selection const wanted = everything_ ? rows_->resident(layer, tokens()) : chosen;
  selection const kept = managed_ != nullptr ? managed_->fetch(layer, wanted, *request_, decided, tokens() - brought) : wanted;
  if (managed_ != nullptr && managed_->in_tier())
    (prompted ? statistics_.prefill_seconds : statistics_.fetch_seconds) += seconds_since(fetching);
  statistics_.tokens_read += static_cast<double>(kept.tokens()) / static_cast<double>(shape_.kv_heads * shape_.layers);
  if (options_.on_choice) options_.on_choice(id_, layer, tokens(), kept);
  auto const attending = std::chrono::steady_clock::now();
  attend(queries, view.keys(layer), view.values(layer), kept, node.terms, out_of(node, batch_indices_.front(), brought), {},
         exec);
  statistics_.attend_seconds += seconds_since(attending);
  if (managed_ != nullptr && requirements_.next_step && !everything_) managed_->prefetch(layer, *request_);
  if (last) end_step();
}

void sequence::dense_step(attention_node const& node, simd_exec& exec) const {
  layer_id const layer{static_cast<std::int32_t>(node.layer)};
  range_list const all{{0, static_cast<std::int32_t>(tokens())}};
  layer_table_view const view = rows_->view(tokens());
  std::int32_t const first = batch_indices_.front();
  auto const brought = std::ssize(batch_indices_);
  attend(window_of(node, first, brought), view.keys(layer), view.values(layer),
         selection(scope::request, {&all, 1}, shape_.kv_heads), node.terms, out_of(node, first, brought), {}, exec);
}

/// Calls block(first, count, tokens) for runs of at most so many neighbours in the micro-batch: others' tokens may lie between.
/// `tokens` is how many there are up to the run's last one.
template <class Block>
void sequence::each_block(std::int64_t most, Block block) const {
  std::int64_t const count = std::ssize(batch_indices_);
  for (std::int64_t first = 0, last = 0; first < count; first = last) {
    std::int32_t const at = batch_indices_[static_cast<std::size_t>(first)];
    for (last = first + 1; last < std::min(count, first + most); ++last) {
      if (batch_indices_[static_cast<std::size_t>(last)] != at + (last - first)) break;
    }
    block(at, last - first, tokens() - count + last);
  }
}

void sequence::prompt(attention_node const& node, simd_exec& exec) {
  layer_id const layer{static_cast<std::int32_t>(node.layer)};
  auto const start = std::chrono::steady_clock::now();
  double const chosen = prompts_.choose_seconds;
  if (why_left() != nullptr) return dense_prompt(node, exec);
  if (managed_ != nullptr) managed_->begin_prompt(layer);
  if (compressed()) attend_prompt(node, exec, [&](std::int64_t before) { return compressed_to(layer, before); });
  else if (pages_ && whole() && !everything_ && !std::holds_alternative<repeating>(state_)) paged_prompt(node, exec);
  else attend_prompt(node, exec, [&](std::int64_t before) { return rows_->resident(layer, before); });
  if (managed_ != nullptr) managed_->end_prompt(layer);
  prompts_.attend_seconds += seconds_since(start) - (prompts_.choose_seconds - chosen);
}

/// Whether prompts read a text as a repetition has left it, in rows that the engine still has.
bool sequence::compressed() const noexcept { return compressed_ && whole() && !everything_; }
/// Of a layer's first tokens, what the policy kept of those that it knows, and all others.
selection sequence::compressed_to(layer_id layer, std::int64_t before) {
  std::int64_t const known = std::min(unseen().from, request_->tokens());
  selection const kept = request_->retained(layer);
  compressed_lists_.assign(kept.lists().begin(), kept.lists().end());
  for (range_list& list : compressed_lists_) {
    truncate(list, known);
    append(list, known, before, reason::open);
  }
  return {kept.granularity(), compressed_lists_, shape_.kv_heads};
}

void sequence::paged_prompt(attention_node const& node, simd_exec& exec) {
  layer_id const layer{static_cast<std::int32_t>(node.layer)};
  each_block(options_.prompt_policy->block, [&](std::int32_t first, std::int64_t count, std::int64_t before) {
    layer_table_view const view = rows_->view(before);
    query_window const queries = window_of(node, first, count);
    auto const start = std::chrono::steady_clock::now();
    selection const kept = pages_->choose(view, layer, queries, exec);
    prompts_.choose_seconds += seconds_since(start);
    prompts_.pairs += static_cast<double>(count * before * shape_.kv_heads);
    prompts_.read += static_cast<double>(count * kept.tokens());
    attend_block(queries, view.keys(layer), view.values(layer), kept, node.terms, out_of(node, first, count), exec);
  });
}

void sequence::dense_prompt(attention_node const& node, simd_exec& exec) const {
  range_list all;
  attend_prompt(node, exec, [&](std::int64_t before) {
    all.assign(1, {0, static_cast<std::int32_t>(before)});
    return selection(scope::request, {&all, 1}, shape_.kv_heads);
  });
}

/// Over what resident(before) says is there of the first tokens.
template <class Resident>
void sequence::attend_prompt(attention_node const& node, simd_exec& exec, Resident resident) const {
  layer_id const layer{static_cast<std::int32_t>(node.layer)};
  each_block(tokens(), [&](std::int32_t first, std::int64_t count, std::int64_t before) {
    layer_table_view const view = rows_->view(before);
    attend_block(window_of(node, first, count), view.keys(layer), view.values(layer), resident(before), node.terms,
                 out_of(node, first, count), exec);
  });
}

table<float> sequence::out_of(attention_node const& node, std::int64_t first, std::int64_t count) const noexcept {
  std::int64_t const dim = shape_.values_dim();
  return {node.out + first * shape_.q_heads * dim, count * shape_.q_heads, dim, dim};
}

query_window sequence::window_of(attention_node const& node, std::int64_t first, std::int64_t count) const noexcept {
  graph_queries const& q = node.queries;
  return {.data = q.at(first, 0),
          .tokens = count,
          .heads = shape_.q_heads,
          .token_stride = count > 1 ? q.at(first + 1, 0) - q.at(first, 0) : shape_.q_heads * shape_.head_dim,
          .head_stride = q.at(first, 1) - q.at(first, 0),
          .scale = node.scale};
}

void sequence::observe(std::span<float const> logits, simd_exec& exec) {
  auto const start = std::chrono::steady_clock::now();
  request_->observe({.logits = logits}, exec);
  statistics_.choose_seconds += seconds_since(start);
}

}  // namespace kvpolicy::llama
