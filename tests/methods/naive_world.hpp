// A request of random keys, queries and token ids, and the few sums that every method is made of, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "conformance/random_cache.hpp"
#include "conformance/tokens.hpp"
#include "kvpolicy/rule.hpp"
#include "kvpolicy/selection.hpp"

namespace kvpolicy_test::methods {

using ints = std::vector<std::int64_t>;
using reals = std::vector<double>;

template <class T>
auto& at(std::vector<T>& all, std::int64_t i) {
  return all[static_cast<std::size_t>(i)];
}
template <class T>
auto const& at(std::vector<T> const& all, std::int64_t i) {
  return all[static_cast<std::size_t>(i)];
}
template <class T>
std::vector<T> filled(std::int64_t count, T const& value) {
  return std::vector<T>(static_cast<std::size_t>(count), value);
}
template <class T>
std::int64_t size_of(std::vector<T> const& all) {
  return static_cast<std::int64_t>(all.size());
}
inline std::int32_t narrow(std::int64_t x) { return static_cast<std::int32_t>(x); }

struct world {
  cache_shape shape;
  random_cache cache;
  std::vector<float> queries;  ///< `[layers, tokens, q_heads, dim]`
  std::vector<std::int32_t> ids;
  std::vector<float> frequencies;  ///< of the keys' rotary embedding
  rotation::pairing pairing = rotation::pairing::halves;
  float scale = 1;

  /// Whole numbers -1, 0 and 1 where `kind` is tied: sums of them are exact in every precision.
  world(cache_shape const& of, random_source& random, content kind = content::plain, std::int32_t vocabulary = 12)
      : shape(of), cache(random_cache_of(of, random, kind)), scale(kind == content::tied ? 1.f : 1.5f) {
    for (std::int64_t i = 0; i < of.layers * of.max_tokens * of.q_heads * of.head_dim; ++i)
      queries.push_back(draw(kind, random));
    for (std::int64_t t = 0; t < of.max_tokens; ++t) ids.push_back(narrow(random.between(0, vocabulary - 1)));
    for (std::int64_t i = 0; i < std::max<std::int64_t>(1, of.head_dim / 2); ++i)
      frequencies.push_back(std::pow(.3f, static_cast<float>(i)));
    if (of.max_tokens % 2 == 0) pairing = rotation::pairing::neighbours;
  }

  std::int64_t group() const { return shape.q_heads / shape.kv_heads; }
  float const* query(std::int64_t l, std::int64_t t, std::int64_t q) const {
    return queries.data() + ((l * shape.max_tokens + t) * shape.q_heads + q) * shape.head_dim;
  }
  query_window window(std::int64_t l, std::int64_t first, std::int64_t last) const {
    return {query(l, first, 0), last - first, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, scale};
  }
  query_heads heads(std::int64_t l, std::int64_t t) const { return {query(l, t, 0), shape.q_heads, shape.head_dim, scale}; }
  own_view view(std::int64_t tokens) const { return {&cache, tokens}; }
  prompt_signals prompt(std::int64_t l, std::int64_t tokens) const {
    return {.queries = window(l, 0, tokens),
            .rope = {frequencies.data(), shape.head_dim / 2, pairing},
            .token_ids = std::span(ids).first(static_cast<std::size_t>(tokens))};
  }
  step_signals step(std::int64_t l, std::int64_t tokens) const { return {heads(l, tokens - 1), at(ids, tokens - 1)}; }

  /// q.k of query head q's query at token `from` with the key of token t.
  double dot(std::int64_t l, std::int64_t from, std::int64_t q, std::int64_t t) const {
    double sum = 0;
    for (std::int64_t d = 0; d < shape.head_dim; ++d) {
      sum += static_cast<double>(query(l, from, q)[d]) * static_cast<double>(cache.key(l, q / group(), t, d));
    }
    return sum;
  }

