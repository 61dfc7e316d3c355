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

constexpr std::int64_t nothing_due = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t print_every = 64;  // tokens

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool one_run(std::span<std::int32_t const> cells) noexcept {
  return cells.empty() || cells.back() - cells.front() + 1 == std::ssize(cells);
}

}  // namespace

sequence::sequence(llama_seq_id id, host_policy policy, session_options const& options, rotary const& turned,
                   cache_cells const& cache)
    : id_(id), policy_(std::move(policy)), facts_(facts_of(policy_)), options_(options), turned_(turned), cache_(cache) {}

void sequence::begin(cache_shape const& shape) {
  request_.emplace(start(policy_, shape));
  if (options_.rows != nullptr) {
    tier::resident_options own = options_.resident;
    own.request += static_cast<std::uint64_t>(id_);
    resident_.emplace(*options_.rows, shape, own);
  }
  auto const layers = static_cast<std::size_t>(shape.layers);
  keys_.resize(layers);
  values_.resize(layers);
  prefill_due_.assign(layers, 1);
  cells_.reserve(static_cast<std::size_t>(shape.max_tokens));
  writes_.reserve(static_cast<std::size_t>(shape.max_tokens));
  prints_.reserve(static_cast<std::size_t>(2 * shape.max_tokens / print_every + 2));
  shape_ = shape;
  make_room();
  if (loaded_) load(std::exchange(loaded_, std::nullopt).value());
}

void sequence::use(host_policy policy) {
  if (shape_.max_tokens != 0) request_.emplace(start(policy, shape_));
  policy_ = std::move(policy);
  facts_ = facts_of(policy_);
  make_room();
  steps_ = 0;
  forget_all();
}

void sequence::load(saved_prompt const& saved) {
  if (shape_.max_tokens == 0) {
    loaded_ = saved;
    return;
  }
  forget(0);  // whichever cells the state was put into
  forget_all();
  prompt_.load(saved);
  restored_ = true;
}

/// For the queries that the policy wants, or that later ones may.
void sequence::make_room() {
  if (shape_.max_tokens != 0) prompt_.reserve(shape_, std::max(options_.window_queries, facts_.prompt_queries));
}

/// What was learnt of all tokens; their cells stay known.
void sequence::forget_all() noexcept {
  prompt_.forget(0);
  prints_.clear();
  prompt_due(0);
}

/// Tokens from `tokens` on are gone; the policy is told when it next runs.
void sequence::forget(std::int64_t tokens) noexcept {
  if (tokens < this->tokens()) {
    cells_.resize(static_cast<std::size_t>(tokens));
    writes_.resize(static_cast<std::size_t>(tokens));
    in_a_row_ = in_a_row_ || std::ranges::adjacent_find(cells_, [](auto a, auto b) { return a + 1 != b; }) == cells_.end();
  }
  if (due_from_ != nothing_due) due_from_ = std::min(due_from_, tokens);
  prompt_.forget(tokens);
  while (!prints_.empty() && prints_.back().token >= tokens) prints_.pop_back();
}

void sequence::prompt_due(std::int64_t from) noexcept {
  due_from_ = std::min(due_from_, from);
  std::ranges::fill(prefill_due_, 1);
}

void sequence::append(std::int32_t cell) {
  in_a_row_ = in_a_row_ && (cells_.empty() || cells_.back() + 1 == cell);
  cells_.push_back(cell);
  writes_.push_back(cache_.written(stream_, cell));
}

/// Whether the first `count` tokens are here, and are seen by this token.
bool sequence::holds(seen_cells const& now, std::int64_t count) const noexcept {
  return count <= tokens() && same_rows(now.stream, count) &&
         std::all_of(cells_.begin(), cells_.begin() + count, [&](std::int32_t cell) {
           return cell != now.cell && cell < now.mask.cells() && now.mask.visible(now.place, cell);
         });
}

/// Whether a stream has this sequence's first `count` tokens in the cells that they have here: nobody wrote to them since, or,
/// copied to another stream, the last one's keys are the same.
bool sequence::same_rows(std::int64_t stream, std::int64_t count) const noexcept {
  if (count == 0) return true;
  if (stream != stream_) {
    std::int32_t const last = cells_[static_cast<std::size_t>(count - 1)];
    return cache_.last_keys.base != nullptr && cache_.hash(stream, last) == cache_.hash(stream_, last);
  }
  for (std::size_t t = 0; t < static_cast<std::size_t>(count); ++t) {
    if (writes_[t] != cache_.written(stream_, cells_[t])) return false;
  }
  return true;
}

