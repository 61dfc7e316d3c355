// What one request did, for a line of the log.
#pragma once

#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/interop/llama/lossless.hpp>

#include <cstdint>
#include <string>

namespace kvpolicy::preload {

/// Sums over what a sequence was given since its last request ended.
struct request_statistics {
  std::int64_t prompt = 0;  ///< tokens that came as prompts
  std::int64_t steps = 0;
  std::int64_t left = 0;  ///< of them, those that were left to the engine
  double tokens = 0;      ///< in the cache, over steps
  double read = 0;        ///< of them
  double choose_seconds = 0;
  double fetch_seconds = 0;  ///< from a tier
  double attend_seconds = 0;
  std::int64_t bytes = 0;  ///< that its rows take, at last

  void add(llama::step_statistics const& step, bool was_left) noexcept;
};

/// Of a request with steps: "sequence 0: prompt of 6981 tokens, 24 steps; a step read 544 of 6993 tokens (7.8%), ..."
std::string describe(llama_seq_id sequence, request_statistics const& request);

/// Of one whose steps were lossless, from a state on: "sequence 0: 128 tokens in 20 rounds, 108 of 140 drafts were right".
std::string describe(llama_seq_id sequence, llama::lossless_statistics const& now, llama::lossless_statistics const& before);

}  // namespace kvpolicy::preload
