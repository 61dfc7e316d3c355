#include "sequence.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvpolicy::llama {
sequence::sequence(llama_seq_id id, host_policy policy, session_options const& options, rotary const& rope,
                   std::unique_ptr<row_source> rows)
    : id_(id),
      policy_(std::move(policy)),
      requirements_(requirements_of(policy_)),
      options_(options),
      rope_(rope),
      rows_(std::move(rows)),
      managed_(rows_->managed()) {}

void sequence::begin(cache_shape const& shape, element_type values) {
  request_.emplace(start(policy_, shape));
  rows_->begin(shape, values);
  if (options_.cache && !requirements_of(options_.cache->between_pieces.retain).keeps_all)
    pieces_.emplace(start(options_.cache->between_pieces, shape));
  if (options_.prompt_policy) pages_.emplace(options_.prompt_policy->start(shape));
  rows_->cells().reserve(shape.max_tokens);
  shape_ = shape;
  make_room();
  auto* const loaded = std::get_if<fresh>(&state_);  // a graph that failed here may have begun before
  if (loaded == nullptr) return;
  std::optional<saved_prompt> const prompt = std::exchange(loaded->prompt, std::nullopt);
  if (loaded->rows.empty()) state_ = prompting{};
  if (prompt) load(*prompt);
}

void sequence::use(host_policy policy) {
  check_use();
  if (shape_.max_tokens != 0) request_.emplace(start(policy, shape_));
  policy_ = std::move(policy);
  requirements_ = requirements_of(policy_);
  make_room();
  steps_ = 0;
  prompts_ = {};
  if (why_left() != nullptr) state_ = prompting{};
  forget_all();
}

void sequence::check_use() const {
  KVPOLICY_EXPECTS(pending().empty(), "a state was loaded for sequence " + std::to_string(id_) +
                                          ", with the policy that it had then; call use() before load_state()");
}

void sequence::load(saved_prompt const& saved) {
  if (shape_.max_tokens == 0) {
    std::get<fresh>(state_).prompt = saved;
    return;
  }
  prompt_.load(saved);
  prompt_due(0);
  sequence_cells& cells = rows_->cells();
  if (!saved.fingerprints.empty()) cells.expect(saved.fingerprints, saved.first_position);
  else if (saved.tokens > 0) cells.expect_in_order(saved.tokens);
  else cells.forget();
}

saved_prompt sequence::save() const {
  auto const known = rows_->cells().known();
  saved_prompt saved = prompt_.save(std::ssize(known));
  saved.fingerprints.assign(known.begin(), known.end());
  saved.first_position = rows_->cells().first_position();
  return saved;
}

/// For the queries that the policy wants, or that later ones may.
void sequence::make_room() {
  std::int64_t const of_pieces = options_.cache ? observation_queries(options_.cache->between_pieces) : 0;
  // A verifying batch is a prompt's piece to the policy, and its last tokens may not stay.
  bool const drafts = requirements_of(policy_.retain).keeps_all && requirements_.observation_queries > 0;
  std::int64_t const of_policy = requirements_.observation_queries + (drafts ? most_step_tokens - 1 : 0);
  if (shape_.max_tokens != 0) prompt_.reserve(shape_, std::max({options_.observation_queries, of_policy, of_pieces}));
}

/// What was learnt of all tokens; which they are stays known.
void sequence::forget_all() noexcept { forget(0), prompt_due(0); }

/// Tokens from `tokens` on are gone; the policy learns it when it next runs.
void sequence::forget(std::int64_t tokens) noexcept {
  if (prompting const now = unseen(); now.from != prompting::none) set_unseen({std::min(now.from, tokens), now.layers});
  // The choice waits again, and all rows are there for it.
  else if (request_ && whole() && request_->undoes_choice(tokens)) prompt_due(tokens);
  prompt_.forget(tokens);
  compressed_ = compressed_ && tokens > 0;
  if (pages_) pages_->cut(tokens);
}

/// What the policy has yet to see of the prompt, whatever state the sequence is in.
prompting sequence::unseen() const noexcept {
  if (auto const* const now = std::get_if<prompting>(&state_)) return *now;
  if (auto const* const now = std::get_if<repeating>(&state_)) return now->unseen;
  if (auto const* const now = std::get_if<left>(&state_)) return now->unseen;
  return {std::holds_alternative<fresh>(state_) ? 0 : prompting::none};
}
/// The same state, but that a prompt begins or ends.
void sequence::set_unseen(prompting of) noexcept {
  if (auto* const now = std::get_if<repeating>(&state_)) now->unseen = of;
  else if (auto* const is = std::get_if<left>(&state_)) is->unseen = of;
  else if (std::holds_alternative<fresh>(state_)) return;
  else if (of.from == prompting::none) state_ = stepping{};
  else state_ = of;
}

void sequence::prompt_due(std::int64_t from) noexcept { set_unseen({std::min(unseen().from, from)}); }

