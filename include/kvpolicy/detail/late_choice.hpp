// A choice that waits for the answer's first tokens: the prompt's signals, and the queries observed until the choice is due.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
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
        observed_(shape.layers, window == 0 ? 0 : window + after + 1, shape),
        waits_(static_cast<std::size_t>(shape.layers)),
        resident_(static_cast<std::size_t>(shape.layers)) {
    frequency_.reserve(static_cast<std::size_t>(shape.head_dim / 2));
  }

  /// Allocates.
  void reserve() {
    if (in_use()) observed_.reserve();
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
    if (prompt.first < tokens || !lacks_last(tokens)) due_at_ = tokens + after_;
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

  /// Whether a choice was made that a cut to `tokens` undoes.
  bool undone_by(std::int64_t tokens) const noexcept {
    return tokens < due_at_ && std::ranges::any_of(waits_, [](char waits) { return waits == 0; });
  }
  /// Forgets every token from `tokens` on. What of the prompt is left waits for as many as before, also where the choice was
  /// made by tokens that are forgotten now: then calls again(layer), which returns the tokens that are left, as in
  /// prompt_signals::resident. A prompt that lacks its last token alone waits as the whole one did: servers decode that token
  /// again, for its logits.
  template <class Again>
  void truncate(std::int64_t tokens, Again again) {
    bool const undone = tokens < due_at_;
    if (tokens == 0) due_at_ = 0;
    else if (!lacks_last(tokens)) due_at_ = std::min(due_at_, tokens + after_);
    for (std::vector<range_list>& lists : resident_) {
      for (range_list& list : lists) kvpolicy::truncate(list, tokens);
    }
    for (std::size_t l = 0; l < waits_.size(); ++l) {
      if (tokens == 0) waits_[l] = 0;
      else if (undone && std::exchange(waits_[l], char{1}) == 0) {
        std::span<range_list const> const left = again(layer_id{static_cast<std::int64_t>(l)});
        resident_[l].assign(left.begin(), left.end());
      }
    }
  }

  template <class Archive>
  void archive(Archive& a) {
    a(observed_, waits_, due_at_, resident_, frequency_, pairing_);
  }

 private:
  /// Whether so many tokens are the prompt without its last.
  bool lacks_last(std::int64_t tokens) const noexcept { return tokens + 1 == due_at_ - after_; }
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
