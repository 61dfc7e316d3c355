// Scorer representatives: scores a block by the query's dot product with the block's representative keys (InfLLM).
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kvpolicy/detail/rope_table.hpp"
#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/score_input.hpp"
#include "kvpolicy/scorers/window_attention.hpp"

namespace kvpolicy::scorers {

/// Scores a block by the current query's dot product with the mean key of the block's representatives (InfLLM, Xiao et al.
/// 2024, arXiv 2402.04617). The representatives are the `count` tokens whose keys have the largest mean product with the
/// queries right behind them (following_queries).
struct representatives {
  static constexpr signals needs = signals::keys | signals::observation_queries | signals::queries | signals::rotation;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::units;
  static constexpr std::int32_t window = all_queries;  ///< every query of the prompt counts

  static constexpr std::int64_t tokens_at_once = 2048;  ///< of a prompt's blocks: fewer calls, and little to copy for each

  std::int32_t block = 128;  ///< tokens of a block, as the segmenter's
  std::int32_t count = 4;    ///< representative tokens of a block
  std::int32_t local = 128;  ///< queries behind a token that count; a generated block has only its own queries
  /// Ranks blocks by keys before their rotary embedding, and rotates the current query as if it stood `local` tokens behind all
  /// blocks. The original too gives far blocks one angle.
  bool pre_rope = false;

  constexpr signals wants() const noexcept {
    return pre_rope ? needs : signals::keys | signals::observation_queries | signals::queries;
  }

  /// The blocks' vectors, and the queries of the open block.
  struct memory : no_memory {
    static constexpr bool by_index = true;
    static constexpr bool hears_prompts = true;
    static constexpr bool hears_steps = true;
    std::int64_t heads = 0;          ///< KV heads of a layer
    std::int64_t dim = 0;            ///< head_dim
    std::int64_t block = 0;          ///< tokens of a block
    std::int64_t count = 0;          ///< representatives of a block
    std::vector<std::int64_t> done;  ///< `[layers, kv_heads]` blocks that have a vector
    token_table<float>
        vectors;  ///< `[layers, kv_heads, blocks, head_dim]` mean of the representatives' keys, as summary_type() rounds it
    std::vector<float> queries;        ///< `[layers, kv_heads, block, head_dim]` the open block's, each the query group's mean
    std::int64_t at_once = 0;          ///< blocks whose vectors one call makes, at most
    std::vector<float> scores;         ///< `[at_once, block]` of those blocks' tokens
    std::vector<std::int32_t> counts;  ///< `[at_once]` representatives of each
    std::vector<std::int32_t> chosen;  ///< `[at_once, count]` their representatives
    std::vector<std::int32_t> all;     ///< 0, 1, 2, ...
    rope_table rope;                   ///< with pre_rope: the model's rotary embedding
    std::int64_t distance = 0;         ///< with pre_rope: the query's position, tokens
    std::vector<float> far;            ///< `[head_dim]` the current query at position `distance`

