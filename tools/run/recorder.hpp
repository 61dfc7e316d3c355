// Watches what a policy chooses: for --trace, and for the picture of what was kept over time.
#pragma once

#include <kvpolicy/interop/llama.hpp>

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "movement.hpp"

namespace kvpolicy {

/// Handed to a session as its on_choice. Off until started.
class recorder {
 public:
  /// Records the next steps under this policy's name, behind a prompt of so many tokens of `tokens` in the end; `trace` may be
  /// null, `bins` 0.
  void start(std::string policy, std::string name, std::int64_t prompt, std::ostream* trace, std::int64_t bins,
             std::int64_t tokens);
  void stop() noexcept { on_ = false; }
  void operator()(layer_id layer, std::int64_t tokens, selection const& kept);

  /// `[steps][bins]`: the share of a bin's tokens that was read, in percent, mean over layers and heads.
  nlohmann::json picture(std::int64_t layers) const;

  /// What the policy's own idea did since it was started: what a session tells of it, and how what it reads moved.
  nlohmann::ordered_json at_work(llama::session const& session) const;

 private:
  bool on_ = false;
  std::string policy_;
  std::string prompt_;
  std::ostream* trace_ = nullptr;
  std::int64_t step_ = -1;
  std::int64_t bin_tokens_ = 0;
  movement moved_;
  std::vector<std::vector<double>> shares_;  ///< `[steps][bins]`, summed over layers
};

}  // namespace kvpolicy