sequence::history sequence::follow(seen_cells const& now) {
  if (now.position != just_loaded_) just_loaded_ = 0;
  auto const known = rows_->sealed();
  std::optional<std::int64_t> const same = rows_->follow(now);
  if (!same) return history::elsewhere;
  if (auto* const is = std::get_if<left>(&state_)) is->unordered = false;
  forget(*same);
  if (*same == tokens()) return history::known;
  if (*same < known) forget_all();  // somebody replaced them
  else prompt_due(*same);
  return history::of_others;
}

bool sequence::knows(sequence const& other) const noexcept {
  auto const theirs = other.rows_->cells().known();
  return other.tokens() <= rows_->sealed() &&
         std::ranges::equal(theirs, rows_->cells().known().first(static_cast<std::size_t>(other.tokens())));
}

void sequence::learn_from(sequence const& other) {
  prompt_.take_over(other.prompt_, tokens());
  if (!other.compressed_ || policy_.retain != other.policy_.retain || policy_.retrieve != other.policy_.retrieve) return;
  // A copy has no text to repeat by itself: it goes on with what was chosen.
  request_ = other.request_;
  compressed_ = true;
  set_unseen({std::min(tokens(), request_->tokens())});
}

/// With the same policy, what that knows is copied too.
void sequence::take_over(sequence const& other, std::int64_t tokens, std::int64_t stream) {
  try {
    if (managed_ != nullptr) managed_->take_over(*other.managed_, tokens, stream);
  } catch (...) {
    if (managed_->owned() == 0) end();
    throw;
  }
  just_loaded_ = other.just_loaded_ == tokens ? tokens : 0;
  forget_all();
  prompt_.take_over(other.prompt_, tokens);
  if (policy_.retain != other.policy_.retain || policy_.retrieve != other.policy_.retrieve) return;
  request_ = other.request_;
  prompting const theirs = other.unseen();
  set_unseen({theirs.from < tokens ? theirs.from : prompting::none});  // a prompt may have come behind the copy
  forget(tokens);
}

void sequence::leave(std::string const& why) {
  if (why_left() == nullptr) state_ = left{why};
  statistics_ = {};
  forget_all();
}

void sequence::leave(std::string const& why, seen_cells const& now) {
  rows_->cells().place(now);
  leave(why);
  std::get<left>(state_).unordered = true;
}

void sequence::add_prompt(std::span<std::int32_t const> batch_indices, graph_tokens const& graph, bool everything) {
  everything_ = everything;
  batch_indices_.assign(batch_indices.begin(), batch_indices.end());
  if (auto const* const was = std::get_if<left>(&state_); was != nullptr && !was->unordered) state_ = prompting{was->unseen};
  prompt_due(tokens());
  for (std::int32_t const batch_index : batch_indices) {
    if (!graph.ids.empty()) prompt_.keep_id(tokens(), graph.id(batch_index));
    rows_->cells().append(graph.cell(batch_index));
  }
}

bool sequence::may_step(std::span<std::int32_t const> batch_indices) const noexcept {
  bool const in_a_row = batch_indices.back() - batch_indices.front() + 1 == std::ssize(batch_indices);
  return batch_indices.size() == 1 ||
         (in_a_row && tokens() > 0 && managed_ == nullptr);  // a managed cache may drop what a draft's loss needs
}

void sequence::add_step(std::span<std::int32_t const> batch_indices, graph_tokens const& graph, bool everything) {
  everything_ = everything;
  batch_indices_.assign(batch_indices.begin(), batch_indices.end());
  if (std::int64_t const from = unseen().from; from != prompting::none) prompt_due(from);  // in every layer
  ids_.clear();
  for (std::int32_t const batch_index : batch_indices) {
    if (!graph.ids.empty()) {
      ids_.push_back(graph.id(batch_index));
      prompt_.keep_id(tokens(), ids_.back());
    }
    rows_->cells().append(graph.cell(batch_index));
  }
}

/// The running graph's tokens of the sequence are there for good.
void sequence::seal() {
  if (auto const* const is = std::get_if<left>(&state_); is != nullptr && is->unordered) rows_->cells().forget();
  else rows_->cells().seal();
  just_loaded_ = 0;
}

/// What drops rows between pieces decides now, for all layers: a graph that fails in the middle has dropped nothing.
void sequence::end_prompt(float scale, simd_exec& exec) {
  if (pieces_) {
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      prompt_signals given = prompt_of(layer, tokens(), scale);
      given.first = 0;  // it has seen no steps, and needs no more than what is there
      given.token_ids = {};
      pieces_->prefill(rows_->view(tokens()), layer, given, exec);
    }
    // The last rows stay with their queries: a policy that scores by these takes the last rows for theirs.
    managed_->drop(*pieces_, tokens() - prompt_.room());
  }
  if (auto* const now = std::get_if<repeating>(&state_); now != nullptr && tokens() == now->piece.end) {
    try {
      hear(*now, scale, exec);
    } catch (...) {
      now->refused = std::current_exception();  // the graph goes on: the piece is removed in any case
    }
  }
  seal();
}