  /// Softmax of one query head's query at token `from` over the tokens named.
  reals attention(std::int64_t l, std::int64_t from, std::int64_t q, ints const& tokens) const {
    reals weights;
    double total = 0;
    for (std::int64_t const t : tokens) {
      weights.push_back(std::exp(static_cast<double>(scale) * dot(l, from, q, t)));
      total += weights.back();
    }
    for (double& w : weights) w /= total;
    return weights;
  }

  /// The same, mean over KV head h's query heads.
  reals group_attention(std::int64_t l, std::int64_t from, std::int64_t h, ints const& tokens) const {
    reals mean = filled(size_of(tokens), 0.0);
    for (std::int64_t g = 0; g < group(); ++g) {
      reals const one = attention(l, from, h * group() + g, tokens);
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += one[i] / static_cast<double>(group());
    }
    return mean;
  }

  /// Mean key over some tokens.
  reals mean_key(std::int64_t l, std::int64_t h, ints const& tokens) const {
    reals mean = filled(shape.head_dim, 0.0);
    for (std::int64_t const t : tokens) {
      for (std::int64_t d = 0; d < shape.head_dim; ++d) at(mean, d) += cache.key(l, h, t, d);
    }
    for (double& x : mean) x /= static_cast<double>(tokens.size());
    return mean;
  }
};

/// Element d of a row, `row(i)` its elements, rotated back by the rotary embedding's angles for `tokens` tokens.
template <class Row>
double turned_back(world const& w, Row row, std::int64_t tokens, std::int64_t d) {
  std::int64_t const pairs = w.shape.head_dim / 2;
  bool const halves = w.pairing == rotation::pairing::halves;
  if (d >= 2 * pairs) return row(d);
  std::int64_t const pair = halves ? d % pairs : d / 2;
  double const angle = static_cast<double>(tokens) * static_cast<double>(at(w.frequencies, pair));
  double const x = row(halves ? pair : 2 * pair);
  double const y = row(halves ? pair + pairs : 2 * pair + 1);
  bool const is_x = halves ? d < pairs : d % 2 == 0;
  return is_x ? std::cos(angle) * x + std::sin(angle) * y : std::cos(angle) * y - std::sin(angle) * x;
}

/// Element d of a key before its rotary embedding.
inline double pre_rope(world const& w, std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t d) {
  return turned_back(
      w, [&](std::int64_t i) { return static_cast<double>(w.cache.key(l, h, t, i)); }, t, d);
}

inline ints range(std::int64_t first, std::int64_t last) {
  ints made;
  for (std::int64_t t = first; t < last; ++t) made.push_back(t);
  return made;
}

inline bool ascends(ints const& list) {
  return std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) == list.end();
}

inline ints united(ints a, ints const& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end());
  a.erase(std::unique(a.begin(), a.end()), a.end());
  return a;
}
inline ints without(ints const& a, ints const& b) {
  ints made;
  for (std::int64_t const x : a) {
    if (!std::binary_search(b.begin(), b.end(), x)) made.push_back(x);
  }
  return made;
}

/// Small on purpose: thousands of requests in seconds.
inline cache_shape small_shape(random_source& random, std::int64_t most_tokens, std::int64_t layers = 2) {
  std::int64_t const heads = random.between(1, 3);
  return {.layers = random.between(1, layers),
          .q_heads = heads * random.between(1, 4),
          .kv_heads = heads,
          .head_dim = random.between(1, 10),
          .max_tokens = random.between(8, most_tokens),
          .type = random.pick(types)};
}

/// One layer's one head of one number: these keys.
inline random_cache cache_with_keys(std::vector<float> const& keys, std::uint64_t seed) {
  random_source random(seed);
  random_cache cache({1, 1, 1, 1, size_of(keys), element_type::f32}, layout::head_major, 4, random);
  for (std::int64_t t = 0; t < size_of(keys); ++t) cache.set_key(0, 0, t, 0, at(keys, t));
  return cache;
}

}  // namespace kvpolicy_test::methods
