// simd_exec: cuts each primitive into items for the team and hands rows to the kernels.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "workspace.hpp"

namespace kvpolicy {

using namespace simd;

/// Scratch for keys serves values that are not wider.
static cache_shape widest(cache_shape shape) noexcept {
  shape.head_dim = std::max(shape.head_dim, shape.values_dim());
  return shape;
}

simd_exec::simd_exec(cache_shape const& shape, team* threads) : work_(std::make_unique<workspace>(widest(shape), threads)) {}
simd_exec::simd_exec(simd_exec&&) noexcept = default;
simd_exec& simd_exec::operator=(simd_exec&&) noexcept = default;
simd_exec::~simd_exec() = default;

char const* simd_exec::instruction_set() noexcept { return simd::best_kernels().instruction_set; }

namespace {

/// Runs visit(head, unit, first, last) for each head and unit of which tokens [first, last) are pooled; units begin at
/// `origin`.
template <class Workspace, class Visit>
void each_unit(Workspace& w, rows const& keys, pooling const& what, std::int64_t origin, Visit visit) {
  std::int64_t const size = what.unit_size;
  std::int64_t const first_unit = (what.first - origin) / size;
  std::int64_t const units = (what.last - origin + size - 1) / size - first_unit;
  w.for_each(std::max<std::int64_t>(units, 0) * keys.heads, (what.last - what.first) * keys.heads, [&](std::int64_t item) {
    std::int64_t const unit = first_unit + item / keys.heads;
    visit(item % keys.heads, unit, std::max(what.first, origin + unit * size), std::min(what.last, origin + (unit + 1) * size));
  });
}

}  // namespace

void simd_exec::pool_mean(rows const& keys, pooling const& what, table<float> means, std::int64_t column) {
  workspace& w = *work_;
  bool const rotated = what.rotated.angles != nullptr;
  KVPOLICY_EXPECTS(!rotated || keys.head_dim <= copied_floats, "keys of " + std::to_string(keys.head_dim) +
                                                                   " channels that are rotated back; at most " +
                                                                   std::to_string(copied_floats) + " can be");
  each_unit(w, keys, what, what.origin, [&](std::int64_t head, std::int64_t unit, std::int64_t first, std::int64_t last) {
    float* const mean = means.row(unit) + column + head * keys.head_dim;
    w.each_block(keys, head, first, last, [&](std::int64_t t, row_block const& block) {
      for (std::int64_t r = 0; r < block.size(); ++r) {
        std::int64_t const already = (t + r - what.origin) % what.unit_size;
        if (already == 0) std::fill_n(mean, keys.head_dim, 0.0f);
        float const share = 1.0f / static_cast<float>(already + 1);
        if (!rotated) {
          w.run.blend(block.data()[r], block.type(), keys.head_dim, share, mean);
          continue;
        }
        std::array<float, copied_floats> row;
        std::fill_n(row.begin(), keys.head_dim, 0.0f);
        w.run.blend(block.data()[r], block.type(), keys.head_dim, 1, row.data());
        what.rotated.undo(keys.at({head}, {t + r}).value, row.data());
        w.run.blend(reinterpret_cast<std::byte const*>(row.data()), element_type::f32, keys.head_dim, share, mean);
      }
    });
  });
}

/// Of copies as floats: exact, or rounded where the bounds' type is narrower than what was copied.
static void bound_floats(simd::kernels const& run, row_block const& block, std::int64_t dims, bool fresh, element_type type,
                         std::byte* high, std::byte* low) {
  constexpr std::int64_t some = 64;
  float const most = largest(type);
  std::array<std::byte const*, block_rows> from;
  std::array<float, some> highest;
  std::array<float, some> lowest;
  for (std::int64_t first = 0; first < dims; first += some) {
    std::int64_t const count = std::min(some, dims - first);
    for (std::int64_t r = 0; r < block.size(); ++r) from[static_cast<std::size_t>(r)] = block.data()[r] + first * 4;
    for (std::int64_t i = 0; i < count && !fresh; ++i) {
      highest[static_cast<std::size_t>(i)] = element_at(high, first + i, type);
      lowest[static_cast<std::size_t>(i)] = element_at(low, first + i, type);
    }
    run.bound(from.data(), block.size(), element_type::f32, count, fresh, reinterpret_cast<std::byte*>(highest.data()),
              reinterpret_cast<std::byte*>(lowest.data()));
    for (std::int64_t i = 0; i < count; ++i) {
      put_element(high, first + i, type, std::clamp(highest[static_cast<std::size_t>(i)], -most, most));
      put_element(low, first + i, type, std::clamp(lowest[static_cast<std::size_t>(i)], -most, most));
    }
  }
}

void simd_exec::pool_bounds(rows const& keys, pooling const& what, bounds_table const& bounds) {
  workspace& w = *work_;
  w.check(keys, keys.heads);
  each_unit(w, keys, what, 0, [&](std::int64_t head, std::int64_t unit, std::int64_t first, std::int64_t last) {
    std::byte* const high = bounds.unit(head, unit);
    std::byte* const low = high + keys.head_dim * size_of(bounds.type);
    w.each_block(keys, head, first, last, [&](std::int64_t t, row_block const& block) {
      bool const fresh = t % what.unit_size == 0;
      if (block.type() == bounds.type) {
        w.run.bound(block.data(), block.size(), block.type(), keys.head_dim, fresh, high, low);
      } else {
        bound_floats(w.run, block, keys.head_dim, fresh, bounds.type, high, low);
      }
    });
  });
}

void simd_exec::pool_mean_deviation(rows const& keys, pooling const& what, float* moments, bounds_table const& bounds) {
  workspace& w = *work_;
  w.check(keys, keys.heads);
  if (what.first >= what.last) return;
  float const most = largest(bounds.type);
  std::int64_t const dim = keys.head_dim;
  each_unit(w, keys, what, what.origin, [&](std::int64_t head, std::int64_t unit, std::int64_t first, std::int64_t last) {
    float* const mean = moments + (head * bounds.units + unit) * 2 * dim;
    float* const squares = mean + dim;
    std::int64_t const begin = what.origin + unit * what.unit_size;
    w.each_block(keys, head, first, last, [&](std::int64_t t, row_block const& block) {
      for (std::int64_t r = 0; r < block.size(); ++r) {
        auto const count = static_cast<float>(t + r - begin + 1);
        for (std::int64_t i = 0; i < dim; ++i) {
          float const value = block.element(r, i);
          float const before = count == 1 ? value : mean[i];
          mean[i] = before + (value - before) / count;
          squares[i] = (count == 1 ? 0 : squares[i]) + (value - before) * (value - mean[i]);
        }
      }
    });
    auto const count = static_cast<float>(last - begin);
    for (std::int64_t i = 0; i < dim; ++i) {
      float const deviation = std::sqrt(squares[i] / count);
      put_element(bounds.unit(head, unit), i, bounds.type, std::clamp(mean[i] + deviation, -most, most));
      put_element(bounds.unit(head, unit), dim + i, bounds.type, std::clamp(mean[i] - deviation, -most, most));
    }
  });
}

void simd_exec::score_dot(std::span<float const> anchor, table<float const> vectors, std::span<std::int32_t const> units,
                          std::span<float> scores) {
  workspace& w = *work_;
  constexpr std::int64_t item_rows = 8;
  auto const count = static_cast<std::int64_t>(units.size());
  std::int64_t const weight = static_cast<std::int64_t>(anchor.size()) / 64;
  w.for_each((count + item_rows - 1) / item_rows, count * std::max<std::int64_t>(weight, 1), [&](std::int64_t item) {
    std::int64_t const first = item * item_rows;
    std::int64_t const here = std::min(item_rows, count - first);
    std::array<std::byte const*, item_rows> address;
    for (std::int64_t i = 0; i < here; ++i) {
      address[static_cast<std::size_t>(i)] =
          reinterpret_cast<std::byte const*>(vectors.row(units[static_cast<std::size_t>(first + i)]));
    }
    float const* const query = anchor.data();
    w.run.dot(address.data(), here, element_type::f32, &query, 1, static_cast<std::int64_t>(anchor.size()), 1,
              scores.data() + first, here, {});
  });
}

void simd_exec::score_bounds(query_heads const& queries, bounds_table const& bounds, std::int64_t units, group_merge merged,
                             table<float> scores) {
  workspace& w = *work_;
  w.check({.type = bounds.type, .heads = bounds.heads, .head_dim = bounds.head_dim, .dim_stride = size_of(bounds.type)},
          queries.heads);
  std::int64_t const group = queries.heads / bounds.heads;
  std::int64_t const dim = bounds.head_dim;
  // max(q min, q max) is q max for positive q and q min otherwise: a dot product of (positive parts, negative parts) with
  // (maxima, minima). A mean over the group moves inside the sum: then one such query scores a page for its group.
  std::int64_t const splits = merged == group_merge::mean ? 1 : group;
  auto const split_of = [&](std::int64_t h, std::int64_t s) {
    return w.bound_queries.data() + (h * splits + s) * 2 * w.shape.head_dim;
  };
  for (std::int64_t q = 0; q < queries.heads; ++q) {
    float* const split = split_of(q / group, merged == group_merge::mean ? 0 : q % group);
    if (merged == group_merge::maximum || q % group == 0) std::fill_n(split, 2 * dim, 0.0f);
    float const* const query = queries.head(q);
    auto const share = static_cast<float>(group / splits);
    for (std::int64_t i = 0; i < dim; ++i) {
      split[i] += (query[i] > 0 ? query[i] : 0) / share;
      split[dim + i] += (query[i] > 0 ? 0 : query[i]) / share;
    }
  }
  std::int64_t const blocks = (units + block_rows - 1) / block_rows;
  w.for_each(blocks * bounds.heads, units * bounds.heads, [&](std::int64_t item) {
    std::int64_t const head = item / blocks;
    std::int64_t const first = item % blocks * block_rows;
    std::int64_t const count = std::min(block_rows, units - first);
    std::array<std::byte const*, block_rows> address;
    for (std::int64_t i = 0; i < count; ++i) address[static_cast<std::size_t>(i)] = bounds.unit(head, first + i);
    float* const out = scores.row(head) + first;
    std::array<float, some_queries * block_rows> some;
    for (std::int64_t s = 0; s < splits; s += some_queries) {
      std::int64_t const here = std::min(some_queries, splits - s);
      std::array<float const*, some_queries> split;
      for (std::int64_t i = 0; i < here; ++i) split[static_cast<std::size_t>(i)] = split_of(head, s + i);
      w.run.dot(address.data(), count, bounds.type, split.data(), here, 2 * dim, 1, some.data(), block_rows, {});
      for (std::int64_t i = 0; i < here; ++i) {
        float const* const from = some.data() + i * block_rows;
        if (s + i == 0) std::copy_n(from, count, out);
        for (std::int64_t u = 0; u < count; ++u) out[u] = from[u] > out[u] || from[u] != from[u] ? from[u] : out[u];
      }
    }
  });
}

void simd_exec::top_k(table<float const> scores, std::span<std::int32_t const> k, table<std::int32_t> indices) {
  workspace& w = *work_;
  KVPOLICY_EXPECTS(scores.rows * scores.columns <= w.keys.size(),
                   "this executor ranks up to " + std::to_string(w.keys.size()) + " scores at once, it was given " +
                       std::to_string(scores.rows) + " rows of " + std::to_string(scores.columns) + "; make a larger one");
  w.for_each(scores.rows, scores.rows * scores.columns / 64, [&](std::int64_t r) {
    std::int64_t const n = scores.columns;
    std::int64_t const wanted = std::min<std::int64_t>(k[static_cast<std::size_t>(r)], n);
    if (wanted == 0) return;
    std::uint32_t* const keys = w.keys.data() + r * n;
    w.run.sortable_keys(scores.row(r), n, keys);
    std::uint32_t threshold = 0;  // becomes the wanted-th largest key, bit by bit
    for (std::uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
      if (w.run.count_from(keys, n, threshold | bit) >= wanted) threshold |= bit;
    }
    bool const top = threshold == std::numeric_limits<std::uint32_t>::max();
    std::int64_t equal = wanted - (top ? 0 : w.run.count_from(keys, n, threshold + 1));
    std::int32_t* out = indices.row(r);
    for (std::int64_t i = 0; i < n; ++i) {
      if (keys[i] > threshold || (keys[i] == threshold && equal-- > 0)) *out++ = static_cast<std::int32_t>(i);
    }
  });
}

void simd_exec::list_attention(query_heads const& queries, rows const& keys, std::span<range_list const> lists,
                               group_merge merged, table<float> out) {
  workspace& w = *work_;
  w.check(keys, queries.heads);
  constexpr std::int64_t part = 256;  // tokens
  std::int64_t const group = queries.heads / keys.heads;
  std::int64_t most = 0;
  for (range_list const& list : lists) most = std::max(most, token_count(list));
  KVPOLICY_EXPECTS(most <= w.shape.max_tokens, "a list of " + std::to_string(most) + " tokens; this executor was made for " +
                                                   std::to_string(w.shape.max_tokens));
  std::int64_t const parts = (most + part - 1) / part;
  w.for_each(parts * keys.heads, most * keys.heads, [&](std::int64_t item) {
    std::int64_t const head = item % keys.heads;
    std::int64_t const begin = item / keys.heads * part;
    each_listed(keys, head, list_of(lists, head), begin, begin + part, [&](std::int64_t at, row_block const& block) {
      for (std::int64_t q = head * group; q < (head + 1) * group; q += some_queries) {
        std::int64_t const chunk = std::min(some_queries, (head + 1) * group - q);
        std::array<float const*, some_queries> query;
        for (std::int64_t i = 0; i < chunk; ++i) query[static_cast<std::size_t>(i)] = queries.head(q + i);
        w.run.dot(block.data(), block.size(), block.type(), query.data(), chunk, keys.head_dim, queries.scale,
                  w.window.data() + q * w.shape.max_tokens + at, w.shape.max_tokens, {});
      }
    });
  });
  w.for_each(keys.heads, most * keys.heads, [&](std::int64_t head) {
    std::int64_t const count = token_count(list_of(lists, head));
    std::fill_n(out.row(head), count, 0.0f);
    for (std::int64_t q = head * group; q < (head + 1) * group && count > 0; ++q) {
      float* const row = w.window.data() + q * w.shape.max_tokens;
      float const total = w.run.exponentials(row, count, w.run.maximum(row, count));
      if (merged == group_merge::mean) {
        w.run.add_scaled(out.row(head), row, count, 1 / (total * static_cast<float>(group)));
      } else {
        for (std::int64_t i = 0; i < count; ++i) {
          float const weight = row[i] / total;
          if (!(weight <= out(head, i))) out(head, i) = weight;
        }
      }
    }
  });
}

uncertainty simd_exec::entropy(std::span<float const> logits) {
  simd::kernels const& run = work_->run;
  auto const count = static_cast<std::int64_t>(logits.size());
  float const most = run.maximum(logits.data(), count);
  double sums[3];
  run.entropy_sums(logits.data(), count, most, sums);
  // With x = most - logit and Z = sum e^-x: -log p = log Z + x.
  double const mean = sums[1] / sums[0];
  double const square = sums[2] / sums[0];
  return {static_cast<float>(std::log(sums[0]) + mean), static_cast<float>(std::max(0.0, square - mean * mean) + 0 * mean)};
}

}  // namespace kvpolicy
