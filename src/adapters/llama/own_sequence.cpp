// A sequence whose rows are the session's own: which tokens it has, taking rows in, and letting them go.
#include <algorithm>
#include <string>
#include <utility>

#include "sequence.hpp"

namespace kvpolicy::llama {

/// With a managed cache, a token comes behind as many as its position says; the few that the engine still has tell whose they
/// are.
void sequence::follow_staged(seen_cells const& now, std::span<std::unique_ptr<sequence> const> others) {
  if (cells_.continues(now)) {
    cells_.cut(now.position, now.stream);
    if (resident_) resident_->truncate(now.position);
    store_->truncate(now.position);
    return forget(now.position);
  }
  auto const has_them = [&](auto const& other) {
    return other != nullptr && other.get() != this && other->store_ && !now.visible.empty() && other->cells_.continues(now);
  };
  auto const other = std::ranges::find_if(others, has_them);
  if (other == others.end()) {
    throw unsupported("token " + std::to_string(now.position) + " of sequence " + std::to_string(id_) +
                      " comes behind tokens whose rows the session does not have: it has " +
                      std::to_string(std::ssize(cells_.known())) +
                      " tokens of this sequence, and no other has those that the engine still holds");
  }
  take_over(**other, now.position, now.stream);
}

/// A copy of a sequence, rows shared; with the same policy, what that knows too.
void sequence::take_over(sequence const& other, std::int64_t tokens, std::int64_t stream) {
  row_store forked = other.store_->fork(tokens);
  if (resident_) resident_->truncate(0);
  *store_ = std::move(forked);
  try {
    if (resident_) resident_->take_over(*other.resident_, tokens);
  } catch (...) {
    end();
    throw;
  }
  state_.clear();
  just_loaded_ = other.just_loaded_ == tokens ? tokens : 0;
  goes_on_from_ = other.goes_on_from_;
  cells_.take_over(other.cells_, tokens, stream);
  forget_all();
  prompt_.take_over(other.prompt_, tokens);
  if (policy_.retain != other.policy_.retain || policy_.retrieve != other.policy_.retrieve) return;
  request_ = other.request_;
  due_from_ = other.due_from_;
  prefill_due_ = other.prefill_due_;
  if (due_from_ >= tokens) due_from_ = nothing_due, std::ranges::fill(prefill_due_, 0);  // a prompt that came behind the copy
  forget(tokens);
}

/// What the graph wrote of a layer, where rows are the session's own.
void sequence::take_rows(layer_id layer) {
  if (!store_ || store_->tokens(layer) == tokens()) return;
  auto const at = static_cast<std::size_t>(layer.value);
  store_->append(layer, keys_[at], values_[at]);
}

/// What the policy retains of a prompt goes to the tier, but for what its steps look at whatever is chosen.
void sequence::put_away(layer_id layer, std::int64_t tokens) {
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) stay_[static_cast<std::size_t>(h)] = request_->always_read(layer, h);
  resident_->put_away(layer, request_->retained(layer), tokens, stay_);
}

/// Units that a cut has opened again are read in every layer.
void sequence::mend_cut() {
  for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) resident_->bring(layer);
  resident_->mend_cut(requirements_.unit);
}

/// Of the first tokens, those that a policy does not retain. Behind them are those whose queries are kept: who scores by these
/// takes the last rows for theirs.
void sequence::drop_rows(host_request const& by, std::int64_t tokens) {
  for (layer_id layer{0}; layer.value < shape_.layers && tokens > 0; ++layer.value) {
    store_->retain(layer, by.retained(layer), tokens);
  }
  // The text that was seen ends before the step's token; its last token may come once more.
  if (!store_->whole()) goes_on_from_ = std::max<std::int64_t>(this->tokens() - 2, 0);
}

/// What a layer has of the first tokens, for those who attend to all of it.
selection sequence::resident(layer_id layer, std::int64_t tokens) {
  if (!store_ || store_->whole()) {
    lists_.front().assign(1, {0, static_cast<std::int32_t>(tokens)});
    return {scope::request, std::span(lists_).first(1), shape_.kv_heads};
  }
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) store_->list(layer, h, tokens, lists_[static_cast<std::size_t>(h)]);
  return {scope::head, lists_, shape_.kv_heads};
}

