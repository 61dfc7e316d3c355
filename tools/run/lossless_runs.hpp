// Lossless decoding in a comparison: how long it took, and whether it decoded what full decodes.
#pragma once

#include <kvpolicy/interop/llama/lossless.hpp>

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

namespace kvpolicy {

/// `drafts`: always so many; none: as many as pay.
llama::lossless_options lossless_options_of(std::optional<int> drafts);
nlohmann::ordered_json lossless_json(llama::lossless_statistics const& of);

/// The runs of all prompts; full's greedy answer to a prompt comes first.
class lossless_runs {
 public:
  void begin(llama_token first);
  /// Full's tokens so far.
  std::span<llama_token const> full() const noexcept { return full_; }
  /// Full's logits behind it.
  void expect(std::span<float const> logits);

  /// One run over full's tokens: milliseconds a token, the mean of its answer.
  void add(double ms) { ms_.push_back(ms); }
  /// The likeliest tokens of one run beside full's.
  void compare(std::span<llama_token const> tokens, llama::lossless_statistics const& statistics);

  /// `baseline`: milliseconds of a dense step.
  nlohmann::ordered_json result(double baseline) const;

 private:
  std::vector<llama_token> full_;
  std::vector<float> gaps_;  ///< between full's two likeliest logits, by token
  std::vector<double> ms_;
  llama::lossless_statistics all_{};
  std::int64_t compared_ = 0;    ///< tokens
  std::vector<float> apart_at_;  ///< the gaps where one differs
};

}  // namespace kvpolicy
