// Scorer by_token: scores a token by the user's function of its key, its value and its age.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "kvpolicy/score_input.hpp"

namespace kvpolicy {

/// One key or value as floats, `[head_dim]`; valid during the function's call.
struct row : std::span<float const> {
  using std::span<float const>::span;
};

/// Returns the Euclidean norm of a row.
/// @param r  `[head_dim]`
/// @return the square root of the sum of squares
inline float norm(row const& r) noexcept {
  float squares = 0;
  for (float const x : r) squares += x * x;
  return std::sqrt(squares);
}
/// Returns the dot product of two rows.
/// @param a  `[head_dim]`
/// @param b  `[head_dim]`, as long as `a`
/// @return the sum of the products
inline float dot(row const& a, row const& b) noexcept {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

namespace scorers {

/// Scores a token by `of_token(key, value, age)`; the tokens with the largest scores are kept.
/// `age` is the number of tokens behind this one, among the tokens that are scored: 0 for the newest. The scorer reads rows one
/// by one, in host memory, so its cost is the function's. A scorer for every step should call primitives instead.
/// @tparam Function  takes two rows and an int64, gives a float; trivially copyable
template <class Function>
struct by_token {
  static constexpr signals needs = signals::keys | signals::values;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  static constexpr bool after_attention = false;

  Function of_token;  ///< the score of one token

  /// The row that is read now.
  struct memory : no_memory {
    std::vector<float> key;    ///< `[head_dim]`
    std::vector<float> value;  ///< `[head_dim]`
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

  /// Scores the kept tokens while decoding; `age` counts kept tokens only.
  template <class Input, executor Exec>
  void score_kept(Input const& input, std::span<range_list const> lists, table<float> out, Exec&) const {
    auto const keys = input.keys();
    auto const values = input.values();
    for (std::int64_t head = 0; head < out.rows; ++head) {
      range_list const& list = list_of(lists, head);
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
    static_assert(std::same_as<Rows, rows>,
                  "score_tokens reads rows on the host: for rows on a GPU write a scorer with a kernel");
    keys.load({head}, {token}, input.memory.key);
    values.load({head}, {token}, input.memory.value);
    return static_cast<float>(of_token(row(input.memory.key), row(input.memory.value), input.tokens - 1 - index));
  }
};

}  // namespace scorers

/// Makes a scorer of a function of one token: `score_tokens([](auto key, auto value, auto age) { return norm(value); })`.
/// @param of_token  `(row key, row value, std::int64_t age)` to float; larger is kept
/// @return a scorer for retain(), retrieve() or keep
template <class Function>
  requires std::is_invocable_r_v<float, Function const&, row, row, std::int64_t>
constexpr scorers::by_token<Function> score_tokens(Function of_token) { return {of_token}; }

static_assert(evicting_scorer<decltype(score_tokens([](row const& key, row const&, std::int64_t) { return norm(key); }))>);

}  // namespace kvpolicy