void sequence::follow(seen_cells const& now, std::span<std::unique_ptr<sequence> const> others) {
  auto const count = std::ssize(now.visible);
  if (now.stream != stream_ && !restored_) {
    forget(0);
    forget_all();
  }
  stream_ = now.stream;
  auto const known_to = [&](auto const& other) {
    return other != nullptr && other->holds(now, count) && other->is_printed(count);
  };
  if (holds(now, count)) {
    forget(count);
  } else if (restored_) {
    learn(now);
  } else if (auto const other = std::ranges::find_if(others, known_to); other != others.end()) {
    copy(**other, count);
  } else {
    learn(now);
  }
  restored_ = false;
  if (!is_printed(tokens())) forget_all();  // somebody replaced the cache: what the keys say is learnt anew
}

/// Whether the last of the first `count` tokens that was printed has the keys that it had then.
bool sequence::is_printed(std::int64_t count) const noexcept {
  auto const after = std::ranges::lower_bound(prints_, count, {}, &history_print::token);
  return after == prints_.begin() || std::prev(after)->hash == hash_of(std::prev(after)->token);
}

/// llama_memory_seq_cp: what is known of the other's tokens is true of these.
void sequence::copy(sequence const& other, std::int64_t tokens) {
  forget(0);
  forget_all();
  for (std::int32_t const cell : std::span(other.cells_).first(static_cast<std::size_t>(tokens))) append(cell);
  prompt_.load(other.prompt_.save(tokens));
}

/// Cells that no session saw written: they are taken to be in order if they are one run with nothing missing before it, which
/// a stream's first cell or the position tells.
void sequence::learn(seen_cells const& now) {
  auto const count = std::ssize(now.visible);
  bool const whole = now.position == count || (count > 0 && now.visible.front() == 0);
  std::vector<std::int32_t> known = cells_;
  std::ranges::sort(known);
  std::vector<std::int32_t> rest;
  std::ranges::set_difference(now.visible, known, std::back_inserter(rest));
  if (whole && tokens() + std::ssize(rest) == count && one_run(rest)) {
    prompt_due(tokens());
    for (std::int32_t const cell : rest) append(cell);
  } else if (whole && one_run(now.visible)) {
    forget(0);
    forget_all();
    for (std::int32_t const cell : now.visible) append(cell);
  } else {
    throw unsupported("token " + std::to_string(now.position < 0 ? count : now.position) + " of sequence " +
                      std::to_string(id_) + " sees " + std::to_string(count) +
                      " cells that the session can't put in order: it did not see them written, or there are holes "
                      "(llama_memory_seq_rm from the middle), or the batch has several sequences in one unified cache and "
                      "announce(batch) was not called");
  }
}

void sequence::see(std::int64_t layer, rows const& keys, rows const& values) noexcept {
  keys_[static_cast<std::size_t>(layer)] = placed(keys);
  values_[static_cast<std::size_t>(layer)] = placed(values);
}

/// This sequence's tokens among all cells.
rows sequence::placed(rows all) const noexcept {
  all.base += stream_ * cache_.per_stream * all.token_stride;
  if (in_a_row_) {
    all.base += (cells_.empty() ? 0 : cells_.front()) * all.token_stride;
  } else {
    all.pages = cells_.data();
    all.page_size = 1;
    all.page_stride = all.token_stride;
  }
  return all;
}

void sequence::add_prompt(std::span<std::int32_t const> places, graph_tokens const& graph) {
  places_.assign(places.begin(), places.end());
  prompt_due(tokens());
  for (std::int32_t const place : places) {
    if (!graph.ids.empty()) prompt_.keep_id(tokens(), graph.id(place));
    append(graph.cell(place));
  }
}

void sequence::end_prompt() {
  for (std::int64_t t = tokens() - std::ssize(places_); t < tokens(); ++t) {
    if (t % print_every == print_every - 1 || t + 1 == tokens()) remember(t, true);
  }
}

