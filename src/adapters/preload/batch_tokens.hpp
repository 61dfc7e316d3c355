// What a batch has, whatever its program has put it in.
#pragma once

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvpolicy::preload {

struct batch_tokens {
  std::vector<llama_seq_id> sequences{};  ///< the first one of each token
  std::vector<std::int8_t> outputs{};     ///< whether each has one; none: not known
  std::vector<llama_seq_id> others{};     ///< sequences that tokens have beside those
  std::vector<llama_token> ids{};         ///< of each token; -1: an embedding
  std::vector<llama_pos> positions{};     ///< of each token; -1: the engine's to find

  bool has_output(std::size_t token) const noexcept { return outputs.empty() || outputs[token] != 0; }
  void add(llama_seq_id of, llama_token id, llama_pos position = -1) {
    sequences.push_back(of);
    ids.push_back(id);
    positions.push_back(position);
  }
};

/// What a caller's batch has.
inline batch_tokens tokens_of(llama_batch const& batch) {
  batch_tokens made;
  for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
    std::int32_t const sequences = batch.seq_id != nullptr && batch.n_seq_id != nullptr ? batch.n_seq_id[i] : 0;
    made.add(sequences > 0 ? batch.seq_id[i][0] : 0, batch.token != nullptr ? batch.token[i] : -1,
             batch.pos != nullptr ? batch.pos[i] : -1);
    for (std::int32_t other = 1; other < sequences; ++other) made.others.push_back(batch.seq_id[i][other]);
    // Without logits the last token has an output, as in the engine.
    made.outputs.push_back(batch.logits != nullptr ? batch.logits[i] : static_cast<std::int8_t>(i + 1 == batch.n_tokens));
  }
  return made;
}

}  // namespace kvpolicy::preload
