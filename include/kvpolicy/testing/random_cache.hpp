// Random caches, queries and prompts, for checks of your own parts and policies.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/signals.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::testing {

/// What a check found. The message says which promise was broken, by which part, on which input.
struct broken_promise : error {
  using error::error;
};

/// What keys and values contain: normal numbers; few whole numbers, so that scores tie; now and then NaN or infinity.
enum class content : std::uint8_t { normal, tied, hostile };

/// Draws numbers from a seed, the same on every machine.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : bits_(seed) {}

  /// Draws a whole number.
  /// @param least,most  its bounds, both included
  /// @return the number
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(most - least + 1));
  }
  /// Draws a number from -1 to below 1.
  float real() { return static_cast<float>(static_cast<double>(bits_() >> 11) * 0x1p-52 - 1); }
  /// Draws an element of a key or value.
  /// @param what  what it may be
  /// @return the element
  float of(content what) {
    if (what == content::hostile && between(0, 40) == 0) {
      return between(0, 1) == 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    }
    return what == content::tied ? static_cast<float>(between(-1, 1)) : 2 * real();
  }
  /// Draws elements of keys or values.
  /// @param count  how many
  /// @param what  what they may be
  /// @return the elements
  std::vector<float> reals(std::int64_t count, content what = content::normal) {
    std::vector<float> made(static_cast<std::size_t>(count));
    for (float& x : made) x = of(what);
    return made;
  }
  /// Draws a small shape of type f32.
  /// @param most_tokens  bounds max_tokens, which is at least 8
  /// @return the shape
  cache_shape shape(std::int64_t most_tokens) {
    cache_shape made{.layers = between(1, 3), .q_heads = 0, .kv_heads = between(1, 4), .head_dim = 2 * between(1, 9)};
    made.q_heads = made.kv_heads * between(1, 4);
    made.max_tokens = between(8, most_tokens);
    made.type = element_type::f32;
    return made;
  }
  /// Draws some tokens.
  /// @param tokens  from the first `tokens`
  /// @return at least one, ascending
  std::vector<std::int32_t> few(std::int64_t tokens) {
    std::vector<std::int32_t> made;
    for (std::int32_t t = 0; t < tokens; ++t) {
      if (between(0, 2) != 0) made.push_back(t);
    }
    if (made.empty()) made.push_back(static_cast<std::int32_t>(between(0, tokens - 1)));
    return made;
  }

 private:
  std::mt19937_64 bits_;
};

/// A cache that owns its rows, `[layers, kv_heads, max_tokens, head_dim]` f32.
class random_cache {
 public:
  /// Draws a cache.
  /// @param shape  its shape
  /// @param random  where the numbers come from
  /// @param what  what they may be
  random_cache(cache_shape const& shape, random_source& random, content what)
      : shape_(shape),
        keys_(random.reals(shape.layers * shape.kv_heads * shape.max_tokens * shape.head_dim, what)),
        values_(random.reals(std::ssize(keys_), what)) {}

  cache_shape const& shape() const noexcept { return shape_; }
  /// Views the first tokens.
  /// @param tokens  how many
  /// @return the view
  strided_view<> view(std::int64_t tokens) const noexcept {
    std::int64_t const row = shape_.head_dim * static_cast<std::int64_t>(sizeof(float));
    byte_strides const strides{.layer = shape_.kv_heads * shape_.max_tokens * row,
                               .head = shape_.max_tokens * row,
                               .token = row,
                               .dim = sizeof(float)};
    return {shape_, tokens, keys_.data(), values_.data(), strides, strides};
  }
  /// Returns a cache whose first tokens are the given ones, side by side.
  /// @param tokens  the tokens
  /// @return the cache
  random_cache compacted(std::span<std::int32_t const> tokens) const {
    random_cache made = *this;
    for (std::int64_t row = 0; row < shape_.layers * shape_.kv_heads; ++row) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
          made.keys_[made.at(row, static_cast<std::int64_t>(i), d)] = keys_[at(row, tokens[i], d)];
          made.values_[made.at(row, static_cast<std::int64_t>(i), d)] = values_[at(row, tokens[i], d)];
        }
      }
    }
    return made;
  }
  /// Replaces the rows from a token on.
  /// @param first  the token
  /// @param random  where the numbers come from
  /// @param what  what they may be
  void replace(std::int64_t first, random_source& random, content what) {
    for (std::int64_t row = 0; row < shape_.layers * shape_.kv_heads; ++row) {
      for (std::int64_t t = first; t < shape_.max_tokens; ++t) {
        for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
          keys_[at(row, t, d)] = random.of(what);
          values_[at(row, t, d)] = random.of(what);
        }
      }
    }
  }

 private:
  std::size_t at(std::int64_t row, std::int64_t token, std::int64_t d) const noexcept {
    return static_cast<std::size_t>((row * shape_.max_tokens + token) * shape_.head_dim + d);
  }

  cache_shape shape_;
  std::vector<float> keys_;
  std::vector<float> values_;
};

