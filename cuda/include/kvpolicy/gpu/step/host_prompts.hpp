// What the four verbs' own parts decide of each sequence's prompt, on the host.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kvpolicy/gpu/step/context.hpp"

namespace kvpolicy::gpu::detail {

/// The host's states of each sequence's prompt, where rules are decided by the four verbs' own parts.
template <class Policy>
class host_prompts {
 public:
  host_prompts(Policy const& policy, cache_shape const& shape, std::int64_t sequences)
      : policy_(policy),
        shape_(shape),
        states_(static_cast<std::size_t>(sequences)),
        known_(static_cast<std::size_t>(sequences)) {}

  /// The verb of that name, on a fresh state where a prompt begins. Throws invalid_value where none has begun.
  template <class View, class Exec>
  request_of<Policy>& prefill(prompt_piece<View> const& piece, Exec& exec) {
    auto const s = static_cast<std::size_t>(piece.sequence);
    if (piece.layer.value == 0 && piece.prompt.first == 0) states_[s].emplace(start(policy_, shape_));
    if (!states_[s]) {
      throw invalid_value("sequence " + std::to_string(s) + " has no prompt yet; begin it with layer 0 and first = 0");
    }
    prompt_signals all = piece.prompt;  // tokens of the steps since are new to the host's request
    if (piece.layer.value == 0) known_[s] = std::min(piece.prompt.first, states_[s]->tokens());
    all.first = known_[s];
    states_[s]->prefill(piece.view, piece.layer, all, exec);
    return *states_[s];
  }
  request_of<Policy> const& operator[](std::int64_t sequence) const noexcept {
    return *states_[static_cast<std::size_t>(sequence)];
  }

 private:
  Policy policy_;
  cache_shape shape_;
  std::vector<std::optional<request_of<Policy>>> states_;
  std::vector<std::int64_t> known_;  ///< first token that is new to each
};

}  // namespace kvpolicy::gpu::detail
