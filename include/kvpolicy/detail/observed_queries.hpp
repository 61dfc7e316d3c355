// The queries that a late choice looks at: the prompt's last ones, and those of the tokens behind it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kvpolicy/error.hpp"
#include "kvpolicy/rows.hpp"
#include "kvpolicy/signals.hpp"

namespace kvpolicy {

/// The prompt's last `count` queries, or all where there are fewer. Throws unsupported without any.
inline query_window last_queries(prompt_signals const* prompt, std::int64_t count) {
  if (prompt == nullptr || prompt->queries.tokens < 1) {
    throw unsupported(
        "attention scores need the prompt's last queries, and none were observed: prefill with the policy attached");
  }
  return prompt->queries.last(std::min(prompt->queries.tokens, count));
}

/// Checks that a rule's window protects the tokens of a scorer's observation window, which get no score. Throws invalid_value.
template <class Window>
void check_protected(Window const& of_rule, std::int64_t window, cache_shape const& shape) {
  std::int64_t const end = shape.max_tokens;  // of a prompt; a share of the budget is taken as of a large one
  auto const safe = of_rule.at(end, end, end);
  KVPOLICY_EXPECTS(safe.recent_begin <= std::max<std::int64_t>(end - window, safe.sink_end),
                   "the scorer gives the tokens of its window of " + std::to_string(window) +
                       " queries no score, and the rule's window protects " + std::to_string(end - safe.recent_begin) +
                       " recent tokens; let it protect as many");
}

/// Of each layer, the queries of up to `room` consecutive tokens.
class observed_queries {
 public:
  observed_queries() = default;
  observed_queries(std::int64_t layers, std::int64_t room, cache_shape const& shape)
      : room_(room), heads_(shape.q_heads), dim_(shape.head_dim), layers_(static_cast<std::size_t>(layers)) {}

  bool empty() const noexcept { return layers_.empty(); }
  /// Allocates.
  void reserve() { data_.resize(layers_.size() * static_cast<std::size_t>(room_ * heads_ * dim_)); }

  /// The layer's queries are these, of the last of the first `tokens` tokens; others are forgotten.
  void begin(std::size_t layer, query_window const& last, std::int64_t tokens) {
    reserve();
    layers_[layer] = {.first = tokens - last.tokens, .end = tokens, .scale = last.scale};
    for (std::int64_t t = 0; t < last.tokens; ++t) {
      for (std::int64_t h = 0; h < heads_; ++h) std::copy_n(last.at(t, h), dim_, row(layer, t) + h * dim_);
    }
  }

  /// The queries of the token behind the first `tokens`; what was known of it and of later ones is forgotten.
  void add(std::size_t layer, query_heads const& queries, std::int64_t tokens) {
    of_layer& one = layers_[layer];
    one.first = std::min(one.first, tokens);
    KVPOLICY_EXPECTS(tokens - one.first < room_, "token " + std::to_string(tokens) + " is more than " + std::to_string(room_) +
                                                     " behind the first whose queries are kept; begin with the prompt");
    reserve();
    for (std::int64_t h = 0; h < heads_; ++h) std::copy_n(queries.head(h), dim_, row(layer, tokens - one.first) + h * dim_);
    one.end = tokens + 1;
  }

  /// The last `count` of them, or all where there are fewer.
  query_window last(std::size_t layer, std::int64_t count) {
    of_layer const& one = layers_[layer];
    query_window const all{row(layer, 0), one.end - one.first, heads_, heads_ * dim_, dim_, one.scale};
    return all.last(std::min(all.tokens, count));
  }

  template <class Archive>
  void archive(Archive& a) {
    a(data_, layers_);
    if constexpr (Archive::reads) {
      for (of_layer const& one : layers_) {
        if (one.first < 0 || one.end < one.first || one.end - one.first > room_) Archive::refuse();
      }
    }
  }

 private:
  struct of_layer {
    std::int64_t first = 0;  ///< token whose queries come first
    std::int64_t end = 0;
    float scale = 1;
  };

  float* row(std::size_t layer, std::int64_t t) noexcept {
    return data_.data() + (static_cast<std::int64_t>(layer) * room_ + t) * heads_ * dim_;
  }

  std::int64_t room_ = 0;
  std::int64_t heads_ = 0;
  std::int64_t dim_ = 0;
  std::vector<float> data_;  ///< `[layers, room, q_heads, head_dim]`
  std::vector<of_layer> layers_;
};

}  // namespace kvpolicy
