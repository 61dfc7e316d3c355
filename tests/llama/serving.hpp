// A context that several sequences share, decoded as a server does.
#pragma once

#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "decoding.hpp"

namespace kvpolicy::llama::testing {

/// Decodes batches of several sequences, every token with logits; what each sequence's tokens gave.
class server {
 public:
  server(llama_model* model, session* policy, context_options const& options)
      : policy_(policy), decoder_(model, policy, options), vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))) {}

  struct part {
    llama_seq_id sequence = 0;
    token_list tokens;
  };

  /// One batch, the parts one after the other; the last token's logits of each.
  std::vector<logits> decode(std::vector<part> const& parts, bool sets_batch = true) {
    std::size_t count = 0;
    for (part const& p : parts) count += p.tokens.size();
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(count), 0, 1);
    std::vector<std::int32_t> last;
    for (part const& p : parts) {
      llama_pos position = llama_memory_seq_pos_max(decoder_.memory(), p.sequence) + 1;
      for (llama_token const& token : p.tokens) {
        auto const at = static_cast<std::size_t>(batch.n_tokens++);
        batch.token[at] = token;
        batch.pos[at] = position++;
        batch.n_seq_id[at] = 1;
        batch.seq_id[at][0] = p.sequence;
        batch.logits[at] = &token == &p.tokens.back();
      }
      last.push_back(batch.n_tokens - 1);
    }
    if (policy_ != nullptr && sets_batch) policy_->set_batch(batch);
    int const status = llama_decode(decoder_.context(), batch);
    llama_batch_free(batch);
    if (policy_ != nullptr) policy_->check();
    REQUIRE(status == 0);
    std::vector<logits> all;
    for (std::int32_t const at : last) {
      float const* const values = llama_get_logits_ith(decoder_.context(), at);
      all.emplace_back(values, values + vocabulary_);
    }
    return all;
  }
  llama_memory_t memory() const noexcept { return decoder_.memory(); }
  decoder& with() noexcept { return decoder_; }

 private:
  session* policy_;
  decoder decoder_;
  std::int32_t vocabulary_;
};

}  // namespace kvpolicy::llama::testing
