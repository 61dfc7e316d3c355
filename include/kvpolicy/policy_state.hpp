// Everything of a policy that changes: made by start(), used by the other verbs.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/keep_all_state.hpp"
#include "kvpolicy/retain_state.hpp"
#include "kvpolicy/retrieve_state.hpp"

namespace kvpolicy {

/// State of one request: what its retain left, and what its retrieve chose of that. Owned by the engine; not thread-safe;
/// movable.
template <class Parts>
class policy_state {
 public:
  policy_state(Parts const& parts, cache_shape const& shape)
      : retain(parts.retain, shape),
        retrieve(parts.retrieve, shape),
        shape_(shape),
        retain_scope_(scope_of(parts.retain)),
        retrieve_scope_(scope_of(parts.retrieve)),
        retains_(!keeps_all(parts.retain)),
        retrieves_(!keeps_all(parts.retrieve)) {
    if (!retains_ || !retrieves_) return;
    retrieve.reserve(retain_state<decltype(parts.retain)>::ranges(parts.retain, shape));
    auto const slots = static_cast<std::size_t>(retain_scope_ == scope::request ? 1 : shape.layers);
    there_.resize(slots);
    std::size_t const lists = retain_scope_ == scope::head ? static_cast<std::size_t>(shape.kv_heads) : 1;
    for (ranks& r : there_) {
      r.ids.resize(lists * static_cast<std::size_t>(shape.max_tokens));
      r.counts.resize(lists);
    }
  }

  cache_shape const& shape() const noexcept { return shape_; }
  /// Tokens of the sequence at the last choose, the current one included.
  std::int64_t tokens() const noexcept { return tokens_; }
  bool retains() const noexcept { return retains_; }
  bool retrieves() const noexcept { return retrieves_; }

  /// What a step reads in this layer.
  selection kept(layer_id layer) const noexcept {
    if (retrieves_) return {retrieve_scope_, retrieve.lists(layer), shape_.kv_heads};
    return {retain_scope_, retain.lists(layer), shape_.kv_heads};
  }

  /// What is there at all in this layer, read or not.
  selection retained(layer_id layer) const noexcept { return {retain_scope_, retain.lists(layer), shape_.kv_heads}; }

  /// A prompt, or a piece of one, whose tokens [first, tokens) are new. Throws invalid_value where it does not fit.
  void begin_prompt(std::int64_t first, std::int64_t tokens) {
    KVPOLICY_EXPECTS(first >= 0 && first <= tokens && tokens <= shape_.max_tokens,
                     "a prompt of tokens " + std::to_string(first) + ".." + std::to_string(tokens) +
                         "; this state was started for up to " + std::to_string(shape_.max_tokens) + "; start a larger one");
    truncate(first);
    tokens_ = tokens;
    retain.restart();
    retrieve.restart();
  }

  /// Forgets every token from `tokens` on. What was decided among the tokens before stands.
  void truncate(std::int64_t tokens) {
    if (tokens < tokens_) {
      retain.restart();
      retrieve.restart();
    }
    tokens_ = std::min(tokens_, tokens);
    retain.truncate(tokens);
    retrieve.truncate(tokens);
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      if (there_.empty()) {
        retrieve.cut({l}, {0, shape_.kv_heads}, tokens);
        continue;
      }
      ranks& r = there_[slot({l})];
      for (std::size_t i = 0; i < r.counts.size(); ++i) {
        std::int32_t const* const ids = r.of(i, shape_.max_tokens);
        std::int64_t const left = std::lower_bound(ids, ids + r.counts[i], tokens) - ids;
        retrieve.cut({l}, heads_of(i, r), left);
        if (retain_scope_ != scope::request || l + 1 == shape_.layers) r.counts[i] = left;
      }
      r.tokens = std::min(r.tokens, tokens);
    }
  }

