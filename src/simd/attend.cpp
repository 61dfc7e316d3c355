// simd_exec's attend: lists cut into parts, parts into blocks of rows, and all queries of a KV head against each block.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "workspace.hpp"

namespace kvpolicy {

using namespace simd;

namespace {

/// Queries of a KV head that share one pass over a block of rows.
constexpr std::int64_t queries_at_once = 64;

/// Softmax sums over a part of a list, for some KV heads. Heads take turns at each block of rows: their rows are neighbours in
/// most caches, and share its pages.
class part_attention {
 public:
  /// `sums` is `[w * q_heads, value_dim + 2]`, rows of `size` floats, as kernels::weigh wants them.
  part_attention(kernels const& run, query_window const& queries, rows const& keys, rows const& values,
                 attention_terms const& terms, head_range heads, float* sums, std::int64_t size)
      : run_(run), queries_(queries), keys_(keys), values_(values), terms_(terms), heads_(heads), sums_(sums), size_(size) {
    for (std::int64_t i = 0; i < queries.tokens; ++i) {
      for (std::int64_t q = heads.first * group(); q < (heads.first + heads.count) * group(); ++q) {
        float* const to = sums_of(i, q);
        std::fill_n(to, values.head_dim, 0.0f);
        to[values.head_dim] = minus_infinity;
        to[values.head_dim + 1] = 0;
      }
    }
  }

  /// Over tokens [first, last) of the list. There are two blocks: while one is worked on, head by head, the other's rows are
  /// fetched in the order of memory.
  void run(range_list const& list, std::int64_t first, std::int64_t last) {
    std::int64_t const cached =
        block_bytes / (heads_.count * (bytes_of(keys_.type, keys_.head_dim) + bytes_of(values_.type, values_.head_dim)));
    std::int64_t const room =
        std::min({std::max<std::int64_t>(cached / 32 * 32, 32), row_block::room(keys_), row_block::room(values_)});
    std::array<token_block, 2> blocks;
    std::size_t filling = 0;
    each_token(list, first, last, [&](std::int64_t token) {
      token_block& block = blocks[filling];
      block.tokens[static_cast<std::size_t>(block.count++)] = token;
      if (block.count < room) return;
      filling ^= 1;
      attend_all(blocks[filling], block);
    });
    attend_all(blocks[filling ^ 1], blocks[filling]);
    attend_all(blocks[filling], blocks[filling ^ 1]);
  }

 private:
  struct token_block {
    std::array<std::int64_t, block_rows> tokens;
    std::int64_t count = 0;
    std::span<std::int64_t const> all() const noexcept { return std::span(tokens).first(static_cast<std::size_t>(count)); }
  };

  std::int64_t group() const noexcept { return queries_.heads / keys_.heads; }
  float* sums_of(std::int64_t i, std::int64_t q) const noexcept { return sums_ + (i * queries_.heads + q) * size_; }

  void attend_all(token_block& block, token_block const& next) {
    bool const fetched = keys_.plain() && values_.plain();
    std::int64_t const rows_ahead = fetched ? next.count * heads_.count : 0;
    for (std::int64_t h = 0; h < heads_.count && block.count > 0; ++h) {
      key_rows_.fill(keys_, heads_.first + h, block.all());
      value_rows_.fill(values_, heads_.first + h, block.all());
      std::int64_t ahead = 0;
      for (std::int64_t i = h * rows_ahead / heads_.count; i < (h + 1) * rows_ahead / heads_.count; ++i, ++ahead) {
        token_index const token{next.tokens[static_cast<std::size_t>(i / heads_.count)]};
        head_id const head{heads_.first + i % heads_.count};
        keys_ahead_[static_cast<std::size_t>(ahead)] = keys_.address(head, token);
        values_ahead_[static_cast<std::size_t>(ahead)] = values_.address(head, token);
      }
      attend_head(heads_.first + h, block.all(), ahead);
    }
    block.count = 0;
  }

  /// Of a step's tokens, those whose rows are in the block see a beginning of it each, and are attended to one by one.
  void attend_head(std::int64_t head, std::span<std::int64_t const> tokens, std::int64_t ahead) {
    std::int64_t const first_row = keys_.tokens - queries_.tokens;
    if (tokens.back() <= first_row) return attend_tokens(head, tokens, 0, queries_.tokens, ahead);
    for (std::int64_t i = 0; i < queries_.tokens; ++i) {
      auto const seen = std::ranges::upper_bound(tokens, first_row + i) - tokens.begin();
      if (seen > 0) attend_tokens(head, tokens.first(static_cast<std::size_t>(seen)), i, i + 1, std::exchange(ahead, 0));
    }
  }

