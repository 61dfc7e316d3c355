// Lossless decoding for a program that knows nothing of drafts: it decodes a token of each sequence, and reads the logits.
#pragma once

#include <kvpolicy/interop/llama/lossless.hpp>

#include <cstdint>
#include <span>
#include <vector>

#include "batch_tokens.hpp"

namespace kvpolicy::preload {

class lossless_steps {
 public:
  /// Throws what llama::lossless throws.
  lossless_steps(llama::session& with, llama_context* context, llama::lossless_options const& options)
      : steps_(with, context, options),
        sequences_(static_cast<llama_seq_id>(llama_n_seq_max(context))),
        vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)))) {}

  /// Whether a batch is one token of each of its sequences, each at its sequence's end and with an output.
  bool takes(batch_tokens const& batch) const;
  /// Decodes such a batch in the engine's place. Throws what llama::lossless throws.
  void decode(batch_tokens const& batch);
  /// Removes the drafts that wait from the engine's memory: the program is about to do something else with it.
  void settle() { steps_.settle_all(); }
  /// Whether these adapters, with their scales, are others than those of the last call.
  bool changes(std::span<llama_adapter_lora* const> adapters, std::span<float const> scales);
  /// The engine decodes a batch itself: drafts are removed, and its logits are its own to give.
  void leave() {
    rows_.clear();
    settle();
  }
  /// The program wants embeddings of what it decodes, or no more.
  void want_embeddings(bool wanted) {
    embeddings_ = wanted;
    if (wanted) settle();
  }

  /// Whether the logits of the last batch are here.
  bool has_logits() const noexcept { return !rows_.empty(); }
  /// What the engine would give for a token of the last batch, below 0 from the end; null where that is its own to say.
  float* logits(std::int32_t index);
  /// The same of all tokens.
  float* all_logits();
  llama::lossless_statistics statistics(llama_seq_id of) const noexcept { return steps_.statistics(of); }

 private:
  llama::lossless steps_;
  llama_seq_id sequences_;
  std::int32_t vocabulary_;
  bool embeddings_ = false;
  std::vector<llama_seq_id> rows_;  ///< of each token of the last batch; none: the engine decoded it
  std::vector<llama_adapter_lora*> adapters_;
  std::vector<float> scales_;  ///< of each
  std::vector<float> all_;     ///< `[tokens, vocabulary]`, where they were asked for
};

}  // namespace kvpolicy::preload
