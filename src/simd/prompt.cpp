// simd_exec's primitives that look at whole prompts.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "workspace.hpp"

namespace kvpolicy {

using namespace simd;

namespace {

constexpr std::int64_t item_tokens = 512;  // that one item of a loop works on

constexpr std::int64_t items_of(std::int64_t tokens) noexcept { return (tokens + item_tokens - 1) / item_tokens; }

}  // namespace

/// Window queries [first, first + count <= strip_queries) of one query head: merges each one's attention to tokens [0, columns)
/// into the head's row in `window`: its w-th part is added, or the larger stays. Keys are read once for the strip; `logits` is
/// [strip_queries, max_tokens].
void simd_exec::workspace::window_strip(query_window const& queries, rows const& keys_of, std::int64_t q_head,
                                        std::int64_t first, std::int64_t count, std::int64_t columns, group_merge merged,
                                        float* logits) {
  std::int64_t const head = q_head / (queries.heads / keys_of.heads);
  std::int64_t const before = keys_of.tokens - queries.tokens;
  std::array<float const*, strip_queries> query;
  for (std::int64_t i = 0; i < count; ++i) query[static_cast<std::size_t>(i)] = queries.at(first + i, q_head);
  each_block(keys_of, head, 0, before + first + count, [&](std::int64_t t, row_block const& block) {
    run.dot(block.data(), block.size(), block.type(), query.data(), count, keys_of.head_dim, queries.scale, logits + t,
            shape.max_tokens, {});
  });
  for (std::int64_t i = 0; i < count; ++i) {
    float* const row = logits + i * shape.max_tokens;
    std::int64_t const seen = before + first + i + 1;
    float const total = run.exponentials(row, seen, run.maximum(row, seen));
    float* const to = window.data() + q_head * shape.max_tokens;
    if (merged == group_merge::mean) {
      run.add_scaled(to, row, std::min(columns, seen), 1 / (total * static_cast<float>(queries.tokens)));
    } else {
      run.scale(row, std::min(columns, seen), 1 / total);
      run.raise(to, row, std::min(columns, seen));
    }
  }
}

/// `window` = mean, or maximum, over the window's queries of their attention to tokens [0, columns), for each query head.
void simd_exec::workspace::attention_of_window(query_window const& queries, rows const& keys_of, std::int64_t columns,
                                               group_merge merged) {
  std::int64_t const workers = window_workers();
  for_each(workers, everyone, [&](std::int64_t worker) {
    float* const strip = strips.data() + worker * strip_queries * shape.max_tokens;
    for (std::int64_t q = worker; q < queries.heads; q += workers) {
      std::fill_n(window.data() + q * shape.max_tokens, columns, 0.0f);
      for (std::int64_t first = 0; first < queries.tokens; first += strip_queries) {
        window_strip(queries, keys_of, q, first, std::min(strip_queries, queries.tokens - first), columns, merged, strip);
      }
    }
  });
}

/// One KV head's scores from its query heads' rows in `window`: each smoothed, then their mean; or merged first.
void simd_exec::workspace::smooth_into(table<float> scores, std::int64_t head, std::int64_t group, std::int64_t before,
                                       smoothing how) {
  std::int64_t const reach = how.how == smoothing::kind::none ? 0 : std::min(how.width / 2, before);
  float* const out = scores.row(head);
  std::fill_n(out, before, 0.0f);
  std::array<float, 512> smoothed;
  std::int64_t const last_q = how.of_group ? head * group + 1 : (head + 1) * group;
  bool const largest = how.of_group == group_merge::maximum;
  float* const merged = window.data() + head * group * shape.max_tokens;
  for (std::int64_t t = 0; largest && t < before; ++t) merged[t] = merged[t] >= 0 ? merged[t] : 0;  // NaN is ignored
  for (std::int64_t q = head * group + 1; how.of_group && q < (head + 1) * group; ++q) {
    float const* const from = window.data() + q * shape.max_tokens;
    if (largest) run.raise(merged, from, before);
    else run.add_scaled(merged, from, before, 1);
  }
  float const heads = largest ? 1.0f : static_cast<float>(group);
  for (std::int64_t q = head * group; q < last_q; ++q) {
    float const* const from = window.data() + q * shape.max_tokens;
    for (std::int64_t t = 0; t < before; t += std::ssize(smoothed)) {
      std::int64_t const count = std::min<std::int64_t>(std::ssize(smoothed), before - t);
      bool const maximum = how.how == smoothing::kind::maximum;
      smoothed.fill(maximum ? minus_infinity : 0);
      for (std::int64_t offset = -reach; offset <= reach; ++offset) {
        std::int64_t const low = std::max<std::int64_t>(0, -(t + offset));
        std::int64_t const high = std::min(count, before - (t + offset));
        if (low >= high) continue;
        if (maximum) run.raise(smoothed.data() + low, from + t + offset + low, high - low);
        else run.add_scaled(smoothed.data() + low, from + t + offset + low, high - low, 1);
      }
      float const width = how.how == smoothing::kind::average ? static_cast<float>(how.width) : 1.0f;
      run.add_scaled(out + t, smoothed.data(), count, 1 / (width * heads));
    }
  }
}

void simd_exec::window_attention(query_window const& queries, rows const& keys, smoothing smooth, table<float> scores) {
  workspace& w = *work_;
  w.check(keys, queries.heads);
  std::int64_t const before = keys.tokens - queries.tokens;
  std::int64_t const group = queries.heads / keys.heads;
  w.attention_of_window(queries, keys, before, smooth.queries);
  w.for_each(keys.heads, everyone, [&](std::int64_t head) { w.smooth_into(scores, head, group, before, smooth); });
}

void simd_exec::seen_attention(query_window const& queries, rows const& keys, table<float> scores) {
  workspace& w = *work_;
  w.check(keys, queries.heads);
  std::int64_t const group = queries.heads / keys.heads;
  w.attention_of_window(queries, keys, keys.tokens, group_merge::mean);
  w.for_each(keys.heads, everyone, [&](std::int64_t head) {
    w.smooth_into(scores, head, group, keys.tokens, {});
    for (std::int64_t t = 0; t < keys.tokens; ++t) {
      scores(head, t) *= static_cast<float>(queries.tokens) / static_cast<float>(std::min(queries.tokens, keys.tokens - t));
    }
  });
}

void simd_exec::row_norms(rows const& from, table<float> norms) {
  workspace& w = *work_;
  w.check(from, from.heads);
  w.for_each(from.heads * items_of(from.tokens), from.heads * from.tokens, [&](std::int64_t item) {
    std::int64_t const head = item % from.heads;
    std::int64_t const first = item / from.heads * item_tokens;
    w.each_block(from, head, first, std::min(first + item_tokens, from.tokens), [&](std::int64_t t, row_block const& block) {
      float* const out = norms.row(head) + t;
      w.run.square_sums(block.data(), block.size(), block.type(), from.head_dim, out);
      for (std::int64_t i = 0; i < block.size(); ++i) out[i] = std::sqrt(out[i]);
    });
  });
}

void simd_exec::key_similarity(rows const& keys, table<float> cosines) {
  workspace& w = *work_;
  w.check(keys, keys.heads);
  row_norms(keys, cosines);
  // Each head's sum of key / |key|, in as many parts as there is scratch for; then their sum.
  std::int64_t const parts = std::min(max_parts, items_of(keys.tokens));
  std::int64_t const dim = keys.head_dim;
  w.for_each(parts * keys.heads, keys.heads * keys.tokens, [&](std::int64_t item) {
    std::int64_t const head = item % keys.heads;
    std::int64_t const part = item / keys.heads;
    float* const sum = w.partial_of(part, head);
    std::fill_n(sum, dim, 0.0f);
    w.each_block(keys, head, keys.tokens * part / parts, keys.tokens * (part + 1) / parts,
                 [&](std::int64_t t, row_block const& block) {
                   std::array<float, block_rows> weights;
                   for (std::int64_t i = 0; i < block.size(); ++i) {
                     float const norm = cosines(head, t + i);
                     weights[static_cast<std::size_t>(i)] = norm == 0 ? 0 : 1 / norm;
                   }
                   w.run.accumulate(block.data(), block.size(), block.type(), weights.data(), block_rows, 1, dim, &sum, {});
                 });
  });
  w.for_each(keys.heads, keys.heads * parts, [&](std::int64_t head) {
    float* const sum = w.partial_of(0, head);
    for (std::int64_t part = 1; part < parts; ++part) w.run.add_scaled(sum, w.partial_of(part, head), dim, 1);
    double square = 0;
    for (std::int64_t i = 0; i < dim; ++i) square += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
    w.run.scale(sum, dim, square == 0 ? 0 : static_cast<float>(1 / std::sqrt(square)));
  });
  w.for_each(keys.heads * items_of(keys.tokens), keys.heads * keys.tokens, [&](std::int64_t item) {
    std::int64_t const head = item % keys.heads;
    std::int64_t const first = item / keys.heads * item_tokens;
    float const* const mean = w.partial_of(0, head);
    w.each_block(keys, head, first, std::min(first + item_tokens, keys.tokens), [&](std::int64_t t, row_block const& block) {
      std::array<float, block_rows> products;
      w.run.dot(block.data(), block.size(), block.type(), &mean, 1, dim, 1, products.data(), block_rows, {});
      for (std::int64_t i = 0; i < block.size(); ++i) {
        float& out = cosines(head, t + i);
        out = out == 0 ? 0 : products[static_cast<std::size_t>(i)] / out;
      }
    });
  });
}

void simd_exec::query_moments(query_window const& queries, rotation const& rope, std::int64_t first, table<float> mean,
                              table<float> covariance) {
  workspace& w = *work_;
  std::int64_t const dim = mean.columns;
  std::int64_t const pairs = rope.pairs;
  KVPOLICY_EXPECTS(queries.heads <= w.shape.q_heads && dim <= w.shape.head_dim,
                   "this executor was made for " + std::to_string(w.shape.q_heads) + " query heads x " +
                       std::to_string(w.shape.head_dim) + ", it was given " + std::to_string(queries.heads) + " x " +
                       std::to_string(dim));
  // Positions in blocks: their angles are worked out once, for all heads. visit(head, query without its rotation).
  auto const each_pre_rope = [&](auto visit) {
    for (std::int64_t from = 0; from < queries.tokens; from += block_rows) {
      std::int64_t const here = std::min(block_rows, queries.tokens - from);
      w.for_each(here, everyone, [&](std::int64_t t) {
        float* const angle_of = w.rope.data() + t * w.shape.head_dim;
        for (std::int64_t i = 0; i < pairs; ++i) {
          double const angle = static_cast<double>(first + from + t) * static_cast<double>(rope.inverse_frequency[i]);
          angle_of[2 * i] = static_cast<float>(std::cos(angle));
          angle_of[2 * i + 1] = static_cast<float>(std::sin(angle));
        }
      });
      w.for_each(queries.heads, everyone, [&](std::int64_t head) {
        float* const plain = w.partial_of(0, head);
        for (std::int64_t t = 0; t < here; ++t) {
          float const* const angle_of = w.rope.data() + t * w.shape.head_dim;
          std::copy_n(queries.at(from + t, head), dim, plain);
          for (std::int64_t i = 0; i < pairs; ++i) {
            bool const halves = rope.how == rotation::pairing::halves;
            float& a = plain[halves ? i : 2 * i];
            float& b = plain[halves ? i + pairs : 2 * i + 1];
            float const x = a;
            a = angle_of[2 * i] * x + angle_of[2 * i + 1] * b;
            b = angle_of[2 * i] * b - angle_of[2 * i + 1] * x;
          }
          visit(head, plain);
        }
      });
    }
  };
  auto const count = static_cast<float>(queries.tokens);
  for (std::int64_t h = 0; h < queries.heads; ++h) std::fill_n(mean.row(h), dim, 0.0f);
  each_pre_rope([&](std::int64_t head, float const* query) { w.run.add_scaled(mean.row(head), query, dim, 1 / count); });
  if (covariance.rows == 0) return;
  for (std::int64_t r = 0; r < queries.heads * dim; ++r) std::fill_n(covariance.row(r), dim, 0.0f);
  each_pre_rope([&](std::int64_t head, float* query) {
    w.run.add_scaled(query, mean.row(head), dim, -1);
    for (std::int64_t i = 0; i < dim; ++i) w.run.add_scaled(covariance.row(head * dim + i), query, dim, query[i] / count);
  });
}

void simd_exec::gaussian_attention(rows const& keys, gaussian_queries const& queries, std::int64_t first, table<float> scores) {
  workspace& w = *work_;
  std::int64_t const q_heads = queries.mean.rows;
  w.check(keys, q_heads);
  std::int64_t const group = q_heads / keys.heads;
  std::int64_t const dim = keys.head_dim;
  std::int64_t const count = keys.tokens - first;
  w.for_each(q_heads * items_of(count), everyone, [&](std::int64_t item) {
    std::int64_t const q = item % q_heads;
    std::int64_t const from = first + item / q_heads * item_tokens;
    w.each_block(keys, q / group, from, std::min(from + item_tokens, keys.tokens), [&](std::int64_t t, row_block const& block) {
      float* const logits = w.window.data() + q * w.shape.max_tokens + (t - first);
      float const* const mean = queries.mean.row(q);
      w.run.dot(block.data(), block.size(), block.type(), &mean, 1, dim, queries.scale, logits, block_rows, {});
      std::array<float, some_queries * block_rows> products;  // of some of the covariance's rows with each key
      for (std::int64_t i = 0; i < dim && queries.covariance.rows > 0; i += some_queries) {
        std::int64_t const chunk = std::min(some_queries, dim - i);
        std::array<float const*, some_queries> row;
        for (std::int64_t j = 0; j < chunk; ++j) row[static_cast<std::size_t>(j)] = queries.covariance.row(q * dim + i + j);
        w.run.dot(block.data(), block.size(), block.type(), row.data(), chunk, dim, queries.scale * queries.scale / 2,
                  products.data(), block_rows, {});
        for (std::int64_t j = 0; j < chunk; ++j) {
          for (std::int64_t r = 0; r < block.size(); ++r) {
            logits[r] += products[static_cast<std::size_t>(j * block_rows + r)] * block.element(r, i + j);
          }
        }
      }
    });
  });
  w.for_each(keys.heads, everyone, [&](std::int64_t head) {
    std::fill_n(scores.row(head), count, 0.0f);
    for (std::int64_t q = head * group; q < (head + 1) * group; ++q) {
      float* const row = w.window.data() + q * w.shape.max_tokens;
      float const total = w.run.exponentials(row, count, w.run.maximum(row, count));
      w.run.add_scaled(scores.row(head), row, count, 1 / (total * static_cast<float>(group)));
    }
  });
}

void simd_exec::following_queries(query_window const& queries, std::int64_t begin, rows const& keys, std::int64_t first,
                                  std::int64_t last, std::int64_t local, std::int32_t const* positions, table<float> scores) {
  workspace& w = *work_;
  w.check(keys, queries.heads);
  std::int64_t const group = queries.heads / keys.heads;
  std::int64_t const dim = keys.head_dim;
  std::int64_t const parts = std::clamp<std::int64_t>((last - first) / item_tokens, 1, max_parts);
  w.for_each(parts * keys.heads, everyone, [&](std::int64_t item) {
    std::int64_t const head = item % keys.heads;
    std::int64_t const part = item / keys.heads;
    std::int64_t const end = first + (last - first) * (part + 1) / parts;
    // The sum of the queries behind the token slides along; it is made anew now and then, so that rounding does not add up.
    float* const sum = w.partial_of(part, head);
    auto const add = [&](std::int64_t token, float sign) {
      if (token < begin || token >= begin + queries.tokens) return;
      for (std::int64_t q = head * group; q < (head + 1) * group; ++q)
        w.run.add_scaled(sum, queries.at(token - begin, q), dim, sign);
    };
    std::int64_t slid = 64;
    std::int64_t next = -1;  // the first token whose query is in the sum
    w.each_block(keys, head, first + (last - first) * part / parts, end, [&](std::int64_t t, row_block const& block) {
      for (std::int64_t r = 0; r < block.size(); ++r) {
        std::int64_t const m = t + r;
        std::int64_t const behind = 1 + (positions == nullptr ? m : positions[m]);
        if (behind == next + 1 && ++slid < 64) {
          add(next, -1);
          add(next + local, 1);
        } else {
          std::fill_n(sum, dim, 0.0f);
          for (std::int64_t i = behind; i < behind + local; ++i) add(i, 1);
          slid = 0;
        }
        next = behind;
        std::int64_t const seen = std::min(next + local, begin + queries.tokens) - std::max(next, begin);
        float product = 0;
        float const* const query = sum;
        w.run.dot(block.data() + r, 1, block.type(), &query, 1, dim, 1, &product, 1, {});
        scores(head, m - first) = seen > 0 ? product / static_cast<float>(seen * group) : 0;
      }
    });
  });
}

void simd_exec::partition_deviation(rows const& from, partitions const& cut, table<float> spread) {
  workspace& w = *work_;
  w.check(from, from.heads);
  std::int64_t const dim = from.head_dim;
  for (std::int64_t first = 0; first < cut.count; first += max_parts) {  // as many partitions at a time as there is scratch for
    std::int64_t const here = std::min(max_parts, cut.count - first);
    w.for_each(from.heads * here, everyone, [&](std::int64_t item) {
      std::int64_t const head = item % from.heads;
      std::int64_t const begin = cut.first + (first + item / from.heads) * cut.size;
      float* const low = w.bounds.data() + (item * 2 + 1) * w.shape.head_dim;
      float* const high = w.bounds.data() + item * 2 * w.shape.head_dim;
      std::fill_n(low, dim, std::numeric_limits<float>::infinity());
      std::fill_n(high, dim, minus_infinity);
      w.each_block(from, head, begin + cut.size, begin + 2 * cut.size, [&](std::int64_t, row_block const& block) {
        for (std::int64_t r = 0; r < block.size(); ++r) {
          for (std::int64_t i = 0; i < dim; ++i) {
            float const x = block.element(r, i);
            low[i] = std::min(low[i], x);
            high[i] = std::max(high[i], x);
          }
        }
      });
      w.each_block(from, head, begin, begin + cut.size, [&](std::int64_t t, row_block const& block) {
        for (std::int64_t r = 0; r < block.size(); ++r) {
          auto const scaled = [&](std::int64_t i) { return (block.element(r, i) - low[i]) / (high[i] - low[i]); };
          double mean = 0;
          for (std::int64_t i = 0; i < dim; ++i) mean += static_cast<double>(scaled(i)) / static_cast<double>(dim);
          double square = 0;
          for (std::int64_t i = 0; i < dim; ++i) square += (scaled(i) - mean) * (scaled(i) - mean);
          spread(head, t + r - cut.first) = static_cast<float>(std::sqrt(square / static_cast<double>(dim - 1)));
        }
      });
    });
  }
}

}  // namespace kvpolicy
