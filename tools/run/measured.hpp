// What a comparison measured of one way to decode, and what follows from that.
#pragma once

#include <kvpolicy/interop/llama.hpp>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "managed_run.hpp"

namespace kvpolicy {

/// What was measured of one way to decode, over all prompts and rounds.
struct measured {
  double prompt_ms = 0;    ///< until the first prompt's first token
  std::vector<double> ms;  ///< each step's, round by round, but for the first after a prompt
  double seconds = 0;      ///< of those steps
  double choose = 0;
  double attend = 0;
  double read = 0;
  double share = 0;
  double kl = 0;
  managed_steps managed;
  std::int64_t agreed = 0;
  double gap = 0;  ///< of steps that did not agree: how far below the best the dense logits have the policy's token, at most
  std::int64_t compared = 0;
  std::vector<double> prefill_ms;
  std::vector<double> first_ms;
  std::size_t first_prompts_steps = 0;  ///< how many of `ms` are the first prompt's; 0: all
  std::size_t first_prompts_runs = 0;   ///< how many of `first_ms` are
  std::vector<std::string> answers;
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  nlohmann::ordered_json kept;     ///< the first prompt's picture
  nlohmann::ordered_json at_work;  ///< of the first prompt's free run
  nlohmann::ordered_json mass;     ///< of the first prompt's dense tokens
};

/// Mean of log p(dense) - log p(policy) under the dense distribution, in nats.
double divergence(std::span<float const> dense, std::span<float const> other);

/// Milliseconds of a step, and how many times as fast that is as `baseline`.
nlohmann::ordered_json timing_json(measured const& of, double baseline);

/// Milliseconds of the first prompt and the `predict` tokens behind it: its last logits are the first token's.
double request_ms(measured const& of, int predict);

/// Shares of the first prompt and a mean prompt's steps: attention, what the policy spends on its choices, and all the rest,
/// most of which is the products with the model's weights.
nlohmann::ordered_json request_split(measured const& of, llama::prompt_statistics const& prompt, int predict);

/// Of rows that the session held; null where it held none. `prompt`: tokens and bytes after each piece of the prompt.
nlohmann::ordered_json managed_json(managed_steps const& of, double baseline, nlohmann::ordered_json const& prompt);

}  // namespace kvpolicy