    template <class Archive>
    void archive(Archive& a) {
      a(done, vectors, queries, rope);
    }
    void reserve(std::int64_t tokens) {
      std::int64_t const blocks = tokens / block + 1;
      rope.reserve(std::max(tokens, distance + 1));
      if (blocks <= vectors.room()) return;
      vectors.reserve(blocks);
      queries.resize(done.size() * static_cast<std::size_t>(block * dim));
      at_once = std::max<std::int64_t>(1, std::min<std::int64_t>(blocks, tokens_at_once / block));
      scores.resize(static_cast<std::size_t>(at_once * block));
      counts.assign(static_cast<std::size_t>(at_once), static_cast<std::int32_t>(count));
      chosen.resize(static_cast<std::size_t>(at_once * count));
      all.resize(static_cast<std::size_t>(blocks));
      std::iota(all.begin(), all.end(), 0);
    }
    /// Returns the number of a KV head among all layers' heads.
    std::int64_t row(layer_id layer, std::int64_t head) const noexcept { return layer.value * heads + head; }
    /// Returns how many blocks of a KV head have a vector.
    std::int64_t& done_of(layer_id layer, std::int64_t head) noexcept {
      return done[static_cast<std::size_t>(row(layer, head))];
    }
    /// Returns a block's vector, `[head_dim]`.
    float* vector(layer_id layer, std::int64_t head, std::int64_t which) noexcept {
      return vectors.entry(row(layer, head), which);
    }
    /// Returns the query of a token of the open block, `[head_dim]`.
    float* query(layer_id layer, std::int64_t head, std::int64_t token) noexcept {
      return queries.data() + (row(layer, head) * block + token % block) * dim;
    }
    void cut(layer_id layer, head_range few, std::int64_t indices) noexcept {
      for (std::int64_t h = few.first; h < few.first + few.count; ++h)
        done_of(layer, h) = std::min(done_of(layer, h), indices / block);
    }
  };
  memory start(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(block >= 1 && count >= 1 && count <= block && local >= 1,
                     "blocks of " + std::to_string(block) + " tokens with " + std::to_string(count) + " representatives from " +
                         std::to_string(local) +
                         " queries; each must be at least 1, and a block has at least as many tokens as representatives");
    std::int64_t const rows = shape.layers * shape.kv_heads;
    memory made;
    made.heads = shape.kv_heads;
    made.dim = shape.head_dim;
    made.block = block;
    made.count = count;
    made.done.resize(static_cast<std::size_t>(rows));
    made.vectors = {rows, shape.head_dim};
    made.distance = std::min<std::int64_t>(local, shape.max_tokens - 1);
    made.far.resize(static_cast<std::size_t>(shape.head_dim));
    return made;
  }

  /// Makes the vectors of the prompt's whole blocks, and keeps the open block's queries.
  template <class Input, executor Exec>
  void begin(Input const& input, Exec& exec) const {
    input.memory.reserve(input.prompt_tokens);
    if (pre_rope) input.memory.rope.take(input.prompt->rope);
    query_window const queries = last_queries(input.prompt, window);
    std::int64_t const group = queries.heads / input.view.shape().kv_heads;
    std::int64_t const before = input.prompt_tokens - queries.tokens;  // the first query's token
    for (std::int64_t h = input.heads.first; h < input.heads.first + input.heads.count; ++h) {
      query_window const own{queries.at(0, h * group), queries.tokens, group, queries.token_stride, queries.head_stride, 1};
      std::int64_t& done = input.memory.done_of(input.layer, h);
      auto const* const indices = input.view.keys(input.layer).of({h, 1}).indices;
      while (done < input.tokens / block) {
        std::int64_t const more = std::min(input.memory.at_once, input.tokens / block - done);
        // Only the queries behind these tokens, since an executor may have to copy what it is given.
        auto const token = [&](std::int64_t r) -> std::int64_t { return indices == nullptr ? r : indices[r]; };
        std::int64_t const end = std::min(before + own.tokens, token((done + more) * block - 1) + 1 + local);
        std::int64_t const from = std::clamp(token(done * block) + 1, before, std::max(before, end - 1));
        query_window behind = own;
        behind.data = own.at(from - before, 0);
        behind.tokens = std::min(own.tokens, std::max<std::int64_t>(end - from, 1));
        represent(input, h, done, more, behind, from, true, exec);
        done += more;
      }
      for (std::int64_t r = done * block; r < input.tokens; ++r) {
        std::int64_t const token = indices == nullptr ? r : indices[r];
        if (token >= before) keep_query(input, h, r, {own.at(token - before, 0), group, own.head_stride, 1});
      }
    }
  }

  /// Keeps the current token's queries. If the token fills its block, makes the block's vector.
  template <class Input, executor Exec>
  void watch(Input const& input, Exec& exec) const {
    input.memory.reserve(input.tokens);
    std::int64_t const group = input.queries.heads / input.heads.count;
    for (std::int64_t i = 0; i < input.heads.count; ++i) {
      std::int64_t const h = input.heads.first + i;
      keep_query(input, h, input.tokens - 1, input.queries.of({i, 1}, group));
      std::int64_t& done = input.memory.done_of(input.layer, h);
      if ((done + 1) * block > input.tokens) continue;
      query_window const own{input.memory.query(input.layer, h, 0), block, 1, input.memory.dim, input.memory.dim, 1};
      represent(input, h, done, 1, own, done * block, false, exec);
      ++done;
    }
  }

