// The same steps in a managed cache: how long they take, and what a policy leaves to be held.
#pragma once

#include <kvpolicy/interop/llama.hpp>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "text_model.hpp"

namespace kvpolicy {

/// One policy's steps.
struct managed_steps {
  std::vector<double> ms;           ///< each but the first, which takes the prompt in
  std::vector<std::int64_t> bytes;  ///< held after each step
  tiers::resident_statistics tier{};
};

/// A context of few cells, and a tier where one was asked for. A prompt is decoded once, whole; each policy goes on from a copy
/// that shares its rows.
class managed_run {
 public:
  /// `longest`: tokens of a prompt and its steps. Throws unsupported for models that need the engine's cells.
  managed_run(run_options const& options, text_model const& model, std::int64_t longest, std::int64_t observation_queries);

  void prompt(std::vector<llama_token> const& tokens);
  managed_steps decode(host_policy const& policy, std::vector<llama_token> const& tokens);
  /// Tokens and bytes held, after each piece of the last prompt.
  nlohmann::ordered_json const& prompt_bytes() const noexcept { return prompt_bytes_; }

 private:
  void step(llama_token token, llama_pos position);

  std::optional<tiers::any_tier> tier_;
  llama::session session_;
  context_ptr context_;
  std::int64_t prompt_ = 0;  ///< tokens
  nlohmann::ordered_json prompt_bytes_;
};

}  // namespace kvpolicy