void sequence::add_step(std::int32_t place, graph_tokens const& graph) {
  places_.assign(1, place);
  if (std::ranges::find(prefill_due_, 1) != prefill_due_.end())
    std::ranges::fill(prefill_due_, 1);  // one was cut in the middle
  token_id_ = graph.id(place);
  if (!graph.ids.empty()) prompt_.keep_id(tokens(), token_id_);
  append(graph.cell(place));
}

void sequence::step(layer_id layer, graph_queries const& q, float scale, float* out, simd_exec& exec) {
  if (layer.value == 0) statistics_ = {.tokens = tokens()};
  char& due = prefill_due_[static_cast<std::size_t>(layer.value)];
  bool const prompted = due != 0;
  if (prompted) {
    auto const start = std::chrono::steady_clock::now();
    if (tokens() > 1) request_->prefill(view_of(tokens() - 1), layer, prompt_of(layer, tokens() - 1, scale), exec);
    due = 0;
    statistics_.prefill_seconds += seconds_since(start);
  }
  auto const start = std::chrono::steady_clock::now();
  query_heads const queries{
      .data = q.at(place(), 0), .heads = shape_.q_heads, .head_stride = q.at(place(), 1) - q.at(place(), 0), .scale = scale};
  layer_table_view const view = view_of(tokens());
  if (options_.on_queries) options_.on_queries(id_, layer, view, queries, exec);
  selection kept = request_->choose(view, layer, {queries, token_id_}, exec);
  statistics_.choose_seconds += seconds_since(start);
  rows keys = view.keys(layer);
  rows values = view.values(layer);
  if (resident_) {
    auto const fetching = std::chrono::steady_clock::now();
    if (prompted) resident_->store(view_of(tokens() - 1), layer, request_->retained(layer));
    kept = resident_->ready(view, layer, kept);
    keys = resident_->keys(layer);
    values = resident_->values(layer);
    (prompted ? statistics_.prefill_seconds : statistics_.fetch_seconds) += seconds_since(fetching);
  }
  statistics_.tokens_read += static_cast<double>(kept.tokens()) / static_cast<double>(shape_.kv_heads * shape_.layers);
  if (options_.on_choice) options_.on_choice(id_, layer, tokens(), kept);
  auto const attending = std::chrono::steady_clock::now();
  attend(queries, keys, values, kept, table<float>{out, shape_.q_heads, shape_.head_dim, shape_.head_dim}, {}, exec);
  statistics_.attend_seconds += seconds_since(attending);
  if (layer.value + 1 == shape_.layers) end_step();
}

void sequence::end_step() {
  std::int64_t const last = tokens() - 1;
  if (due_from_ != nothing_due) {
    for (std::int64_t t = prints_.empty() ? 0 : prints_.back().token + 1; t < last; ++t) {
      if (t % print_every == print_every - 1 || t + 1 == last) remember(t, true);
    }
  }
  remember(last, last % print_every == print_every - 1);
  due_from_ = nothing_due;
  ++steps_;
}

void sequence::observe(std::span<float const> logits, simd_exec& exec) {
  auto const start = std::chrono::steady_clock::now();
  request_->observe({.logits = logits}, exec);
  statistics_.choose_seconds += seconds_since(start);
}

/// What prefill is told of the prompt that ends before token `tokens`. Throws unsupported where it is not known.
prompt_signals sequence::prompt_of(layer_id layer, std::int64_t tokens, float scale) const {
  signals const needs = facts_.needs;
  prompt_signals prompt{.first = due_from_,
                        .queries = prompt_.window_of(layer.value, tokens, scale),
                        .turned = turned_.turned(),
                        .token_ids = prompt_.ids_of(due_from_, tokens)};
  if (contains(needs, signals::token_ids) && std::ssize(prompt.token_ids) != tokens - due_from_) {
    throw unsupported(
        "the policy needs the prompt's token ids, and they were not observed: decode it as tokens, not embeddings, "
        "with the policy attached");
  }
  if (contains(needs, signals::rotation) && !turned_.known()) {
    throw unsupported("the policy needs the keys' rotary embedding, and this model has none");
  }
  return prompt;
}

void sequence::remember(std::int64_t token, bool stays) {
  if (!prints_.empty() && !prints_.back().stays) prints_.pop_back();
  prints_.push_back({token, hash_of(token), stays});
}

}  // namespace kvpolicy::llama
