// Scorer query_mean_dot: scores a sentence by its keys against the queries of the open sentence (SentenceKV, eq. 2).
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/concepts.hpp"
#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/primitive/standing_units.hpp"

namespace kvpolicy::scorers {

/// Scores a sentence by the dot product of its mean key with the mean query of the sentence that is being generated
/// (SentenceKV, eq. 2). With pools::unit_mean's `spread`, the largest product within the sentence's spread takes the place of
/// the mean's.
struct query_mean_dot {
  static constexpr signals needs = signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::units;

  /// The share of the earlier queries' sum that counts for the next token, 0 to 1. 1, the paper: all queries of the open
  /// sentence count, and the sum starts again at a boundary. Below 1: earlier queries fade, whatever their sentence.
  float carry = 1;
  /// The share of `budget` for standing sentences, 0 to 1; the paper: 0. Standing sentences have the tokens that the prompt's
  /// last `window` queries attend to most. They rank first at every step.
  double standing = 0;
  std::int32_t window = 8;   ///< queries at the prompt's end that find the standing sentences
  budgets::tokens budget{};  ///< the rule's budget

  /// Sums of queries, and the standing sentences.
  struct memory : no_memory {
    static constexpr bool hears_prompts = true;
    static constexpr bool hears_steps = true;
    std::int64_t heads = 0;            ///< KV heads of a layer
    std::int64_t group = 0;            ///< query heads of a KV head
    std::int64_t dim = 0;              ///< head_dim
    std::vector<float> sums;           ///< `[layers, kv_heads, group, head_dim]` sums of queries
    std::vector<std::int64_t> count;   ///< `[layers, kv_heads]` queries in each sum
    std::vector<float> anchor;         ///< `[head_dim]` the sum over a query group
    std::vector<std::int32_t> all;     ///< 0, 1, 2, ...
    bool any_stand = false;            ///< sentences can stand
    std::int64_t known = 0;            ///< tokens of the prompt that were not removed since
    token_table<std::uint8_t> stands;  ///< `[layers, kv_heads, units]` 1: the sentence stands
    standing_units_scratch of_prompt;

    void reserve(std::int64_t tokens) {
      sums.resize(count.size() * static_cast<std::size_t>(group * dim));
      if (std::ssize(all) <= tokens) {
        all.resize(static_cast<std::size_t>(tokens) + 1);
        std::iota(all.begin(), all.end(), 0);
      }
      if (!any_stand || tokens <= stands.room()) return;
      stands.reserve(tokens);
      of_prompt = standing_units_scratch(tokens, tokens);
    }

    template <class Archive>
    void archive(Archive& a) {
      a(sums, count, known, stands);
    }
    /// Returns the sums of one KV head's query group, `[group, head_dim]`.
    float* sum(layer_id layer, std::int64_t head) noexcept { return sums.data() + (layer.value * heads + head) * group * dim; }
    /// Returns how many queries one KV head's sums hold.
    std::int64_t& queries(layer_id layer, std::int64_t head) noexcept {
      return count[static_cast<std::size_t>(layer.value * heads + head)];
    }
    /// Returns the marks of one KV head's standing sentences, `[units]`.
    std::span<std::uint8_t> standing(layer_id layer, std::int64_t head) noexcept {
      return {stands.row(layer.value * heads + head), static_cast<std::size_t>(stands.room())};
    }
    /// Starts every sum again: a sum does not say which of its queries are gone.
    void truncate(std::int64_t tokens) noexcept {
      std::ranges::fill(count, 0);
      known = std::min(known, tokens);
    }
  };
  memory start(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(carry >= 0 && carry <= 1, "carry is " + std::to_string(carry) + "; it must be 0 to 1");
    auto const rows = static_cast<std::size_t>(shape.layers * shape.kv_heads);
    memory made;
    made.heads = shape.kv_heads;
    made.group = shape.group();
    made.dim = shape.head_dim;
    made.count.resize(rows);
    made.anchor.resize(static_cast<std::size_t>(made.dim));
    KVPOLICY_EXPECTS(standing >= 0 && standing <= 1, "standing is " + std::to_string(standing) + "; it must be 0 to 1");
    made.any_stand = standing > 0;
    made.stands = {static_cast<std::int64_t>(rows), 1};
    return made;
  }