  /// A step on a sequence that now has `tokens` tokens; truncates where tokens were taken away since the last one.
  void begin_step(std::int64_t tokens) {
    KVPOLICY_EXPECTS(tokens >= 1 && tokens <= shape_.max_tokens,
                     "a step on " + std::to_string(tokens) + " tokens; this state was started for 1 to " +
                         std::to_string(shape_.max_tokens) + "; start a larger one");
    if (tokens <= tokens_) truncate(tokens - 1);
    tokens_ = tokens;
  }

  /// The retained tokens of a layer by rank, brought up to date with what the retain left of the first `tokens` tokens.
  retained_tokens there(layer_id layer, std::int64_t tokens) {
    if (there_.empty()) return {};
    ranks& r = there_[slot(layer)];
    if (retain_scope_ != scope::request || layer.value == 0) {
      bool const dropped = r.revision != retain.revision(layer);
      std::span const lists = retain.lists(layer);
      for (std::size_t i = 0; i < lists.size(); ++i) dropped ? relist(layer, r, i, lists[i]) : grow(r, i, lists[i]);
      r.revision = retain.revision(layer);
      r.tokens = tokens;
    }
    return {r.ids.data(), shape_.max_tokens, r.counts};
  }

  retain_state<decltype(std::declval<Parts>().retain)> retain;
  retrieve_state<decltype(std::declval<Parts>().retrieve)> retrieve;

 private:
  struct ranks {
    std::vector<std::int32_t> ids;     ///< `[lists, max_tokens]`
    std::vector<std::int64_t> counts;  ///< `[lists]`
    std::int64_t revision = -1;
    std::int64_t tokens = 0;

    std::int32_t* of(std::size_t list, std::int64_t stride) noexcept {
      return ids.data() + static_cast<std::int64_t>(list) * stride;
    }
  };

  std::size_t slot(layer_id layer) const noexcept {
    return retain_scope_ == scope::request ? 0 : static_cast<std::size_t>(layer.value);
  }
  head_range heads_of(std::size_t list, ranks const& r) const noexcept {
    return r.counts.size() == 1 ? head_range{0, shape_.kv_heads} : head_range{static_cast<std::int64_t>(list), 1};
  }

  /// Tokens that came behind the last ones.
  void grow(ranks& r, std::size_t list, range_list const& from) {
    std::int32_t* const ids = r.of(list, shape_.max_tokens);
    for (std::size_t i = from.size(); i-- > 0 && from[i].end > r.tokens;) {
      if (i > 0 && from[i - 1].end > r.tokens) continue;
      for (; i < from.size(); ++i) {
        for (std::int64_t t = std::max<std::int64_t>(from[i].begin, r.tokens); t < from[i].end; ++t) {
          ids[r.counts[list]++] = static_cast<std::int32_t>(t);
        }
      }
      return;
    }
  }

  /// All tokens again; what differs from before is pooled again.
  void relist(layer_id layer, ranks& r, std::size_t list, range_list const& from) {
    std::int32_t* const ids = r.of(list, shape_.max_tokens);
    std::int64_t count = 0;
    std::int64_t same = 0;
    for (token_range const& range : from) {
      for (std::int32_t t = range.begin; t < range.end; ++t, ++count) {
        if (same == count && count < r.counts[list] && ids[count] == t) ++same;
        ids[count] = t;
      }
    }
    if (same < r.counts[list]) {
      if (retain_scope_ == scope::request) {
        for (std::int64_t l = 0; l < shape_.layers; ++l) retrieve.cut({l}, heads_of(list, r), same);
      } else {
        retrieve.cut(layer, heads_of(list, r), same);
      }
    }
    r.counts[list] = count;
  }

  cache_shape shape_;
  scope retain_scope_;
  scope retrieve_scope_;
  bool retains_;
  bool retrieves_;
  std::int64_t tokens_ = 0;
  std::vector<ranks> there_;  ///< where there are both acts
};

}  // namespace kvpolicy
