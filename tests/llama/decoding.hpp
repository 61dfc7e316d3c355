// A context with or without a session, and the ordinary decode loop around it.
#pragma once

#include <llama.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "erased_presets.hpp"
#include "kvpolicy/interop/llama.hpp"

namespace kvpolicy::llama::testing {

using token_list = std::vector<llama_token>;
using logits = std::vector<float>;

struct context_options {
  std::uint32_t tokens = 1024;
  std::uint32_t batch = 1024;
  std::uint32_t micro_batch = 1024;
  std::int32_t threads = 1;
  ggml_type type = GGML_TYPE_F16;
  ggml_type value_type = GGML_TYPE_COUNT;  ///< as the keys'
  std::uint32_t sequences = 1;
  bool unified = false;
};

llama_context_params parameters(context_options const& options);

/// One context. `session` may be null: then it is the engine alone.
class decoder {
 public:
  decoder(llama_model* model, session* policy, context_options const& options = {});
  /// From parameters that the test has changed (or attached) itself.
  decoder(llama_model* model, llama_context_params const& params);

  llama_context* context() const noexcept { return context_.get(); }
  llama_memory_t memory() const noexcept { return llama_get_memory(context_.get()); }

  /// llama_decode's status; the tokens are appended to sequence 0.
  int status_of(token_list tokens);
  /// Appends the tokens to sequence 0 in one batch, and gives the last one's logits. Throws what stopped it.
  logits feed(token_list tokens);
  logits feed(llama_token token) { return feed(token_list{token}); }
  /// One batch of tokens that belong to the sequences beside them; llama_decode's status.
  int status_of(token_list const& tokens, std::vector<llama_seq_id> const& sequences);

  void clear() { llama_memory_clear(memory(), true); }
  /// Removes the tokens of sequence 0 from position `from` on.
  bool cut(llama_pos from) { return llama_memory_seq_rm(memory(), 0, from, -1); }
  std::vector<std::uint8_t> state() const;
  void restore(std::vector<std::uint8_t> const& state);

 private:
  struct context_deleter {
    void operator()(llama_context* context) const noexcept { llama_free(context); }
  };
  session* policy_ = nullptr;
  std::int32_t vocabulary_;
  std::unique_ptr<llama_context, context_deleter> context_;
};

/// `count` tokens below the tiny vocabulary; the same seed gives the same tokens, and a longer list begins with the shorter.
token_list random_tokens(std::int64_t count, std::uint64_t seed = 7);

/// A boundary table by which none of these tokens ends a sentence: the longest do.
std::vector<std::uint8_t> const& ends_by_length();

/// A chat prompt of a real model: notes from a journey of so many days.
token_list journey(llama_model const* model, std::size_t days);

/// The logits after each of `tokens`, which are decoded one by one.
std::vector<logits> decode_each(decoder& with, token_list const& tokens);

/// Equal to the bit; for checks that should not print a thousand numbers where they fail.
template <class T>
bool identical(T const& actual, T const& expected) {
  return actual == expected;
}

/// The largest difference, in units of the reference's standard deviation.
double difference(logits const& actual, logits const& reference);
/// The largest of them over steps.
double difference(std::vector<logits> const& actual, std::vector<logits> const& reference);

/// What a policy chose in one layer at one step: a range list for each list of the selection.
struct made_choice {
  std::int64_t layer = 0;
  std::int64_t tokens = 0;
  std::vector<range_list> lists;
  bool operator==(made_choice const&) const = default;
};

/// session_options that append every choice to `into`, which must outlive the session.
session_options recording(std::vector<made_choice>& into, std::int64_t observation_queries = 0);

}  // namespace kvpolicy::llama::testing
