#include "sequence.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

namespace kvpolicy::llama {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

sequence::sequence(llama_seq_id id, host_policy policy, session_options const& options, rotary const& rope, cell_table& table)
    : id_(id),
      policy_(std::move(policy)),
      requirements_(requirements_of(policy_)),
      options_(options),
      rope_(rope),
      cells_(id, table) {}

void sequence::begin(cache_shape const& shape, element_type values, block_arena* arena) {
  request_.emplace(start(policy_, shape));
  if (arena != nullptr) {
    store_.emplace(*arena, shape, values);
    tiers::resident_options own = options_.resident;
    own.request += static_cast<std::uint64_t>(id_);
    if (options_.rows != nullptr) resident_.emplace(*options_.rows, *store_, own);
    if (!requirements_of(options_.between_pieces.retain).keeps_all) pieces_.emplace(start(options_.between_pieces, shape));
  }
  lists_.resize(static_cast<std::size_t>(shape.kv_heads));
  stay_.resize(static_cast<std::size_t>(shape.kv_heads));
  if (options_.prompt_policy) pages_.emplace(options_.prompt_policy->start(shape));
  auto const layers = static_cast<std::size_t>(shape.layers);
  keys_.resize(layers);
  values_.resize(layers);
  prefill_due_.assign(layers, 1);
  cells_.reserve(shape.max_tokens);
  shape_ = shape;
  make_room();
  if (loaded_) load(std::exchange(loaded_, std::nullopt).value());
}

void sequence::use(host_policy policy) {
  check_use();
  if (shape_.max_tokens != 0) request_.emplace(start(policy, shape_));
  policy_ = std::move(policy);
  requirements_ = requirements_of(policy_);
  make_room();
  steps_ = 0;
  prompts_ = {};
  left_.clear();
  forget_all();
}

void sequence::load(saved_prompt const& saved) {
  if (options_.managed_cache) {
    throw unsupported("a state of the engine's does not have rows that are the session's own; restore those too");
  }
  if (shape_.max_tokens == 0) {
    loaded_ = saved;
    return;
  }
  prompt_.load(saved);
  prompt_due(0);
  if (!saved.fingerprints.empty()) cells_.expect(saved.fingerprints, saved.first_position);
  else if (saved.tokens > 0) cells_.expect_in_order(saved.tokens);
  else cells_.forget();
}

saved_prompt sequence::save() const {
  auto const known = cells_.known();
  saved_prompt saved = prompt_.save(std::ssize(known));
  saved.fingerprints.assign(known.begin(), known.end());
  saved.first_position = cells_.first_position();
  return saved;
}

/// For the queries that the policy wants, or that later ones may.
void sequence::make_room() {
  std::int64_t const of_pieces = observation_queries(options_.between_pieces);
  if (shape_.max_tokens != 0)
    prompt_.reserve(shape_, std::max({options_.observation_queries, requirements_.observation_queries, of_pieces}));
}

/// What was learnt of all tokens; which they are stays known.
void sequence::forget_all() noexcept { forget(0), prompt_due(0); }

/// Tokens from `tokens` on are gone; the policy is given when it next runs.
void sequence::forget(std::int64_t tokens) noexcept {
  if (due_from_ != nothing_due) due_from_ = std::min(due_from_, tokens);
  prompt_.forget(tokens);
  if (pages_) pages_->cut(tokens);
}

void sequence::prompt_due(std::int64_t from) noexcept {
  due_from_ = std::min(due_from_, from);
  std::ranges::fill(prefill_due_, 1);
}

void sequence::follow(seen_cells const& now, std::span<std::unique_ptr<sequence> const> others) {
  if (store_) {
    if (now.position != just_loaded_) just_loaded_ = 0;
    return follow_staged(now, others);
  }
  auto const known = std::ssize(cells_.known());
  std::int64_t const same = cells_.follow(now);
  unordered_ = false;
  forget(same);
  if (same == tokens()) return;
  if (same < known) forget_all();  // somebody replaced them
  else prompt_due(same);
  auto const knows = [&](auto const& other) {
    return other != nullptr && other.get() != this && tokens() <= std::ssize(other->cells_.known()) &&
           std::ranges::equal(cells_.known(), other->cells_.known().first(static_cast<std::size_t>(tokens())));
  };
  if (auto const other = std::ranges::find_if(others, knows); other != others.end())
    prompt_.take_over((*other)->prompt_, tokens());
}

void sequence::leave(std::string const& why) {
  if (left_.empty()) left_ = why;
  statistics_ = {};
  forget_all();
}

void sequence::leave(std::string const& why, seen_cells const& now) {
  cells_.place(now);
  unordered_ = true;
  leave(why);
}

void sequence::see(std::int64_t layer, rows const& keys, rows const& values) noexcept {
  if (store_) {
    keys_[static_cast<std::size_t>(layer)] = cells_.fresh(keys);
    values_[static_cast<std::size_t>(layer)] = cells_.fresh(values);
    return;
  }
  keys_[static_cast<std::size_t>(layer)] = cells_.placed(keys);
  values_[static_cast<std::size_t>(layer)] = cells_.placed(values);
}

void sequence::add_prompt(std::span<std::int32_t const> batch_indices, graph_tokens const& graph) {
  batch_indices_.assign(batch_indices.begin(), batch_indices.end());
  if (!unordered_) left_.clear();
  prompt_due(tokens());
  for (std::int32_t const batch_index : batch_indices) {
    if (!graph.ids.empty()) prompt_.keep_id(tokens(), graph.id(batch_index));
    cells_.append(graph.cell(batch_index));
  }
}

void sequence::add_step(std::int32_t batch_index, graph_tokens const& graph) {
  batch_indices_.assign(1, batch_index);
  if (std::ranges::find(prefill_due_, 1) != prefill_due_.end())
    std::ranges::fill(prefill_due_, 1);  // one was cut in the middle
  token_id_ = graph.id(batch_index);
  if (!graph.ids.empty()) prompt_.keep_id(tokens(), token_id_);
  cells_.append(graph.cell(batch_index));
}

void sequence::step(layer_id layer, node_queries const& q, float* out, simd_exec& exec) {
  if (!left_.empty()) return step_left(layer, q, out, exec);
  if (layer.value == 0) statistics_ = {.tokens = tokens()};
  take_rows(layer);
  if (resident_ && resident_->was_cut()) mend_cut();
  char& due = prefill_due_[static_cast<std::size_t>(layer.value)];
  bool const prompted = due != 0;
  if (prompted && resident_) {
    // One choice for all layers may look at all of them when the first one chooses.
    bool const all = layer.value == 0 && requirements_.granularity == scope::request;
    for (layer_id l = layer; l.value < (all ? shape_.layers : layer.value + 1); ++l.value) resident_->bring(l);
  }
  if (prompted) {
    auto const start = std::chrono::steady_clock::now();
    if (tokens() > 1) request_->prefill(view_of(tokens() - 1), layer, prompt_of(layer, tokens() - 1, q.scale), exec);
    due = 0;
    statistics_.prefill_seconds += seconds_since(start);
  }
  auto const start = std::chrono::steady_clock::now();
  query_heads const queries = queries_of(q);
  layer_table_view const view = view_of(tokens());
  if (options_.on_queries) options_.on_queries(id_, layer, view, queries, exec);
  bool const waited = request_->waits(layer);
  selection kept = request_->choose(view, layer, {queries, token_id_}, exec);
  bool const decided = prompted || (waited && !request_->waits(layer));
  statistics_.choose_seconds += seconds_since(start);
  if (resident_) {
    auto const fetching = std::chrono::steady_clock::now();
    if (decided && tokens() > 1) put_away(layer, tokens() - 1);
    kept = resident_->ready(layer, kept);
    (prompted ? statistics_.prefill_seconds : statistics_.fetch_seconds) += seconds_since(fetching);
  }
  statistics_.tokens_read += static_cast<double>(kept.tokens()) / static_cast<double>(shape_.kv_heads * shape_.layers);
  if (options_.on_choice) options_.on_choice(id_, layer, tokens(), kept);
  auto const attending = std::chrono::steady_clock::now();
  attend(queries, view.keys(layer), view.values(layer), kept, q.terms,
         table<float>{out, shape_.q_heads, shape_.head_dim, shape_.head_dim}, {}, exec);
  statistics_.attend_seconds += seconds_since(attending);
  if (layer.value + 1 == shape_.layers) end_step();
}

void sequence::step_left(layer_id layer, node_queries const& q, float* out, simd_exec& exec) {
  dense_step(layer, q, out, exec);
  statistics_ = {.tokens = tokens(), .tokens_read = static_cast<double>(tokens())};
  if (layer.value + 1 < shape_.layers) return;
  if (unordered_) cells_.forget();
  else cells_.seal();
}

void sequence::dense_step(layer_id layer, node_queries const& q, float* out, simd_exec& exec) const {
  if (store_) throw unsupported("a managed cache can't be attended to after a failure");
  range_list const all{{0, static_cast<std::int32_t>(tokens())}};
  layer_table_view const view = view_of(tokens());
  attend(queries_of(q), view.keys(layer), view.values(layer), selection(scope::request, {&all, 1}, shape_.kv_heads), q.terms,
         table<float>{out, shape_.q_heads, shape_.head_dim, shape_.head_dim}, {}, exec);
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

void sequence::prompt(layer_id layer, node_queries const& q, float* out, simd_exec& exec) {
  auto const start = std::chrono::steady_clock::now();
  double const chosen = prompts_.choose_seconds;
  if (!left_.empty()) return dense_prompt(layer, q, out, exec);
  take_rows(layer);
  if (resident_) resident_->bring(layer);
  if (pages_ && !(store_ && !store_->whole())) paged_prompt(layer, q, out, exec);
  else attend_prompt(layer, q, out, exec, [&](std::int64_t before) { return resident(layer, before); });
  if (resident_) resident_->shed(layer);
  prompts_.attend_seconds += seconds_since(start) - (prompts_.choose_seconds - chosen);
}

void sequence::paged_prompt(layer_id layer, node_queries const& q, float* out, simd_exec& exec) {
  std::int64_t const row = shape_.q_heads * shape_.head_dim;
  each_block(options_.prompt_policy->block, [&](std::int32_t first, std::int64_t count, std::int64_t before) {
    layer_table_view const view = view_of(before);
    query_window const queries = window_of(q, first, count);
    auto const start = std::chrono::steady_clock::now();
    selection const kept = pages_->choose(view, layer, queries, exec);
    prompts_.choose_seconds += seconds_since(start);
    prompts_.pairs += static_cast<double>(count * before * shape_.kv_heads);
    prompts_.read += static_cast<double>(count * kept.tokens());
    attend_block(queries, view.keys(layer), view.values(layer), kept, q.terms,
                 table<float>{out + first * row, count * shape_.q_heads, shape_.head_dim, shape_.head_dim}, exec);
  });
}

void sequence::dense_prompt(layer_id layer, node_queries const& q, float* out, simd_exec& exec) const {
  if (store_) throw unsupported("a managed cache can't be attended to after a failure");
  range_list all;
  attend_prompt(layer, q, out, exec, [&](std::int64_t before) {
    all.assign(1, {0, static_cast<std::int32_t>(before)});
    return selection(scope::request, {&all, 1}, shape_.kv_heads);
  });
}

/// Over what resident(before) says is there of the first tokens.
template <class Resident>
void sequence::attend_prompt(layer_id layer, node_queries const& q, float* out, simd_exec& exec, Resident resident) const {
  std::int64_t const row = shape_.q_heads * shape_.head_dim;
  each_block(tokens(), [&](std::int32_t first, std::int64_t count, std::int64_t before) {
    layer_table_view const view = view_of(before);
    attend_block(window_of(q, first, count), view.keys(layer), view.values(layer), resident(before), q.terms,
                 table<float>{out + first * row, count * shape_.q_heads, shape_.head_dim, shape_.head_dim}, exec);
  });
}

query_window sequence::window_of(node_queries const& q, std::int64_t first, std::int64_t count) const noexcept {
  return {.data = q.of.at(first, 0),
          .tokens = count,
          .heads = shape_.q_heads,
          .token_stride = count > 1 ? q.of.at(first + 1, 0) - q.of.at(first, 0) : shape_.q_heads * shape_.head_dim,
          .head_stride = q.of.at(first, 1) - q.of.at(first, 0),
          .scale = q.scale};
}

query_heads sequence::queries_of(node_queries const& q) const noexcept {
  return {.data = q.of.at(batch_index(), 0),
          .heads = shape_.q_heads,
          .head_stride = q.of.at(batch_index(), 1) - q.of.at(batch_index(), 0),
          .scale = q.scale};
}

/// Rows are dropped when the last layer has been read: a step that fails in the middle can be made again.
void sequence::end_step() {
  cells_.seal();
  just_loaded_ = 0;
  bool const decided = due_from_ != nothing_due;
  due_from_ = nothing_due;
  if (store_ && (decided || requirements_.evicts)) drop_rows(*request_, tokens());
  ++steps_;
}

void sequence::observe(std::span<float const> logits, simd_exec& exec) {
  auto const start = std::chrono::steady_clock::now();
  request_->observe({.logits = logits}, exec);
  statistics_.choose_seconds += seconds_since(start);
}

/// What prefill is given of the prompt that ends before token `tokens`. Throws unsupported where it is not known.
prompt_signals sequence::prompt_of(layer_id layer, std::int64_t tokens, float scale) {
  signals const needs = requirements_.needs;
  prompt_signals prompt{.first = due_from_,
                        .queries = prompt_.window_of(layer.value, tokens, scale),
                        .rope = rope_.embedding(),
                        .token_ids = prompt_.ids_of(due_from_, tokens)};
  if (store_ && !store_->whole()) prompt.resident = resident(layer, tokens).lists();
  if (contains(needs, signals::token_ids) && std::ssize(prompt.token_ids) != tokens - due_from_) {
    throw unsupported(
        "the policy needs the prompt's token ids, and they were not observed: decode it as tokens, not embeddings, "
        "with the policy attached");
  }
  if (contains(needs, signals::rotation) && !rope_.known()) {
    throw unsupported(
        "the policy needs the keys' rotary embedding, and this model has none, or the engine turns keys in blocks once more "
        "(LLAMA_ATTN_ROT_DISABLE=1 keeps it from that); chess and infllm do without as pre_rope=0");
  }
  if (contains(needs, signals::rotation) && cells_.first_position() != 0) {
    throw unsupported("the policy turns keys by their positions, and the sequence's first token is at position " +
                      std::to_string(cells_.first_position()) + ", not 0; chess and infllm do without as pre_rope=0");
  }
  return prompt;
}

}  // namespace kvpolicy::llama