  void attend_tokens(std::int64_t head, std::span<std::int64_t const> tokens, std::int64_t first, std::int64_t last,
                     std::int64_t ahead) {
    std::array<float const*, queries_at_once> query;
    std::array<float*, queries_at_once> sums;
    std::array<float, queries_at_once * block_rows> weights;
    auto const count = std::ssize(tokens);
    std::int64_t const vectors = (last - first) * group();
    for (std::int64_t from = 0; from < vectors; from += queries_at_once) {
      std::int64_t const here = std::min(queries_at_once, vectors - from);
      for (std::int64_t v = 0; v < here; ++v) {
        std::int64_t const i = first + (from + v) / group();
        std::int64_t const q = head * group() + (from + v) % group();
        query[static_cast<std::size_t>(v)] = queries_.at(i, q);
        sums[static_cast<std::size_t>(v)] = sums_of(i, q);
      }
      run_.dot(key_rows_.data(), count, key_rows_.type(), query.data(), here, keys_.head_dim, queries_.scale, weights.data(),
               block_rows, {keys_ahead_.data(), ahead});
      for (std::int64_t v = 0; v < here && !terms_.plain(); ++v)
        add_terms(head * group() + (from + v) % group(), tokens, keys_.tokens - queries_.tokens + first + (from + v) / group(),
                  weights.data() + v * block_rows);
      run_.weigh(weights.data(), block_rows, here, count, values_.head_dim, sums.data());
      run_.accumulate(value_rows_.data(), count, value_rows_.type(), weights.data(), block_rows, here, values_.head_dim,
                      sums.data(), {values_ahead_.data(), ahead});
      ahead = 0;
    }
  }

  void add_terms(std::int64_t q, std::span<std::int64_t const> tokens, std::int64_t own_row, float* logits) const {
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      if (terms_.soft_cap != 0) logits[t] = terms_.soft_cap * std::tanh(logits[t] / terms_.soft_cap);
      if (terms_.slopes != nullptr) logits[t] += terms_.slopes[q] * static_cast<float>(tokens[t] - own_row);
    }
  }

  kernels const& run_;
  query_window const& queries_;
  rows const& keys_;
  rows const& values_;
  attention_terms const& terms_;
  head_range heads_;
  float* sums_;
  std::int64_t size_;
  row_block key_rows_;
  row_block value_rows_;
  std::array<std::byte const*, block_rows> keys_ahead_;
  std::array<std::byte const*, block_rows> values_ahead_;
};

}  // namespace

void simd_exec::attend(query_window const& queries, rows const& keys, rows const& values, selection const& kept,
                       attention_terms const& terms, table<float> out, std::span<float> log_sum_exp) {
  workspace& w = *work_;
  w.check(keys, queries.heads);
  rows read = values;
  read.tokens = keys.tokens;
  w.check(read, queries.heads);
  std::int64_t const group = queries.heads / keys.heads;
  std::int64_t const dim = values.head_dim;
  std::int64_t longest = 0;
  std::int64_t total = 0;
  for (range_list const& list : kept.lists()) {
    longest = std::max(longest, token_count(list));
    total += token_count(list);
  }
  std::int64_t const most = parts_of(longest);
  std::int64_t const lists = std::ssize(kept.lists());
  std::int64_t const heads_of_list = keys.heads / lists;  // one, or all
  w.for_each(most * lists, total * heads_of_list * queries.tokens, [&](std::int64_t item) {
    std::int64_t const index = item % lists;
    std::int64_t const part = most - 1 - item / lists;  // the longest first
    range_list const& list = kept.lists()[static_cast<std::size_t>(index)];
    part_attention(w.run, queries, keys, values, terms, {index * heads_of_list, heads_of_list}, w.partial_of(part, 0),
                   w.partial_size())
        .run(list, part_begin(part), part_begin(part + 1));
  });
  for (std::int64_t i = 0; i < queries.tokens * queries.heads; ++i) {
    std::int64_t const q = i % queries.heads;
    std::int64_t const parts = parts_of(token_count(kept.of({q / group})));
    bool const sink = terms.sinks != nullptr;
    float highest = sink ? terms.sinks[q] : minus_infinity;
    for (std::int64_t p = 0; p < parts; ++p) highest = std::max(highest, w.partial_of(p, i)[dim]);
    float* const to = out.row(i);
    std::fill_n(to, dim, 0.0f);
    float sum = sink ? std::exp(terms.sinks[q] - highest) : 0;
    for (std::int64_t p = 0; p < parts; ++p) {
      float const* const from = w.partial_of(p, i);
      if (from[dim + 1] == 0) continue;
      float const weight = std::exp(from[dim] - highest);
      w.run.add_scaled(to, from, dim, weight);
      sum += weight * from[dim + 1];
    }
    if (sum != 0) w.run.scale(to, dim, 1 / sum);
    if (!log_sum_exp.empty()) log_sum_exp[static_cast<std::size_t>(i)] = highest + std::log(sum);
  }
}

}  // namespace kvpolicy
