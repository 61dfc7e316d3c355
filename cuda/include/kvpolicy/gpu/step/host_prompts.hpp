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
        known_(static_cast<std::size_t>(sequences)),
        tokens_(static_cast<std::size_t>(sequences)) {}

  /// The verb of that name, on a fresh state where a prompt begins. Throws invalid_value where none has begun.
  template <class View, class Exec>
  request_of<Policy>& prefill(prompt_piece<View> const& piece, Exec& exec) {
    auto const s = static_cast<std::size_t>(piece.sequence);
    if (piece.layer.value == 0 && piece.prompt.first == 0) states_[s].emplace(start(policy_, shape_));
    if (!states_[s]) {
      throw invalid_value("sequence " + std::to_string(s) + " has no prompt yet; begin it with layer 0 and first = 0");
    }
    prompt_signals all = piece.prompt;  // tokens of the steps since are new to the host's request
    if (piece.layer.value == 0) known_[s] = piece.prompt.first == 0 ? 0 : std::min(piece.prompt.first, tokens_[s]);
    all.first = known_[s];
    states_[s]->prefill(piece.view, piece.layer, all, exec);
    tokens_[s] = piece.prompt.repeats.empty() ? piece.view.tokens() : piece.prompt.first;
    return *states_[s];
  }
  /// Before layer 0 of a piece: gives the state what steps brought since the last prompt as a prompt of their own, where the
  /// state must know that they are none of the piece.
  template <class View, class Exec>
  void catch_up(prompt_piece<View> const& piece, Exec& exec) {
    auto const s = static_cast<std::size_t>(piece.sequence);
    if (!states_[s] || piece.prompt.first <= tokens_[s]) return;
    for (std::int64_t l = 0; l < shape_.layers; ++l)
      states_[s]->prefill(piece.view.first(piece.prompt.first), {l}, {.first = tokens_[s]}, exec);
    tokens_[s] = piece.prompt.first;
  }
  /// A sequence's state, for a rule whose own verbs it follows steps by; it then has so many tokens.
  request_of<Policy>& state(std::int64_t sequence) noexcept { return *states_[static_cast<std::size_t>(sequence)]; }
  void follows(std::int64_t sequence, std::int64_t tokens) noexcept { tokens_[static_cast<std::size_t>(sequence)] = tokens; }
  /// Tokens that a sequence's state has.
  std::int64_t tokens(std::int64_t sequence) const noexcept { return tokens_[static_cast<std::size_t>(sequence)]; }
  request_of<Policy> const& operator[](std::int64_t sequence) const noexcept {
    return *states_[static_cast<std::size_t>(sequence)];
  }

 private:
  Policy policy_;
  cache_shape shape_;
  std::vector<std::optional<request_of<Policy>>> states_;
  std::vector<std::int64_t> known_;   ///< first token that is new to each
  std::vector<std::int64_t> tokens_;  ///< that each has
};

}  // namespace kvpolicy::gpu::detail
