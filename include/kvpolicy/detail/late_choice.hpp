// A choice that waits for the answer's first tokens: the prompt's signals, and the queries observed until the choice is due.
#pragma once

#include <algorithm>
#include <vector>

#include "kvpolicy/detail/observed_queries.hpp"
#include "kvpolicy/signals.hpp"

namespace kvpolicy {

/// Which layers wait, until when, and the prompt as it will look then, the answer's first tokens included.
class late_choice {
 public:
  /// Nothing waits.
  late_choice() = default;
  /// Waits for `after` tokens behind each prompt; the last `window` queries will be looked at, or none.
  late_choice(std::int64_t after, std::int64_t window, cache_shape const& shape)
      : after_(after),
        window_(window),
        observed_(shape.layers, window == 0 ? 0 : window + after, shape),
        waits_(static_cast<std::size_t>(shape.layers)),
        resident_(static_cast<std::size_t>(shape.layers)) {
    frequency_.reserve(static_cast<std::size_t>(shape.head_dim / 2));
  }

  bool in_use() const noexcept { return after_ > 0; }
  bool waits(layer_id layer) const noexcept { return in_use() && waits_[at(layer)] != 0; }
  bool due(layer_id layer, std::int64_t tokens) const noexcept { return waits(layer) && tokens >= due_at_; }

  /// The prompt's `tokens` tokens are there in this layer.
  void begin(layer_id layer, prompt_signals const& prompt, std::int64_t tokens) {
    if (window_ > 0) observed_.begin(at(layer), last_queries(&prompt, window_), tokens);
    resident_[at(layer)].assign(prompt.resident.begin(), prompt.resident.end());
    if (prompt.rope.inverse_frequency != nullptr) {
      frequency_.assign(prompt.rope.inverse_frequency, prompt.rope.inverse_frequency + prompt.rope.pairs);
      pairing_ = prompt.rope.how;
    }
    waits_[at(layer)] = 1;
    due_at_ = tokens + after_;
  }
  /// The layer waits, and the last of its `tokens` tokens has these queries.
  void add(layer_id layer, query_heads const& queries, std::int64_t tokens) {
    if (window_ > 0) observed_.add(at(layer), queries, tokens - 1);
    for (range_list& list : resident_[at(layer)]) append(list, tokens - 1, tokens, reason::open);
  }
  /// The signals for a prefill over the prompt and the tokens that were waited for. Valid until the next call.
  prompt_signals prompt(layer_id layer, std::int64_t tokens) {
    return {.first = tokens,
            .queries = window_ > 0 ? observed_.last(at(layer), window_) : query_window{},
            .rope = {.inverse_frequency = frequency_.data(), .pairs = std::ssize(frequency_), .how = pairing_},
            .resident = resident_[at(layer)]};
  }
  /// The choice was made.
  void end(layer_id layer) noexcept { waits_[at(layer)] = 0; }

  /// Forgets every token from `tokens` on: what of the prompt is left waits for as many as before.
  void truncate(std::int64_t tokens) {
    due_at_ = std::min(due_at_, tokens + after_);
    if (tokens == 0) std::ranges::fill(waits_, 0);
    for (std::vector<range_list>& lists : resident_) {
      for (range_list& list : lists) kvpolicy::truncate(list, tokens);
    }
  }

  template <class Archive>
  void archive(Archive& a) {
    a(observed_, waits_, due_at_, resident_, frequency_, pairing_);
  }

 private:
  static std::size_t at(layer_id layer) noexcept { return static_cast<std::size_t>(layer.value); }

  std::int64_t after_ = 0;   ///< tokens
  std::int64_t window_ = 0;  ///< queries
  observed_queries observed_;
  std::vector<char> waits_;                        ///< `[layers]`
  std::int64_t due_at_ = 0;                        ///< tokens of the sequence then
  std::vector<std::vector<range_list>> resident_;  ///< `[layers]` as in prompt_signals, with the later tokens
  std::vector<float> frequency_;                   ///< of the prompt's rotary embedding
  rotation::pairing pairing_ = rotation::pairing::halves;
};

}  // namespace kvpolicy