/// Every signal of one request.
class random_signals {
 public:
  /// Draws signals.
  /// @param shape  the request's shape
  /// @param random  where the numbers come from
  random_signals(cache_shape const& shape, random_source& random)
      : shape_(shape),
        queries_(random.reals(shape.max_tokens * shape.q_heads * shape.head_dim)),
        logits_(random.reals(9 + 16)) {
    for (std::int64_t i = 0; i < shape.head_dim / 2; ++i) frequencies_.push_back(1 / static_cast<float>(i + 1));
    for (std::int64_t t = 0; t < shape.max_tokens; ++t) ids_.push_back(static_cast<std::int32_t>(random.between(0, 9)));
  }

  /// Returns the signals of a prompt's piece, with every query up to its end.
  /// @param first,tokens  the piece [first, tokens)
  /// @return the signals
  prompt_signals prompt(std::int64_t first, std::int64_t tokens) const noexcept {
    return {.first = first,
            .queries = queries(tokens),
            .rope = {frequencies_.data(), std::ssize(frequencies_)},
            .token_ids = std::span(ids_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(tokens - first))};
  }
  /// Returns the signals of a repetition.
  /// @param of  the tokens that are repeated
  /// @param first,tokens  the tokens [first, tokens) that repeat them
  /// @return the signals
  prompt_signals repetition(token_span const& of, std::int64_t first, std::int64_t tokens) const noexcept {
    prompt_signals made = prompt(first, tokens);
    made.queries = made.queries.last(tokens - first);
    made.repeats = of;
    return made;
  }
  /// Returns the signals of a step.
  /// @param tokens  of the sequence, the current one included
  /// @return the signals
  step_signals step(std::int64_t tokens) const noexcept {
    return {queries(tokens).token(tokens - 1), ids_[static_cast<std::size_t>(tokens - 1)]};
  }
  /// Returns the signals of a step of several tokens.
  /// @param tokens  of the sequence, these included
  /// @param brought  how many the step brings
  /// @return the signals
  step_window step(std::int64_t tokens, std::int64_t brought) const noexcept {
    return {
        .tokens = brought, .queries = queries(tokens).last(brought), .token_ids = prompt(tokens - brought, tokens).token_ids};
  }
  /// Returns the outcome of a step.
  /// @param tokens  of the sequence at that step
  step_outcome outcome(std::int64_t tokens) const noexcept {
    return {.logits = std::span(logits_).subspan(static_cast<std::size_t>(tokens % 16), 9)};
  }

 private:
  query_window queries(std::int64_t tokens) const noexcept {
    return {queries_.data(), tokens, shape_.q_heads, shape_.q_heads * shape_.head_dim, shape_.head_dim, .5f};
  }

  cache_shape shape_;
  std::vector<float> queries_;
  std::vector<float> logits_;
  std::vector<float> frequencies_;
  std::vector<std::int32_t> ids_;
};

/// Returns a cache's name for messages.
/// @param shape,tokens  its shape and its tokens
/// @return the name
inline std::string name_of(cache_shape const& shape, std::int64_t tokens) {
  return text_of(shape) + ", " + std::to_string(tokens) + " tokens";
}

}  // namespace kvpolicy::testing
