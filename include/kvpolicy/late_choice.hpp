// A choice that waits for the answer's first tokens: what the prompt told, and what is observed until the choice is due.
#pragma once

#include <algorithm>
#include <vector>

#include "kvpolicy/observed_queries.hpp"
#include "kvpolicy/signals.hpp"

namespace kvpolicy {

/// Of each layer: whether it waits, until when, and the prompt as it will look then, the answer's first tokens included.
class late_choice {
 public:
  /// Nothing waits.
  late_choice() = default;
  /// Waits for `after` tokens behind each prompt; the last `window` queries will be looked at, or none.
  late_choice(std::int64_t after, std::int64_t window, cache_shape const& shape)
      : after_(after),
        window_(window),
        observed_(shape.layers, window == 0 ? 0 : window + after, shape),
        due_at_(static_cast<std::size_t>(shape.layers), never) {
    frequency_.reserve(static_cast<std::size_t>(shape.head_dim / 2));
  }

  bool in_use() const noexcept { return after_ > 0; }
  bool waits(layer_id layer) const noexcept { return in_use() && due_at_[at(layer)] != never; }

  /// The prompt's `tokens` tokens are there in this layer.
  void begin(layer_id layer, prompt_signals const& prompt, std::int64_t tokens) {
    if (window_ > 0) observed_.begin(at(layer), last_queries(&prompt, window_), tokens);
    due_at_[at(layer)] = tokens + after_;
    frequency_.assign(prompt.rope.inverse_frequency, prompt.rope.inverse_frequency + prompt.rope.pairs);
    pairing_ = prompt.rope.how;
  }

  /// The layer waits, and the last of its `tokens` tokens has these queries.
  void add(layer_id layer, query_heads const& queries, std::int64_t tokens) {
    if (window_ > 0) observed_.add(at(layer), queries, tokens - 1);
  }
  bool due(layer_id layer, std::int64_t tokens) const noexcept { return waits(layer) && tokens >= due_at_[at(layer)]; }
  /// The choice was made.
  void end(layer_id layer) noexcept { due_at_[at(layer)] = never; }

  /// What prefill is told of the prompt and the tokens that were waited for. `there`: what is there of the `tokens` tokens,
  /// copied where some are gone. Holds until the next call.
  prompt_signals prompt(layer_id layer, std::span<range_list const> there, std::int64_t tokens) {
    there_.clear();
    if (!std::ranges::all_of(there, [&](range_list const& list) { return token_count(list) == tokens; }))
      there_.assign(there.begin(), there.end());
    return {.first = tokens,
            .queries = window_ > 0 ? observed_.last(at(layer), window_) : query_window{},
            .rope = {.inverse_frequency = frequency_.data(), .pairs = std::ssize(frequency_), .how = pairing_},
            .there = there_};
  }

  /// Forgets every token from `tokens` on: what of the prompt is left waits for as many as before.
  void truncate(std::int64_t tokens) noexcept {
    for (std::int64_t& due : due_at_) {
      if (due != never) due = tokens == 0 ? never : std::min(due, tokens + after_);
    }
  }

  template <class Archive>
  void archive(Archive& a) {
    a(observed_, due_at_, frequency_, pairing_);
  }

 private:
  static constexpr std::int64_t never = -1;
  static std::size_t at(layer_id layer) noexcept { return static_cast<std::size_t>(layer.value); }

  std::int64_t after_ = 0;   ///< tokens
  std::int64_t window_ = 0;  ///< queries
  observed_queries observed_;
  std::vector<std::int64_t> due_at_;  ///< `[layers]` tokens of the sequence then; `never`
  std::vector<float> frequency_;      ///< of the rotary embedding that the prompt told
  rotation::pairing pairing_ = rotation::pairing::halves;
  std::vector<range_list> there_;
};

}  // namespace kvpolicy
