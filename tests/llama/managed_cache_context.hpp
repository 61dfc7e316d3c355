// A context whose session has a managed cache.
#pragma once

#include <catch2/catch_test_macros.hpp>
#include <utility>
#include <vector>

#include "decoding.hpp"
#include "kvpolicy/interop/llama.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {

/// A context with a session that has a managed cache, fed by session::decode.
class owner {
 public:
  template <class Policy>
  owner(Policy const& policy, context_options const& context, managed_cache cache = {}, tiny_shape const& shape = {},
        session_options options = {})
      : model_(tiny_llama(shape)),
        session_(policy, with(std::move(cache), std::move(options))),
        engine_(model_.get(), &session_, context) {}

  session& own() noexcept { return session_; }
  decoder& engine() noexcept { return engine_; }

  int status_of(token_list tokens, llama_seq_id of = 0, llama_pos from = -1) {
    std::vector<llama_seq_id> ids(tokens.size(), of);
    std::vector<llama_seq_id*> sequences;
    std::vector<std::int32_t> ones(tokens.size(), 1);
    std::vector<llama_pos> positions;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      sequences.push_back(&ids[i]);
      positions.push_back(from + static_cast<llama_pos>(i));
    }
    llama_batch const all{static_cast<std::int32_t>(tokens.size()),
                          tokens.data(),
                          nullptr,
                          from < 0 ? nullptr : positions.data(),
                          ones.data(),
                          sequences.data(),
                          nullptr};
    return session_.decode(engine_.context(), all);
  }
  logits feed(token_list tokens, llama_seq_id of = 0, llama_pos from = -1) {
    int const status = status_of(std::move(tokens), of, from);
    session_.check();
    REQUIRE(status == 0);
    float const* const last = llama_get_logits_ith(engine_.context(), -1);
    return {last, last + tiny_vocabulary};
  }
  std::int64_t cells_used() const {
    return llama_memory_seq_pos_max(engine_.memory(), 0) - llama_memory_seq_pos_min(engine_.memory(), 0) + 1;
  }

 private:
  static session_options with(managed_cache cache, session_options options) {
    if (cache.longest == 0) cache.longest = 4096;
    options.cache = std::move(cache);
    return options;
  }
  model_owner model_;
  session session_;
  decoder engine_;
};

}  // namespace kvpolicy::llama::testing
