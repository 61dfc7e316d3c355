// Scorer trigonometric: scores a token by what queries to come want of it, at any distance (TriAttention).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/head_values.hpp"
#include "kvpolicy/primitive/kept_scores.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy {

/// What a model's queries are like in one pair of channels, before their rotary embedding: their mean, as a complex number, and
/// the mean of their lengths.
struct query_moment {
  float real = 0;
  float imaginary = 0;
  float length = 0;  ///< at least the length of the mean

  bool operator==(query_moment const&) const = default;
};

namespace scorers {

/// Scores a token by what queries to come want of it (TriAttention). It reads no query: how a model's queries lie is known from
/// a profile. For a query head, at n tokens, token t of key k scores the mean over distances D = 1, 2, 4, ... `farthest` of
/// sum over pairs f of Re(E[q_f] conj(k_f) exp(i w_f (n + D - t))), plus sum over f of (E|q_f| - |E[q_f]|) |k_f|. A cached key
/// is k_f exp(i w_f t), so the first sum is the dot product of the cached key with the mean query rotated by n + D. Then each
/// query head's scores are standardised over the tokens that compete, and merged. Channels that are not rotated do not count.
struct trigonometric {
  static constexpr signals needs = signals::keys | signals::rotation;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  static constexpr bool after_attention = true;

  head_values<query_moment> moments{};        ///< `[layers, q_heads, pairs]`, the model's, by kvpolicy-profile; not owned
  std::int32_t farthest = 65536;              ///< the largest distance, 1 to 2^20
  bool generated = true;                      ///< the tokens behind the prompt compete, not the prompt's
  group_merge merged = group_merge::maximum;  ///< merges the query heads of a KV head

  /// The rotary embedding, and buffers of one call.
  struct memory : no_memory {
    static constexpr bool hears_prompts = true;
    static constexpr bool goes_on = true;
    std::vector<float> frequency;  ///< `[pairs]`
    rotation::pairing how = rotation::pairing::halves;
    std::vector<float> mean;         ///< `[q_heads, head_dim]`
    std::vector<float> spread;       ///< `[q_heads, pairs]`
    token_table<float> wanted;       ///< `[q_heads, tokens]`
    std::vector<double> turns;       ///< `[2, pairs]`: mean cosines, mean sines
    std::int64_t pairs = 0;          ///< of a head in the file of moments
    std::int64_t end_of_prompt = 0;  ///< tokens of the sequence at the last prompt's end
    range_list all;                  ///< one range: every token that is scored

    void reserve(std::int64_t tokens) { wanted.reserve(tokens); }

    template <class Archive>
    void archive(Archive& a) {
      a(frequency, how);
      a(end_of_prompt);
      if constexpr (Archive::reads) {
        if (!frequency.empty() && std::ssize(frequency) != pairs) Archive::refuse();
      }
    }
  };
  memory start(cache_shape const& shape) const {
    constexpr std::int32_t most = 1 << 20;
    KVPOLICY_EXPECTS(farthest >= 1 && farthest <= most,
                     "farthest is " + std::to_string(farthest) + " tokens; it must be 1 to " + std::to_string(most));
    KVPOLICY_EXPECTS(!moments.empty(),
                     "triattention needs to know the model's queries; make a file of their moments with kvpolicy-profile");
    auto const heads = static_cast<std::size_t>(shape.layers * shape.q_heads);
    auto const most_pairs = static_cast<std::size_t>(shape.head_dim / 2);
    KVPOLICY_EXPECTS(moments.size() % heads == 0 && moments.size() / heads <= most_pairs,
                     "a file of " + std::to_string(moments.size()) + " moments for a model of " + std::to_string(heads) +
                         " query heads with at most " + std::to_string(most_pairs) + " pairs each; profile this model");
    check_heads_of(moments, static_cast<std::int64_t>(moments.size() / heads), shape.layers, shape.q_heads, "moments");
    memory made;
    made.mean.resize(static_cast<std::size_t>(shape.q_heads * shape.head_dim));
    made.spread.resize(static_cast<std::size_t>(shape.q_heads) * most_pairs);
    made.wanted = {shape.q_heads, 1};
    made.turns.resize(2 * most_pairs);
    made.frequency.reserve(most_pairs);
    made.all.resize(1);
    made.pairs = static_cast<std::int64_t>(moments.size() / heads);
    return made;
  }

