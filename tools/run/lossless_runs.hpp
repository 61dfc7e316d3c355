// Lossless decoding in a comparison: how long it took, and whether it decoded what full decodes.
#pragma once

#include <kvpolicy/interop/llama/lossless.hpp>

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

namespace kvpolicy {

nlohmann::ordered_json lossless_json(llama::lossless_statistics const& of);

/// The runs of all prompts; full's greedy answer to a prompt comes first.
class lossless_runs {
 public:
  void begin(llama_token first);
  /// Full's last token so far.
  llama_token expected() const noexcept { return full_.back(); }
  /// Full's logits behind it.
  void expect(std::span<float const> logits);

  /// One run: milliseconds a token, the mean of its answer.
  void add(double ms, llama::lossless_statistics const& statistics);
  /// The tokens of one run beside full's.
  void compare(std::span<llama_token const> tokens);

  /// `baseline`: milliseconds of a dense step.
  nlohmann::ordered_json result(double baseline) const;

 private:
  std::vector<llama_token> full_;
  std::vector<float> gaps_;  ///< between full's two likeliest logits, by token
  std::vector<double> ms_;
  llama::lossless_statistics last_{};
  std::int64_t compared_ = 0;    ///< tokens
  std::int64_t equal_ = 0;       ///< of them, those before the first that differs
  std::vector<float> apart_at_;  ///< the gaps where one differs
};

}  // namespace kvpolicy