/// What drops rows between pieces decides now, for all layers: a graph that fails in the middle has dropped nothing.
void sequence::end_prompt(float scale, simd_exec& exec) {
  if (pieces_) {
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      prompt_signals given = prompt_of(layer, tokens(), scale);
      given.first = 0;  // it has seen no steps, and needs no more than what is there
      given.token_ids = {};
      pieces_->prefill(view_of(tokens()), layer, given, exec);
    }
    drop_rows(*pieces_, tokens() - prompt_.room());
  }
  if (unordered_) cells_.forget();
  else cells_.seal();
  just_loaded_ = 0;
}

void sequence::end() noexcept {
  state_.clear();
  just_loaded_ = 0;
  if (!store_) return;
  if (resident_) resident_->truncate(0);
  store_->clear();
  cells_.forget();
  goes_on_from_ = 0;
  forget_all();
}

std::int64_t sequence::goes_on_from() const noexcept {
  if (!state_.empty()) return std::max<std::int64_t>(just_loaded_ - 1, 0);  // what it dropped is not known yet
  if (goes_on_from_ > 0 && requirements_of(policy_.retain).whole_prompts) return own_tokens() + 1;
  return goes_on_from_;
}

std::int64_t sequence::own_tokens() const noexcept {
  if (!state_.empty()) return just_loaded_;
  return store_ ? sealed() : 0;
}

void sequence::cut(std::int64_t tokens) noexcept {
  if (tokens >= own_tokens()) return;
  just_loaded_ = tokens;
  if (!state_.empty()) return;
  try {
    if (resident_) resident_->truncate(tokens);
  } catch (...) {
    return end();
  }
  store_->truncate(tokens);
  cells_.cut(tokens, cells_.stream());
  forget(tokens);
}

memory_statistics sequence::memory() const noexcept {
  if (!store_) return {};
  return {.rows = store_->rows_held(), .bytes = store_->bytes_held()};
}

void sequence::check_use() const {
  KVPOLICY_EXPECTS(state_.empty(), "a state was loaded for sequence " + std::to_string(id_) +
                                       ", with the policy that it had then; call use() before load_state()");
}

/// The context's first graph runs.
void sequence::load_pending() {
  if (!state_.empty()) load_state(std::exchange(state_, {}));
}

/// What there is beside rows.
template <class Archive>
void sequence::archive(Archive& a) {
  a(due_from_, prefill_due_, steps_, goes_on_from_);
  request_->archive(a);
}

void sequence::save_state(state_writer& a) {
  std::int64_t tokens = sealed();
  a(tokens);
  if (tokens == 0) return;
  if (resident_) resident_->truncate(tokens);
  store_->truncate(tokens);  // what a graph that failed brought
  prompt_.forget(tokens);
  saved_prompt saved = save();
  a(saved.tokens, saved.window, saved.queries, saved.ids, saved.fingerprints);
  archive(a);
  for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
    if (resident_) resident_->bring(layer);
    store_->save(layer, a);
    if (resident_) resident_->shed(layer);
  }
}

void sequence::load_state(std::span<std::byte const> state) {
  if (shape_.max_tokens == 0) {
    state_.assign(state.begin(), state.end());
    state_reader a(state);
    a(just_loaded_);
    return;
  }
  end();
  request_.emplace(start(policy_, shape_));  // whose tables have their sizes, and whose lists are empty
  state_reader a(state);
  try {
    load_all(a);
    if (!a.rest().empty()) state_reader::refuse();
  } catch (...) {
    end();
    request_.emplace(start(policy_, shape_));
    throw;
  }
}

void sequence::load_all(state_reader& a) {
  std::int64_t tokens = 0;
  a(tokens);
  if (tokens == 0) return;
  saved_prompt saved;
  a(saved.tokens, saved.window, saved.queries, saved.ids, saved.fingerprints);
  if (tokens < 0 || tokens != std::ssize(saved.fingerprints)) state_reader::refuse();
  prompt_.load(saved);
  archive(a);
  if (std::ssize(prefill_due_) != shape_.layers) state_reader::refuse();
  for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
    store_->load(layer, a);
    if (store_->tokens(layer) != tokens) state_reader::refuse();
    if (!resident_ || due_from_ != nothing_due) continue;
    put_away(layer, tokens);
    resident_->shed(layer);
  }
  cells_.expect(saved.fingerprints, 0);
  just_loaded_ = tokens;
}

}  // namespace kvpolicy::llama
