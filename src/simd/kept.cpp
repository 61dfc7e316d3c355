// simd_exec's primitives that score the tokens of a list by their keys alone.
#include <algorithm>
#include <array>
#include <cmath>

#include "workspace.hpp"

namespace kvpolicy {

using namespace simd;

void simd_exec::key_redundancy(rows const& keys, std::span<range_list const> lists, float alike, table<float> redundancy) {
  workspace& w = *work_;
  w.check(keys, keys.heads);
  std::int64_t const workers = std::min(w.window_workers(), keys.heads);
  w.for_each(workers, everyone, [&](std::int64_t worker) {
    float* const strip = w.strips.data() + worker * strip_queries * w.shape.max_tokens;
    for (std::int64_t head = worker; head < keys.heads; head += workers) {
      range_list const& list = list_of(lists, head);
      std::int64_t const count = token_count(list);
      if (count == 0) continue;
      float* const of_norm = w.window.data() + head * w.shape.max_tokens;  // 1 / |key|, 0 of a key of zeros
      each_listed(keys, head, list, 0, count, [&](std::int64_t at, row_block const& block) {
        w.run.square_sums(block.data(), block.size(), block.type(), keys.head_dim, of_norm + at);
        for (float& x : std::span(of_norm + at, static_cast<std::size_t>(block.size()))) x = x == 0 ? 0 : 1 / std::sqrt(x);
      });
      float* const sums = redundancy.row(head);
      std::fill_n(sums, count, 0.0f);
      for (std::int64_t first = 0; first < count; first += strip_queries) {
        std::int64_t const here = std::min(strip_queries, count - first);
        std::array<float const*, strip_queries> query;
        each_listed(keys, head, list, first, first + here, [&](std::int64_t at, row_block const& block) {
          for (std::int64_t r = 0; r < block.size(); ++r) {
            float* const row = w.partial_of(0, worker * strip_queries + (at - first) + r);
            for (std::int64_t d = 0; d < keys.head_dim; ++d) row[d] = block.element(r, d) * of_norm[at + r];
            query[static_cast<std::size_t>(at - first + r)] = row;
          }
        });
        each_listed(keys, head, list, 0, count, [&](std::int64_t at, row_block const& block) {
          w.run.dot(block.data(), block.size(), block.type(), query.data(), here, keys.head_dim, 1, strip + at,
                    w.shape.max_tokens, {});
        });
        for (std::int64_t q = 0; q < here; ++q) {
          float* const cosines = strip + q * w.shape.max_tokens;
          for (std::int64_t i = 0; i < count; ++i) cosines[i] *= of_norm[i];
          cosines[first + q] = 0;
          std::int64_t last = count - 1;
          while (last >= 0 && !(cosines[last] > alike)) --last;
          if (last >= 0) cosines[last] = 0;
          w.run.add_scaled(sums, cosines, count, 1);
        }
      }
      w.run.scale(sums, count, 1 / static_cast<float>(count));
    }
  });
}

void simd_exec::rotated_scores(rows const& keys, std::span<range_list const> lists, rotated_queries const& queries,
                               table<float> wanted) {
  workspace& w = *work_;
  w.check(keys, queries.mean.rows);
  constexpr std::int64_t part = 256;  // tokens
  std::int64_t const group = queries.mean.rows / keys.heads;
  std::int64_t const pairs = queries.spread.columns;
  bool const halves = queries.pairing == rotation::pairing::halves;
  std::int64_t most = 0;
  for (range_list const& list : lists) most = std::max(most, token_count(list));
  w.for_each((most + part - 1) / part * keys.heads, most * keys.heads, [&](std::int64_t item) {
    std::int64_t const head = item % keys.heads;
    std::int64_t const begin = item / keys.heads * part;
    each_listed(keys, head, list_of(lists, head), begin, begin + part, [&](std::int64_t at, row_block const& block) {
      for (std::int64_t q = head * group; q < (head + 1) * group; q += some_queries) {
        std::int64_t const chunk = std::min(some_queries, (head + 1) * group - q);
        std::array<float const*, some_queries> query;
        for (std::int64_t i = 0; i < chunk; ++i) query[static_cast<std::size_t>(i)] = queries.mean.row(q + i);
        w.run.dot(block.data(), block.size(), block.type(), query.data(), chunk, keys.head_dim, 1, wanted.row(q) + at,
                  wanted.row_stride, {});
      }
      for (std::int64_t r = 0; r < block.size(); ++r) {
        for (std::int64_t f = 0; f < pairs; ++f) {
          float const x = block.element(r, halves ? f : 2 * f);
          float const y = block.element(r, halves ? f + pairs : 2 * f + 1);
          float const length = std::sqrt(x * x + y * y);
          for (std::int64_t q = head * group; q < (head + 1) * group; ++q) wanted(q, at + r) += queries.spread(q, f) * length;
        }
      }
    });
  });
}

}  // namespace kvpolicy
