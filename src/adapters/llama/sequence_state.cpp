// What is known of a sequence of a managed cache, as bytes that another session can load.
#include <utility>

#include "sequence.hpp"

namespace kvpolicy::llama {

/// The context's first graph runs.
void sequence::load_pending() {
  if (!state_.empty()) load_state(std::exchange(state_, {}));
}

/// What there is beside rows.
template <class Archive>
void sequence::archive(Archive& a) {
  a(due_from_, prefill_due_, steps_);
  request_->archive(a);
}

void sequence::save_state(state_writer& a) {
  std::int64_t tokens = rows_->sealed();
  a(tokens);
  if (tokens == 0) return;
  prompt_.forget(tokens);  // what a graph that failed brought
  saved_prompt saved = save();
  a(saved.tokens, saved.window, saved.queries, saved.ids, saved.fingerprints);
  archive(a);
  managed_->save(a);
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
  managed_->load(a, tokens, *request_, due_from_ == nothing_due);
  rows_->cells().expect(saved.fingerprints, 0);
  just_loaded_ = tokens;
}

}  // namespace kvpolicy::llama