  /// Returns how many tokens of a prompt may stand for each KV head.
  /// @param shape  the cache's
  /// @param layer  the layer that chooses
  /// @param heads  the KV heads that choose
  /// @param prompt  tokens of the prompt
  /// @return `standing` times the budget, in tokens, rounded down
  std::int64_t standing_tokens(cache_shape const& shape, layer_id layer, head_range heads, std::int64_t prompt) const noexcept {
    budget_request const request{.shape = shape, .layer = layer, .heads = heads, .tokens = prompt, .prompt = prompt};
    return static_cast<std::int64_t>(standing * static_cast<double>(budget.of(request)));
  }

  /// Finds the prompt's standing sentences.
  /// @throws unsupported if `standing` is above 0 and the prompt's queries were not observed
  template <class Input, executor Exec>
  void begin(Input const& input, Exec& exec) const {
    if (standing == 0) return;
    if (input.prompt->queries.tokens < 1) {
      throw unsupported(
          "standing sentences need the prompt's last queries, and none were observed; prefill with the policy attached");
    }
    memory& m = input.memory;
    m.reserve(input.prompt_tokens);
    m.known = input.prompt_tokens;
    query_window const last = input.prompt->queries.last(std::min<std::int64_t>(input.prompt->queries.tokens, window));
    for (std::int64_t i = 0; i < input.heads.count; ++i) {
      std::int64_t const h = input.heads.first + i;
      std::span const stands = m.standing(input.layer, h);
      std::ranges::fill(stands, std::uint8_t{0});
      auto const units = static_cast<std::size_t>(input.summaries.units());
      standing_units(last.of({h, 1}, m.group), input.keys().of({i, 1}), {input.summaries.index_ends(input.layer, h), units},
                     standing_tokens(input.view.shape(), input.layer, input.heads, input.prompt_tokens), m.of_prompt,
                     stands.first(units), exec);
    }
  }

  /// Adds the current token's queries. If the open sentence has no other token, a boundary lies right before this one.
  template <class Input, executor Exec>
  void watch(Input const& input, Exec&) const {
    memory& m = input.memory;
    m.reserve(input.summaries.tokens);
    bool const boundary = carry == 1 && input.summaries.tokens - input.summaries.open_begin() == 1;
    for (std::int64_t h = 0; h < input.heads.count; ++h) {
      float* const sum = m.sum(input.layer, input.heads.first + h);
      std::int64_t& count = m.queries(input.layer, input.heads.first + h);
      if (boundary) count = 0;
      float const before = count == 0 ? 0 : carry;
      ++count;
      for (std::int64_t q = 0; q < m.group; ++q) {
        float const* const query = input.queries.head(h * m.group + q);
        for (std::int64_t i = 0; i < m.dim; ++i) {
          float& x = sum[q * m.dim + i];
          x = (before == 0 ? 0 : before * x) + query[i];
        }
      }
    }
  }

  /// Uses the sum of queries in place of their mean, which ranks the sentences alike.
  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    memory& m = input.memory;
    m.reserve(input.summaries.tokens);
    if (input.summaries.spread) {
      query_heads const sums{m.sum(input.layer, input.heads.first), input.heads.count * m.group, m.dim, 1};
      score_bounds(sums, input.summaries.bounds(input.layer).of(input.heads), out.columns, group_merge::mean, out, exec);
    } else {
      score_means(input, out, exec);
    }
    if (standing == 0) return;
    for (std::int64_t h = 0; h < input.heads.count; ++h) {
      std::span const stands = m.standing(input.layer, input.heads.first + h);
      for (std::int64_t u = 0;
           u < std::min(out.columns, m.stands.room()) && input.summaries.ends[static_cast<std::size_t>(u)] <= m.known; ++u) {
        if (stands[static_cast<std::size_t>(u)] != 0) out(h, u) = std::numeric_limits<float>::infinity();
      }
    }
  }

 private:
  template <class Input, class Exec>
  static void score_means(Input const& input, table<float> out, Exec& exec) {
    memory& m = input.memory;
    for (std::int64_t h = 0; h < input.heads.count; ++h) {
      std::int64_t const head = input.heads.first + h;
      float const* const sum = m.sum(input.layer, head);
      std::copy_n(sum, m.dim, m.anchor.begin());
      for (std::int64_t i = m.dim; i < m.group * m.dim; ++i) m.anchor[static_cast<std::size_t>(i % m.dim)] += sum[i];
      score_dot(std::span<float const>(m.anchor), table<float const>(input.summaries.of(input.layer, head)),
                std::span(m.all).first(static_cast<std::size_t>(out.columns)),
                std::span(out.row(h), static_cast<std::size_t>(out.columns)), exec);
    }
  }
};

static_assert(scorer<query_mean_dot>);

}  // namespace kvpolicy::scorers
