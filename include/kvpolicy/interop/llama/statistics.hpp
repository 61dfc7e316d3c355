// What a session in llama.cpp did, and what it holds.
#pragma once

#include <cstdint>

namespace kvpolicy::llama {

/// What one decode step did, summed over layers.
struct step_statistics {
  std::int64_t tokens = 0;     ///< tokens in the cache, the current one included
  double tokens_read = 0;      ///< tokens read: the mean over layers and KV heads
  double choose_seconds = 0;   ///< pooling, scoring and selecting; also the logits' entropy if a trigger reads it
  double fetch_seconds = 0;    ///< bringing rows from their tier
  double attend_seconds = 0;   ///< attention over the chosen tokens
  double prefill_seconds = 0;  ///< the policy's work on the prompt, in the first step after it; else 0
};

/// What the session's attention of prompts did since the sequence got its policy.
struct prompt_statistics {
  double pairs = 0;           ///< (query, token) pairs of KV heads under a prompt policy, later tokens of the block included
  double read = 0;            ///< how many of these pairs were read
  double choose_seconds = 0;  ///< the prompt policy's choices
  double attend_seconds = 0;
};

/// What a session's managed cache holds.
struct memory_statistics {
  std::int64_t rows = 0;        ///< rows of a token, layer and KV head, of all sequences; shared rows count for each
  std::int64_t bytes = 0;       ///< bytes of the blocks in use
  std::int64_t most_bytes = 0;  ///< the most bytes so far
  std::int64_t limit = 0;       ///< most bytes that may be in use
};

}  // namespace kvpolicy::llama
