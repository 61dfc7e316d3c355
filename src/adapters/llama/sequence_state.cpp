// What is known of a sequence of a managed cache, as bytes that another session can load.
#include <utility>

#include "sequence.hpp"

namespace kvpolicy::llama {

/// The context's first graph runs.
void sequence::load_pending() {
  if (pending().empty()) return;
  std::vector<std::byte> const state = std::move(std::get<fresh>(state_).rows);
  state_ = prompting{};
  load_state(state);
}

/// What there is beside rows.
template <class Archive>
void sequence::archive(Archive& a) {
  std::int64_t from = unseen().from;
  a(from, steps_);
  if constexpr (Archive::reads) {
    if (from < 0) Archive::refuse();
    set_unseen({from});
  }
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
    std::get<fresh>(state_).rows.assign(state.begin(), state.end());
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
  managed_->load(a, tokens, *request_, unseen().from == prompting::none);
  rows_->cells().expect(saved.fingerprints, 0);
  just_loaded_ = tokens;
}

}  // namespace kvpolicy::llama
