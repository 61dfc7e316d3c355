// The retained tokens of all layers by index, kept up with what the retain leaves.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/detail/layer_lists.hpp"
#include "kvpolicy/detail/retained_tokens.hpp"

namespace kvpolicy {

/// Empty where every token is retained.
class indexed_tokens {
 public:
  indexed_tokens() = default;
  indexed_tokens(scope granularity, cache_shape const& shape)
      : granularity_(granularity),
        shape_(shape),
        layers_(static_cast<std::size_t>(granularity == scope::request ? 1 : shape.layers)) {
    std::size_t const lists = granularity == scope::head ? static_cast<std::size_t>(shape.kv_heads) : 1;
    for (of_layer& one : layers_) one.lists = indexed_lists(lists);
  }

  /// Makes room for a sequence of so many tokens.
  void reserve(std::int64_t tokens) {
    for (of_layer& one : layers_) one.lists.reserve(tokens);
  }

  bool all() const noexcept { return layers_.empty(); }
  template <class Archive>
  void archive(Archive& a) {
    a(layers_);
  }

  /// Forgets every token from `tokens` on; calls cut(heads, how many of theirs are left) for each list of the layer.
  template <class Cut>
  void truncate(layer_id layer, std::int64_t tokens, Cut cut) {
    of_layer& one = layers_[slot(layer)];
    for (std::size_t i = 0; i < one.lists.count(); ++i) {
      std::int64_t const left = one.lists.before(i, tokens);
      cut(heads_of(i), left);
      if (granularity_ != scope::request || layer.value + 1 == shape_.layers) one.lists.cut(i, left);
    }
    one.tokens = std::min(one.tokens, tokens);
  }

  /// The layer's tokens, brought up to date with its lists, which are of the first `tokens` tokens. Where tokens were dropped
  /// (another revision), calls cut(layer, heads, how many of theirs are the same as before).
  template <class Cut>
  retained_tokens follow(layer_id layer, std::span<range_list const> lists, std::int64_t revision, std::int64_t tokens,
                         Cut cut) {
    of_layer& one = layers_[slot(layer)];
    if (granularity_ != scope::request || layer.value == 0) {
      for (std::size_t i = 0; i < lists.size(); ++i) {
        if (one.revision == revision) {
          one.lists.append(i, lists[i], one.tokens);
          continue;
        }
        std::int64_t const before = one.lists.count(i);
        std::int64_t const same = one.lists.assign(i, lists[i]);
        if (same == before) continue;
        bool const everywhere = granularity_ == scope::request;
        for (std::int64_t l = everywhere ? 0 : layer.value; l < (everywhere ? shape_.layers : layer.value + 1); ++l) {
          cut(layer_id{l}, heads_of(i), same);
        }
      }
      one.revision = revision;
      one.tokens = tokens;
    }
    return one.lists.tokens();
  }

 private:
  struct of_layer {
    indexed_lists lists;
    std::int64_t revision = -1;
    std::int64_t tokens = 0;

    template <class Archive>
    void archive(Archive& a) {
      a(lists, revision, tokens);
    }
  };

  std::size_t slot(layer_id layer) const noexcept {
    return granularity_ == scope::request ? 0 : static_cast<std::size_t>(layer.value);
  }
  head_range heads_of(std::size_t list) const noexcept {
    return granularity_ == scope::head ? head_range{static_cast<std::int64_t>(list), 1} : head_range{0, shape_.kv_heads};
  }

  scope granularity_ = scope::request;
  cache_shape shape_{};
  std::vector<of_layer> layers_;
};

}  // namespace kvpolicy
