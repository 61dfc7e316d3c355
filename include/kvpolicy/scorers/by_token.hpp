// Score: a function of one token, of one's own: its key, its value, and how long ago it came.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "kvpolicy/score_input.hpp"

namespace kvpolicy {

/// One key or value as floats, `[head_dim]`.
struct row : std::span<float const> {
  using std::span<float const>::span;
};

/// Euclidean.
inline float norm(row const& r) noexcept {
  float squares = 0;
  for (float const x : r) squares += x * x;
  return std::sqrt(squares);
}
inline float dot(row const& a, row const& b) noexcept {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

namespace scorers {

/// `of_token(key, value, age)`: larger is kept; `age` is how many of the tokens that are looked at came after this one, 0 for
/// the newest. Reads rows where they lie, one by one, in host memory; as slow as the function is.
template <class Function>
struct by_token {
  static constexpr signals needs = signals::keys | signals::values;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  static constexpr bool after_attention = false;

  Function of_token;

  struct memory : no_memory {
    std::vector<float> key;
    std::vector<float> value;
  };
  memory start(cache_shape const& shape) const {
    auto const dim = static_cast<std::size_t>(shape.head_dim);
    return {{}, std::vector<float>(dim), std::vector<float>(dim)};
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec&) const {
    auto const keys = input.keys();
    auto const values = input.values();
    for (std::int64_t head = 0; head < out.rows; ++head) {
      for (std::int64_t token = 0; token < out.columns; ++token) out(head, token) = at(input, keys, values, head, token, token);
    }
  }

  /// While decoding, of the tokens that are still there.
  template <class Input, executor Exec>
  void score_kept(Input const& input, std::span<range_list const> lists, table<float> out, Exec&) const {
    auto const keys = input.keys();
    auto const values = input.values();
    for (std::int64_t head = 0; head < out.rows; ++head) {
      range_list const& list = lists[lists.size() == 1 ? 0 : static_cast<std::size_t>(head)];
      std::int64_t age = token_count(list);
      std::int64_t i = 0;
      for (token_range const& range : list) {
        for (std::int64_t t = range.begin; t < range.end; ++t)
          out(head, i++) = at(input, keys, values, head, t, input.tokens - age--);
      }
    }
  }

 private:
  template <class Input, class Rows>
  float at(Input const& input, Rows const& keys, Rows const& values, std::int64_t head, std::int64_t token,
           std::int64_t index) const {
    keys.load({head}, {token}, input.memory.key);
    values.load({head}, {token}, input.memory.value);
    return static_cast<float>(of_token(row(input.memory.key), row(input.memory.value), input.tokens - 1 - index));
  }
};

}  // namespace scorers

/// A scorer by a function of one token: `score_tokens([](auto key, auto value, auto age) { return norm(value); })`.
template <class Function>
  requires std::is_invocable_r_v<float, Function const&, row, row, std::int64_t>
constexpr scorers::by_token<Function> score_tokens(Function of_token) { return {of_token}; }

static_assert(evicting_scorer<decltype(score_tokens([](row const& key, row const&, std::int64_t) { return norm(key); }))>);

}  // namespace kvpolicy
