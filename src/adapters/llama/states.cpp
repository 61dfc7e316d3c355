// A sequence's rows in the managed cache, and what its policy knows, as bytes that outlive the process.
#include <cstring>
#include <string>

#include "engine.hpp"
#include "kvpolicy/version.hpp"

namespace kvpolicy::llama {
namespace {

constexpr char const* state_format = "kvpolicy " KVPOLICY_VERSION ", state 8";
constexpr std::size_t checksum_bytes = sizeof(std::uint64_t);

/// What a state is of, and must be of when it is read; each a line that a message can show.
struct state_header {
  std::vector<char> format;  ///< version of this library, and what follows
  std::vector<char> model;
  std::vector<char> cache;
  std::vector<char> policy;

  template <class Archive>
  void archive(Archive& a) {
    a(format, model, cache, policy);
  }
};

std::vector<char> line(std::string const& text) { return {text.begin(), text.end()}; }

/// Throws invalid_value where they differ.
void expect_same(char const* what, std::vector<char> const& saved, std::vector<char> const& here) {
  KVPOLICY_EXPECTS(saved == here, std::string("the state is of another ") + what + ": '" +
                                      std::string(saved.begin(), saved.end()).substr(0, 200) + "', here it is '" +
                                      std::string(here.begin(), here.end()) + "'");
}

/// Of all bytes but itself: damage by accident, not by intent.
std::uint64_t checksum(std::span<std::byte const> all) noexcept {
  std::uint64_t hash = 0x9e3779b97f4a7c15u + all.size();
  for (std::size_t at = 0; at < all.size(); at += sizeof hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, all.data() + at, std::min(sizeof word, all.size() - at));
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

std::vector<std::byte> session::engine::save_state(std::string const& policy, llama_seq_id of) {
  check_managed("a state of rows needs the session to have them: set session_options::cache, or save the engine's");
  check_rows_are_all();
  KVPOLICY_EXPECTS(attached_, "a state is of a model: attach the session first");
  std::vector<std::byte> made(checksum_bytes);
  state_writer a(made);
  state_header header{line(state_format), line(model_), line(cache()), line(policy)};
  a(header);
  std::span const pending = find(of) != nullptr ? find(of)->pending() : std::span<std::byte const>{};
  if (!pending.empty()) {
    made.insert(made.end(), pending.begin(), pending.end());
  } else if (sequence* const s = sequences_.find(of); s != nullptr && shape().max_tokens != 0) {
    s->save_state(a);
  } else {
    std::int64_t none = 0;
    a(none);
  }
  std::uint64_t const sum = checksum(std::span(made).subspan(checksum_bytes));
  std::memcpy(made.data(), &sum, sizeof sum);
  return made;
}

void session::engine::load_state(std::span<std::byte const> state, std::string const& policy, llama_seq_id of) {
  check_managed("a state of rows needs the session to have them: set session_options::cache, or save the engine's");
  check_rows_are_all();
  KVPOLICY_EXPECTS(attached_, "a state is of a model: attach the session first");
  std::uint64_t sum = 0;
  KVPOLICY_EXPECTS(state.size() > checksum_bytes, "a state of " + std::to_string(state.size()) + " bytes is cut, or none");
  std::memcpy(&sum, state.data(), sizeof sum);
  state = state.subspan(checksum_bytes);
  KVPOLICY_EXPECTS(sum == checksum(state), "the state is damaged: its checksum is another one than that of its bytes");
  state_reader a(state);
  state_header saved;
  a(saved);
  expect_same("version of kvpolicy", saved.format, line(state_format));
  expect_same("model", saved.model, line(model_));
  expect_same("cache", saved.cache, line(cache()));
  expect_same("policy", saved.policy, line(policy));
  sequences_.of(of).load_state(a.rest());
}

std::string session::engine::cache() const {
  return text_of(attached_shape_) + ", of " + std::to_string(attached_shape_.max_tokens) + " tokens at most";
}

void session::engine::check_rows_are_all() const {
  if (hybrid_ || windows_)
    throw unsupported(
        "a state of rows lacks what the engine has of this model: recurrent states, or layers with sliding windows");
}

void session::engine::check_managed(char const* what) const {
  if (storage_->engine_has_rows()) throw unsupported(what);
}

}  // namespace kvpolicy::llama