void sequence::begin_repetition(repetition const& piece) {
  prompt_.reserve(shape_, piece.end - std::ssize(piece.ids));
  state_ = repeating{piece, unseen()};
}

bool sequence::heard_repetition() {
  prompt_.release();
  make_room();
  auto* const now = std::get_if<repeating>(&state_);
  if (now == nullptr) return false;  // it was left
  repeating const ended = std::move(*now);
  state_ = stepping{};
  set_unseen(ended.unseen);
  if (ended.refused) std::rethrow_exception(ended.refused);
  return ended.heard;
}

/// The policy learns of the prompt before the repetition, if it did not, and of the piece that was just decoded.
void sequence::hear(repeating& now, float scale, simd_exec& exec) {
  repetition const& repeated = now.piece;
  auto const first = std::ssize(repeated.ids);
  // What the caller did to the sequence shows in its graph: it may have other tokens than the session knew before.
  if (!std::ranges::equal(prompt_.ids_of(0, first), repeated.ids)) return;
  for (layer_id layer{0}; layer.value < shape_.layers && now.unseen.from < first; ++layer.value)
    request_->prefill(rows_->view(first), layer, prompt_of(layer, first, scale), exec);
  now.unseen = {first};
  for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
    prompt_signals given = prompt_of(layer, tokens(), scale);
    given.queries = given.queries.last(tokens() - first);
    given.repeats = repeated.of;
    request_->prefill(rows_->view(tokens()), layer, given, exec);
  }
  now.unseen = {prompting::none};
  now.heard = true;
}

void sequence::end_repetition(std::int64_t tokens) {
  simd_exec exec(shape_);
  for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
    prompt_signals given{.first = tokens, .rope = rope_.embedding()};
    if (!whole()) given.resident = rows_->resident(layer, tokens).lists();
    request_->prefill(rows_->view(tokens), layer, given, exec);  // no token of the repetition is known any more
  }
  if (managed_ != nullptr) managed_->drop(*request_, tokens);
  compressed_ = true;
}

/// Rows are dropped when the last layer has been read: a step that fails in the middle can be made again.
void sequence::end_step() {
  seal();
  bool const decided = unseen().from != prompting::none;
  set_unseen({prompting::none});
  if (managed_ != nullptr && (decided || requirements_.evicts)) managed_->drop(*request_, tokens());
  ++steps_;
}

/// What prefill is given of the prompt that ends before token `tokens`. Throws unsupported where it is not known.
prompt_signals sequence::prompt_of(layer_id layer, std::int64_t tokens, float scale) {
  signals const needs = requirements_.needs;
  std::int64_t const from = unseen().from;
  prompt_signals prompt{.first = from,
                        .queries = prompt_.window_of(layer.value, tokens, scale),
                        .rope = rope_.embedding(),
                        .token_ids = prompt_.ids_of(from, tokens)};
  // Of a prompt whose end was cut away the queries of its last tokens may be all that are known.
  if (prompt.queries.tokens > 0) prompt.observed_from = tokens - prompt.queries.tokens;
  if (!whole()) prompt.resident = rows_->resident(layer, tokens).lists();
  if (contains(needs, signals::token_ids) && std::ssize(prompt.token_ids) != tokens - from) {
    throw unsupported(
        "the policy needs the prompt's token ids, and they were not observed: decode it as tokens, not embeddings, "
        "with the policy attached");
  }
  if (contains(needs, signals::rotation) && rows_->cells().first_position() != 0) {
    throw unsupported("the policy turns keys by their positions, and the sequence's first token is at position " +
                      std::to_string(rows_->cells().first_position()) + ", not 0; chess and infllm do without as pre_rope=0");
  }
  return prompt;
}

void sequence::end() noexcept {
  if (auto* const loaded = std::get_if<fresh>(&state_)) loaded->rows.clear();
  just_loaded_ = 0;
  if (managed_ != nullptr) managed_->clear();
  forget_all();
}

void sequence::cut(std::int64_t tokens) noexcept {
  if (tokens >= owned()) return;
  just_loaded_ = tokens;
  if (!pending().empty()) return;
  try {
    managed_->truncate(tokens);
  } catch (...) {
    return end();
  }
  forget(tokens);
}

std::int64_t sequence::goes_on_from() const noexcept {
  if (!pending().empty()) return std::max<std::int64_t>(just_loaded_ - 1, 0);  // what it dropped is not known yet
  std::int64_t const from = managed_ != nullptr ? managed_->goes_on_from() : 0;
  return from > 0 && requirements_of(policy_.retain).whole_prompts ? owned() + 1 : from;
}

}  // namespace kvpolicy::llama