  /// Scores blocks without a vector as -infinity.
  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    for (std::int64_t i = 0; i < input.heads.count; ++i) {
      std::int64_t const h = input.heads.first + i;
      std::int64_t const now = input.view.tokens() - 1;
      std::span<float const> query(input.memory.query(input.layer, h, now), static_cast<std::size_t>(input.memory.dim));
      std::int64_t const position = input.view.keys(input.layer).of({h, 1}).at({0}, {now}).value;
      input.memory.rope.reserve(position + 1);
      rope_angles const rope = input.memory.rope.get();
      if (rope.angles != nullptr) {
        std::ranges::copy(query, input.memory.far.begin());
        rope.undo(position, input.memory.far.data());
        rope.redo(input.memory.distance, input.memory.far.data());
        query = input.memory.far;
      }
      table<float const> const vectors{input.memory.vector(input.layer, h, 0), input.memory.done_of(input.layer, h),
                                       input.memory.dim, input.memory.dim};
      auto const known = static_cast<std::size_t>(std::min(out.columns, vectors.rows));
      score_dot(query, vectors, std::span<std::int32_t const>(input.memory.all).first(known), std::span(out.row(i), known),
                exec);
      std::fill(out.row(i) + known, out.row(i) + out.columns, -std::numeric_limits<float>::infinity());
    }
  }

 private:
  template <class Input>
  static void keep_query(Input const& input, std::int64_t head, std::int64_t token, query_heads const& group) {
    float* const into = input.memory.query(input.layer, head, token);
    std::fill_n(into, input.memory.dim, 0.0f);
    for (std::int64_t q = 0; q < group.heads; ++q) {
      for (std::int64_t d = 0; d < input.memory.dim; ++d) into[d] += group.head(q)[d] / static_cast<float>(group.heads);
    }
  }

  /// Finds the representatives of `blocks` blocks from `which` on and takes the mean of their keys. `queries` belong to the
  /// positions from `begin` on, or without `by_position` to the indices from `begin` on.
  template <class Input, class Exec>
  void represent(Input const& input, std::int64_t head, std::int64_t which, std::int64_t blocks, query_window const& queries,
                 std::int64_t begin, bool by_position, Exec& exec) const {
    memory& m = input.memory;
    KVPOLICY_EXPECTS(!pre_rope || m.rope.known, "blocks of pre-rope keys need the rotary embedding, which comes with a prompt");
    auto keys = input.view.keys(input.layer).of({head, 1});
    std::int64_t const first = which * block;
    std::int64_t const tokens = blocks * block;
    std::int64_t const counted = std::min<std::int64_t>(local, input.view.shape().max_tokens);
    following_queries(queries, begin, keys, first, first + tokens, counted, by_position ? keys.indices : nullptr,
                      table<float>{m.scores.data(), 1, tokens, tokens}, exec);
    top_k(table<float const>{m.scores.data(), blocks, block, block},
          std::span<std::int32_t const>(m.counts).first(static_cast<std::size_t>(blocks)),
          table<std::int32_t>{m.chosen.data(), blocks, count, count}, exec);
    for (std::int64_t i = 0; i < blocks * count; ++i) {
      std::int32_t& token = m.chosen[static_cast<std::size_t>(i)];
      token += static_cast<std::int32_t>(first + i / count * block);
      if (keys.indices != nullptr) token = keys.indices[token];
    }
    keys.indices = m.chosen.data();
    keys.tokens = blocks * count;
    float* const vectors = m.vector(input.layer, head, which);
    pool_mean(keys, {.unit_size = count, .first = 0, .last = blocks * count, .rotated = m.rope.get()},
              table<float>{vectors, blocks, m.dim, m.dim}, 0, exec);
    for (float& x : std::span(vectors, static_cast<std::size_t>(blocks * m.dim)))
      x = rounded_to(summary_type(input.view.shape().type), x);
  }
};

static_assert(scorer<representatives>);

}  // namespace kvpolicy::scorers
