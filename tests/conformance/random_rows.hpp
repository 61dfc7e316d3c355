// Rows of a random cache's first layer: all tokens, or a few of them by index, with what they hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "conformance/random_cache.hpp"

namespace kvpolicy_test {

class random_rows {
 public:
  /// By rank in one case of three: heads share their ranks, or have as many each.
  random_rows(random_cache const& cache, random_source& random, bool values = false)
      : cache_(&cache), values_(values), tokens_(cache.shape().max_tokens) {
    if (!random.one_in(3)) return;
    bool const shared = random.one_in(2);
    std::int64_t const all = tokens_;
    tokens_ = random.between(1, all);
    stride_ = shared ? 0 : tokens_ + random.between(0, 3);
    indices_.assign(static_cast<std::size_t>(shared ? tokens_ : cache.shape().kv_heads * stride_), -1);
    for (std::int64_t h = 0; h < (shared ? 1 : cache.shape().kv_heads); ++h) {
      std::vector<std::int32_t> some(static_cast<std::size_t>(all));
      std::iota(some.begin(), some.end(), 0);
      while (std::ssize(some) > tokens_) some.erase(some.begin() + random.between(0, std::ssize(some) - 1));
      std::copy(some.begin(), some.end(), indices_.begin() + h * stride_);
    }
  }

  /// The first `n` tokens.
  random_rows(random_cache const& cache, std::int64_t n) : cache_(&cache), values_(false), tokens_(n) {}

  std::int64_t tokens() const { return tokens_; }

  rows get() const {
    rows made = values_ ? cache_->values(0, tokens_) : cache_->keys(0, tokens_);
    if (!indices_.empty()) made.indices = indices_.data();
    made.index_stride = stride_;
    return made;
  }
  double at(std::int64_t h, std::int64_t t, std::int64_t d) const {
    if (!indices_.empty()) t = indices_[static_cast<std::size_t>(h * stride_ + t)];
    return values_ ? cache_->value(0, h, t, d) : cache_->key(0, h, t, d);
  }
  double dot(float const* query, std::int64_t h, std::int64_t t) const {
    double sum = 0;
    for (std::int64_t d = 0; d < cache_->shape().head_dim; ++d) sum += query[d] * at(h, t, d);
    return sum;
  }

 private:
  random_cache const* cache_;
  bool values_;
  std::int64_t tokens_;
  std::int64_t stride_ = 0;
  std::vector<std::int32_t> indices_;  ///< `[heads, stride]` ascending
};

/// Up to how many tokens a random shape has: few, and in one of `every` rounds many.
struct token_limits {
  std::int64_t few;
  std::int64_t many = few;
  int every = 1;
};

/// test(shape, keys, random, round) on random rows of a random shape, in so many rounds.
template <class Test>
void with_rows(std::uint64_t seed, int rounds, token_limits const& most, Test test) {
  random_source random(seed);
  for (int round = 0; round < rounds; ++round) {
    cache_shape const shape = random_shape(random, round % most.every == 0 ? most.many : most.few);
    random_cache const cache = random_cache_of(shape, random);
    test(shape, random_rows(cache, random), random, round);
  }
}

}  // namespace kvpolicy_test