  /// Takes the rotary embedding.
  template <class Input, executor Exec>
  void begin(Input const& input, Exec&) const {
    rotation const& rope = input.prompt->rope;
    input.memory.end_of_prompt = input.prompt_tokens;
    if (rope.pairs == 0) return;  // a sequence that begins with a step
    if (rope.pairs != input.memory.pairs) {
      throw unsupported("the model rotates " + std::to_string(rope.pairs) + " pairs of channels, and the file has moments of " +
                        std::to_string(input.memory.pairs) + "; profile this model");
    }
    input.memory.frequency.assign(rope.inverse_frequency, rope.inverse_frequency + rope.pairs);
    input.memory.how = rope.how;
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    input.memory.all.clear();
    append(input.memory.all, 0, out.columns, reason::scored);
    score_kept(input, std::span<range_list const>(&input.memory.all, 1), out, exec);
  }
  template <class Input, executor Exec>
  void score_kept(Input const& input, std::span<range_list const> lists, table<float> out, Exec& exec) const {
    memory& m = input.memory;
    cache_shape const shape = input.view.shape();
    auto const pairs = static_cast<std::int64_t>(m.frequency.size());
    std::int64_t const heads = input.heads.count * shape.group();
    std::int64_t const first = input.heads.first * shape.group();
    table<float> const mean{m.mean.data(), heads, shape.head_dim, shape.head_dim};
    table<float> const spread{m.spread.data(), heads, pairs, pairs};
    expect_queries(input, mean, spread, first);
    m.reserve(std::max(input.tokens, out.columns));
    table<float> const wanted = m.wanted.rows(0, heads, m.wanted.room());
    rotated_scores(input.keys(), lists, {.mean = mean, .spread = spread, .pairing = m.how}, wanted, exec);
    for (std::int64_t h = 0; h < out.rows; ++h) {
      range_list const& list = list_of(lists, h);
      std::int64_t const count = token_count(list);
      std::int64_t from = 0;  // the first that competes
      for (token_range const& range : list) {
        bool const of_prompt = generated && input.prompt == nullptr;
        from += of_prompt ? std::clamp<std::int64_t>(input.prompt_tokens - range.begin, 0, range.size()) : 0;
      }
      for (std::int64_t g = 0; g < shape.group(); ++g) {
        float* const scores = wanted.row(h * shape.group() + g);
        standardise({scores + from, static_cast<std::size_t>(count - from)});
        for (std::int64_t i = 0; i < count; ++i) {
          float& to = out(h, i);
          if (g == 0) to = scores[i];
          else if (merged == group_merge::mean) to += scores[i];
          else if (!(scores[i] <= to)) to = scores[i];
        }
      }
    }
  }

 private:
  /// The mean query of each head, rotated by the mean rotation of the distances, and what its length varies by.
  template <class Input>
  void expect_queries(Input const& input, table<float> mean, table<float> spread, std::int64_t first) const {
    memory& m = input.memory;
    auto const pairs = static_cast<std::int64_t>(m.frequency.size());
    if (pairs == 0) {
      throw unsupported(
          "triattention needs the rotary embedding, which comes with a prompt, and this sequence began with a step; begin "
          "with a prompt");
    }
    // Where rows are gone, a prompt's end sees fewer tokens than there are positions.
    std::int64_t const position = std::max(input.tokens, m.end_of_prompt);
    int distances = 0;
    for (std::int64_t d = 1; d <= farthest; d *= 2) ++distances;
    for (std::int64_t f = 0; f < pairs; ++f) {
      double cosine = 0;
      double sine = 0;
      for (std::int64_t d = 1; d <= farthest; d *= 2) {
        double const angle = static_cast<double>(position + d) * static_cast<double>(m.frequency[static_cast<std::size_t>(f)]);
        cosine += std::cos(angle) / distances;
        sine += std::sin(angle) / distances;
      }
      m.turns[static_cast<std::size_t>(2 * f)] = cosine;
      m.turns[static_cast<std::size_t>(2 * f + 1)] = sine;
    }
    for (std::int64_t q = 0; q < mean.rows; ++q) {
      std::fill_n(mean.row(q), mean.columns, 0.0f);
      query_moment const* const of_head = moments.data() + (input.layer.value * input.view.shape().q_heads + first + q) * pairs;
      for (std::int64_t f = 0; f < pairs; ++f) {
        query_moment const& one = of_head[f];
        double const c = m.turns[static_cast<std::size_t>(2 * f)];
        double const s = m.turns[static_cast<std::size_t>(2 * f + 1)];
        bool const halves = m.how == rotation::pairing::halves;
        mean(q, halves ? f : 2 * f) = static_cast<float>(c * one.real - s * one.imaginary);
        mean(q, halves ? f + pairs : 2 * f + 1) = static_cast<float>(s * one.real + c * one.imaginary);
        spread(q, f) = std::max(0.0f, one.length - std::hypot(one.real, one.imaginary));
      }
    }
  }
  /// Mean 0, deviation 1.
  static void standardise(std::span<float> scores) noexcept {
    if (scores.empty()) return;
    double mean = 0;
    double square = 0;
    auto const count = static_cast<double>(scores.size());
    for (float const x : scores) mean += static_cast<double>(x) / count;
    for (float const x : scores) square += (static_cast<double>(x) - mean) * (static_cast<double>(x) - mean) / count;
    double const deviation = std::max(std::sqrt(square), 1e-6);
    for (float& x : scores) x = static_cast<float>((static_cast<double>(x) - mean) / deviation);
  }
};

static_assert(evicting_scorer<trigonometric>);

}  // namespace scorers

}  // namespace kvpolicy
