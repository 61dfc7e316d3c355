// simd_exec: cuts each primitive into items for the team and hands rows to the kernels.
#include "kvpolicy/exec/simd.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels.hpp"

namespace kvpolicy {
namespace {

constexpr std::int64_t block_rows = 64;      // rows of one kernel call, at most
constexpr std::int64_t block_bytes = 12288;  // of keys and values that attend works on: two such blocks fit the L1 cache
constexpr std::int64_t most_parts = 64;
constexpr std::int64_t copied_floats = 8192;  // of rows with odd strides, at a time
constexpr std::int64_t worth_sharing = 64;    // rows; below, waking the team costs more than it saves

/// Addresses of one head's rows of a few tokens; where their dims are not contiguous, of copies as floats.
class row_block {
 public:
  /// Rows that fit.
  static std::int64_t room(rows const& from) noexcept {
    return from.contiguous() ? block_rows : std::clamp<std::int64_t>(copied_floats / from.head_dim, 1, block_rows);
  }
  void fill(rows const& from, std::int64_t head, std::span<std::int64_t const> tokens) noexcept {
    count_ = std::ssize(tokens);
    type_ = from.contiguous() ? from.type : element_type::f32;
    auto const dim = static_cast<std::size_t>(from.head_dim);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (from.contiguous()) {
        address_[i] = from.address({head}, {tokens[i]});
      } else {
        std::span const copy(copies_.data() + i * dim, dim);
        from.load({head}, {tokens[i]}, copy);
        address_[i] = reinterpret_cast<std::byte const*>(copy.data());
      }
    }
  }
  std::byte const* const* data() const noexcept { return address_.data(); }
  std::int64_t size() const noexcept { return count_; }
  element_type type() const noexcept { return type_; }

 private:
  std::int64_t count_ = 0;
  element_type type_ = element_type::f32;
  std::array<std::byte const*, block_rows> address_;
  std::array<float, copied_floats> copies_;
};

/// Into how many parts a list is cut: enough for the team, not so many that merging them shows.
constexpr std::int64_t parts_of(std::int64_t tokens) noexcept {
  return tokens <= 2048 ? std::max<std::int64_t>(1, (tokens + 255) / 256)
                        : std::min<std::int64_t>((tokens + 511) / 512 + 4, most_parts);
}

/// Visits tokens [first, last) of a list, counted along it.
template <class Visit>
void each_token(range_list const& list, std::int64_t first, std::int64_t last, Visit visit) {
  std::int64_t passed = 0;
  for (token_range const& range : list) {
    std::int64_t const from = std::max(first, passed);
    std::int64_t const to = std::min(last, passed + range.size());
    for (std::int64_t i = from; i < to; ++i) visit(range.begin + (i - passed));
    passed += range.size();
    if (passed >= last) return;
  }
}

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

}  // namespace

/// All scratch. Its sizes follow from the shape alone; items index it by what they work on, so no two share a place.
struct simd_exec::workspace {
  cache_shape shape;
  team* threads;
  simd::kernels const& run = simd::best_kernels();
  std::vector<float> partial;        ///< `[most_parts, q_heads, head_dim + 2]`: sums, maximum, total
  std::vector<float> window;         ///< `[q_heads, max_tokens]`
  std::vector<float> bound_queries;  ///< `[kv_heads, 2 head_dim]`
  std::vector<std::uint32_t> keys;   ///< `[kv_heads, max_tokens]`

  workspace(cache_shape const& s, team* t)
      : shape(s),
        threads(t),
        partial(static_cast<std::size_t>(most_parts * s.q_heads * partial_size())),
        window(static_cast<std::size_t>(s.q_heads * s.max_tokens)),
        bound_queries(static_cast<std::size_t>(s.kv_heads * 2 * s.head_dim)),
        keys(static_cast<std::size_t>(s.kv_heads * s.max_tokens)) {}

  std::int64_t partial_size() const noexcept { return shape.head_dim + 2; }
  float* partial_of(std::int64_t part, std::int64_t q_head) noexcept {
    return partial.data() + (part * shape.q_heads + q_head) * partial_size();
  }

  /// body(i) for i in [0, items), shared with the team where the rows in all are worth it.
  template <class Body>
  void for_each(std::int64_t items, std::int64_t total_rows, Body&& body) {
    if (threads != nullptr && total_rows >= worth_sharing) {
      threads->for_each(items, body);
    } else {
      for (std::int64_t i = 0; i < items; ++i) body(i);
    }
  }

  void check(rows const& r, std::int64_t q_heads) const {
    KVPOLICY_EXPECTS(
        r.heads <= shape.kv_heads && q_heads <= shape.q_heads && r.head_dim <= shape.head_dim && r.tokens <= shape.max_tokens,
        "this executor was made for " + text(shape.q_heads, shape.kv_heads, shape.head_dim, shape.max_tokens) +
            ", it was given " + text(q_heads, r.heads, r.head_dim, r.tokens) + "; make a larger one");
    KVPOLICY_EXPECTS(r.contiguous() || r.head_dim <= copied_floats, "rows of " + std::to_string(r.head_dim) +
                                                                        " elements that are not contiguous; at most " +
                                                                        std::to_string(copied_floats) + " can be");
    KVPOLICY_EXPECTS(q_heads % r.heads == 0,
                     std::to_string(q_heads) + " query heads are no multiple of " + std::to_string(r.heads) + " KV heads");
  }

  static std::string text(std::int64_t q_heads, std::int64_t kv_heads, std::int64_t dim, std::int64_t tokens) {
    return std::to_string(q_heads) + "/" + std::to_string(kv_heads) + " heads x " + std::to_string(dim) + ", " +
           std::to_string(tokens) + " tokens";
  }

  void attend_part(query_heads const& queries, rows const& keys_of, rows const& values_of, range_list const& list,
                   std::int64_t first_head, std::int64_t last_head, std::int64_t part, std::int64_t first, std::int64_t last);
  void smooth_into(table<float> scores, std::int64_t head, std::int64_t group, std::int64_t before, smoothing how);
  void window_rows(query_window const& queries, rows const& keys_of, std::int64_t q_head, std::int64_t first,
                   std::int64_t count);
};

simd_exec::simd_exec(cache_shape const& shape, team* threads) : work_(std::make_unique<workspace>(shape, threads)) {}
simd_exec::simd_exec(simd_exec&&) noexcept = default;
simd_exec& simd_exec::operator=(simd_exec&&) noexcept = default;
simd_exec::~simd_exec() = default;

char const* simd_exec::instruction_set() noexcept { return simd::best_kernels().instruction_set; }

void simd_exec::pool_mean(rows const& keys, pooling const& what, table<float> means, std::int64_t column) {
  workspace& w = *work_;
  std::int64_t const first_unit = what.first / what.unit_size;
  std::int64_t const units = (what.last + what.unit_size - 1) / what.unit_size - first_unit;
  w.for_each(std::max<std::int64_t>(units, 0) * keys.heads, (what.last - what.first) * keys.heads, [&](std::int64_t item) {
    std::int64_t const head = item % keys.heads;
    std::int64_t const unit = first_unit + item / keys.heads;
    float* const mean = means.row(unit) + column + head * keys.head_dim;
    std::int64_t const last = std::min(what.last, (unit + 1) * what.unit_size);
    for (std::int64_t t = std::max(what.first, unit * what.unit_size); t < last; ++t) {
      std::int64_t const already = t % what.unit_size;
      float const weight = 1.0f / static_cast<float>(already + 1);
      if (already == 0) std::fill_n(mean, keys.head_dim, 0.0f);
      std::byte const* const row = keys.address({head}, {t});
      if (keys.contiguous()) {
        w.run.blend(row, keys.type, keys.head_dim, weight, mean);
      } else {
        for (std::int64_t i = 0; i < keys.head_dim; ++i) w.run.blend(row + i * keys.dim_stride, keys.type, 1, weight, mean + i);
      }
    }
  });
}

void simd_exec::pool_bounds(rows const& keys, pooling const& what, bounds_table const& bounds) {
  workspace& w = *work_;
  w.check(keys, keys.heads);
  std::int64_t const first_unit = what.first / what.unit_size;
  std::int64_t const units = (what.last + what.unit_size - 1) / what.unit_size - first_unit;
  std::int64_t const half = keys.head_dim * size_of(keys.type);
  w.for_each(std::max<std::int64_t>(units, 0) * keys.heads, (what.last - what.first) * keys.heads, [&](std::int64_t item) {
    std::int64_t const head = item % keys.heads;
    std::int64_t const unit = first_unit + item / keys.heads;
    std::byte* const high = bounds.unit(head, unit);
    std::int64_t const last = std::min(what.last, (unit + 1) * what.unit_size);
    std::int64_t first = std::max(what.first, unit * what.unit_size);
    bool fresh = first % what.unit_size == 0;
    for (; first < last; fresh = false) {
      std::int64_t const count = std::min(block_rows, last - first);
      std::array<std::byte const*, block_rows> address;
      for (std::int64_t i = 0; i < count; ++i) address[static_cast<std::size_t>(i)] = keys.address({head}, {first + i});
      if (keys.contiguous()) {
        w.run.bound(address.data(), count, keys.type, keys.head_dim, fresh, high, high + half);
      } else {
        std::int64_t const size = size_of(keys.type);
        for (std::int64_t i = 0; i < keys.head_dim; ++i) {
          w.run.bound(address.data(), count, keys.type, 1, fresh, high + i * size, high + half + i * size);
          for (std::int64_t r = 0; r < count; ++r) address[static_cast<std::size_t>(r)] += keys.dim_stride;
        }
      }
      first += count;
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

void simd_exec::score_bounds(query_heads const& queries, bounds_table const& bounds, std::int64_t units, table<float> scores) {
  workspace& w = *work_;
  w.check({.type = bounds.type, .heads = bounds.heads, .head_dim = bounds.head_dim, .dim_stride = size_of(bounds.type)},
          queries.heads);
  std::int64_t const group = queries.heads / bounds.heads;
  std::int64_t const dim = bounds.head_dim;
  // max(q min, q max) is q max for positive q and q min otherwise, and the mean over the group moves inside the sum: one
  // dot product of (mean of positive parts, mean of negative parts) with (maxima, minima) scores a page for its group.
  for (std::int64_t h = 0; h < bounds.heads; ++h) {
    float* const split = w.bound_queries.data() + h * 2 * w.shape.head_dim;
    std::fill_n(split, 2 * dim, 0.0f);
    for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
      float const* const query = queries.head(q);
      for (std::int64_t i = 0; i < dim; ++i) {
        split[i] += (query[i] > 0 ? query[i] : 0) / static_cast<float>(group);
        split[dim + i] += (query[i] > 0 ? 0 : query[i]) / static_cast<float>(group);
      }
    }
  }
  std::int64_t const blocks = (units + block_rows - 1) / block_rows;
  w.for_each(blocks * bounds.heads, units * bounds.heads, [&](std::int64_t item) {
    std::int64_t const head = item / blocks;
    std::int64_t const first = item % blocks * block_rows;
    std::int64_t const count = std::min(block_rows, units - first);
    std::array<std::byte const*, block_rows> address;
    for (std::int64_t i = 0; i < count; ++i) address[static_cast<std::size_t>(i)] = bounds.unit(head, first + i);
    float const* const split = w.bound_queries.data() + head * 2 * w.shape.head_dim;
    w.run.dot(address.data(), count, bounds.type, &split, 1, 2 * dim, 1, scores.row(head) + first, count, {});
  });
}

void simd_exec::top_k(table<float const> scores, std::span<std::int32_t const> k, table<std::int32_t> indices) {
  workspace& w = *work_;
  KVPOLICY_EXPECTS(scores.rows <= w.shape.kv_heads && scores.columns <= w.shape.max_tokens,
                   "this executor ranks up to " + std::to_string(w.shape.kv_heads) + " rows of " +
                       std::to_string(w.shape.max_tokens) + " scores, it was given " + std::to_string(scores.rows) + " of " +
                       std::to_string(scores.columns) + "; make a larger one");
  w.for_each(scores.rows, scores.rows * scores.columns / 64, [&](std::int64_t r) {
    std::int64_t const n = scores.columns;
    std::int64_t const wanted = std::min<std::int64_t>(k[static_cast<std::size_t>(r)], n);
    if (wanted == 0) return;
    std::uint32_t* const keys = w.keys.data() + r * w.shape.max_tokens;
    w.run.rank_keys(scores.row(r), n, keys);
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

/// Softmax sums over tokens [first, last) of the list, for the query heads of some KV heads, into the part's place. Heads
/// take turns at each block of tokens: their rows are neighbours in most caches, and share its pages.
void simd_exec::workspace::attend_part(query_heads const& queries, rows const& keys_of, rows const& values_of,
                                       range_list const& list, std::int64_t first_head, std::int64_t last_head,
                                       std::int64_t part, std::int64_t first, std::int64_t last) {
  std::int64_t const group = queries.heads / keys_of.heads;
  std::int64_t const dim = keys_of.head_dim;
  for (std::int64_t q = first_head * group; q < last_head * group; ++q) {
    float* const sums = partial_of(part, q);
    std::fill_n(sums, dim, 0.0f);
    sums[dim] = minus_infinity;
    sums[dim + 1] = 0;
  }
  row_block keys_here;
  row_block values_here;
  std::array<std::byte const*, block_rows> keys_ahead;
  std::array<std::byte const*, block_rows> values_ahead;
  auto const attend_head = [&](std::int64_t head, std::int64_t ahead) {
    std::int64_t const count = keys_here.size();
    std::int64_t const end = (head + 1) * group;
    for (std::int64_t q = head * group; q < end; q += simd::most_queries) {
      std::int64_t const chunk = std::min(simd::most_queries, end - q);
      std::array<float const*, simd::most_queries> query;
      std::array<float*, simd::most_queries> sums;
      std::array<float, simd::most_queries * block_rows> weights;
      for (std::int64_t i = 0; i < chunk; ++i) {
        query[static_cast<std::size_t>(i)] = queries.head(q + i);
        sums[static_cast<std::size_t>(i)] = partial_of(part, q + i);
      }
      run.dot(keys_here.data(), count, keys_here.type(), query.data(), chunk, dim, queries.scale, weights.data(), block_rows,
              {keys_ahead.data(), ahead});
      for (std::int64_t i = 0; i < chunk; ++i) {
        float* const at = sums[static_cast<std::size_t>(i)];
        float* const row = weights.data() + i * block_rows;
        float const most = std::max(at[dim], run.maximum(row, count));
        if (most > at[dim]) {
          float const shrink = std::exp(at[dim] - most);
          run.scale(at, dim, shrink);
          at[dim + 1] *= shrink;
          at[dim] = most;
        }
        at[dim + 1] += run.exponentials(row, count, most);
      }
      run.accumulate(values_here.data(), count, values_here.type(), weights.data(), block_rows, chunk, dim, sums.data(),
                     {values_ahead.data(), ahead});
      ahead = 0;
    }
  };
  // Two blocks of tokens: while one is worked on, head by head, the other's rows are fetched in the order of memory.
  struct token_block {
    std::array<std::int64_t, block_rows> tokens;
    std::size_t count = 0;
  };
  std::array<token_block, 2> blocks;
  std::size_t filling = 0;
  std::int64_t const heads = last_head - first_head;
  bool const fetched = keys_of.contiguous() && values_of.contiguous();
  auto const attend_block = [&](token_block& block, token_block const& next) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::span const tokens(block.tokens.data(), block.count);
      keys_here.fill(keys_of, first_head + h, tokens);
      values_here.fill(values_of, first_head + h, tokens);
      std::int64_t ahead = 0;
      if (fetched) {
        auto const rows_in_all = static_cast<std::int64_t>(next.count) * heads;
        for (std::int64_t i = h * rows_in_all / heads; i < (h + 1) * rows_in_all / heads; ++i, ++ahead) {
          token_index const token{next.tokens[static_cast<std::size_t>(i / heads)]};
          head_id const head{first_head + i % heads};
          keys_ahead[static_cast<std::size_t>(ahead)] = keys_of.address(head, token);
          values_ahead[static_cast<std::size_t>(ahead)] = values_of.address(head, token);
        }
      }
      attend_head(first_head + h, ahead);
    }
    block.count = 0;
  };
  std::int64_t const cached = block_bytes / (heads * 2 * dim * size_of(keys_of.type));
  auto const room = static_cast<std::size_t>(
      std::min({std::max<std::int64_t>(cached, 8), row_block::room(keys_of), row_block::room(values_of)}));
  each_token(list, first, last, [&](std::int64_t token) {
    token_block& block = blocks[filling];
    block.tokens[block.count++] = token;
    if (block.count < room) return;
    filling ^= 1;
    if (blocks[filling].count > 0) attend_block(blocks[filling], block);
  });
  if (blocks[filling ^ 1].count > 0) attend_block(blocks[filling ^ 1], blocks[filling]);
  if (blocks[filling].count > 0) attend_block(blocks[filling], blocks[filling ^ 1]);
}

void simd_exec::attend(query_heads const& queries, rows const& keys, rows const& values, selection const& kept,
                       table<float> out, std::span<float> log_sum_exp) {
  workspace& w = *work_;
  w.check(keys, queries.heads);
  std::int64_t const group = queries.heads / keys.heads;
  std::int64_t const dim = keys.head_dim;
  std::int64_t most = 1;
  std::int64_t total = 0;
  for (range_list const& list : kept.lists()) {
    std::int64_t const tokens = token_count(list);
    most = std::max(most, parts_of(tokens));
    total += tokens;
  }
  std::int64_t const lists = std::ssize(kept.lists());
  std::int64_t const heads_of_list = keys.heads / lists;  // one, or all
  w.for_each(most * lists, total * heads_of_list, [&](std::int64_t item) {
    std::int64_t const list_index = item % lists;
    std::int64_t const part = item / lists;
    range_list const& list = kept.lists()[static_cast<std::size_t>(list_index)];
    std::int64_t const tokens = token_count(list);
    std::int64_t const parts = parts_of(tokens);
    if (part >= parts) return;
    w.attend_part(queries, keys, values, list, list_index * heads_of_list, (list_index + 1) * heads_of_list, part,
                  tokens * part / parts, tokens * (part + 1) / parts);
  });
  for (std::int64_t q = 0; q < queries.heads; ++q) {
    std::int64_t const parts = parts_of(token_count(kept.of({q / group})));
    float highest = minus_infinity;
    for (std::int64_t p = 0; p < parts; ++p) highest = std::max(highest, w.partial_of(p, q)[dim]);
    float* const to = out.row(q);
    std::fill_n(to, dim, 0.0f);
    float sum = 0;
    for (std::int64_t p = 0; p < parts; ++p) {
      float const* const from = w.partial_of(p, q);
      if (from[dim + 1] == 0) continue;
      float const weight = std::exp(from[dim] - highest);
      w.run.add_scaled(to, from, dim, weight);
      sum += weight * from[dim + 1];
    }
    if (sum != 0) w.run.scale(to, dim, 1 / sum);
    if (!log_sum_exp.empty()) log_sum_exp[static_cast<std::size_t>(q)] = highest + std::log(sum);
  }
}

/// Window queries [first, first + count) of one query head: adds each one's attention / w to the head's row in `window`.
/// Keys are scored twice, first for the softmax's sums, so that no scratch grows with window x tokens.
void simd_exec::workspace::window_rows(query_window const& queries, rows const& keys_of, std::int64_t q_head,
                                       std::int64_t first, std::int64_t count) {
  std::int64_t const head = q_head / (queries.heads / keys_of.heads);
  std::int64_t const before = keys_of.tokens - queries.tokens;
  std::array<float const*, simd::most_queries> query;
  for (std::int64_t i = 0; i < count; ++i) query[static_cast<std::size_t>(i)] = queries.at(first + i, q_head);
  std::array<float, simd::most_queries> most;
  std::array<float, simd::most_queries> total;
  most.fill(minus_infinity);
  total.fill(0);
  std::array<float, simd::most_queries * block_rows> weights;
  row_block block;
  std::array<std::int64_t, block_rows> tokens;
  auto const each_block = [&](std::int64_t last, auto use) {
    for (std::int64_t t = 0; t < last; t += block.size()) {
      std::int64_t const here = std::min(row_block::room(keys_of), last - t);
      std::iota(tokens.begin(), tokens.begin() + here, t);
      block.fill(keys_of, head, std::span(tokens).first(static_cast<std::size_t>(here)));
      run.dot(block.data(), here, block.type(), query.data(), count, keys_of.head_dim, queries.scale, weights.data(),
              block_rows, {});
      for (std::int64_t i = 0; i < count; ++i) use(static_cast<std::size_t>(i), t, here);
    }
  };
  each_block(before + first + count, [&](std::size_t i, std::int64_t t, std::int64_t here) {
    std::int64_t const seen = std::min(here, before + first + static_cast<std::int64_t>(i) + 1 - t);
    if (seen <= 0) return;
    float* const row = weights.data() + static_cast<std::int64_t>(i) * block_rows;
    float const higher = std::max(most[i], run.maximum(row, seen));
    total[i] = total[i] * (most[i] == higher ? 1.0f : std::exp(most[i] - higher)) + run.exponentials(row, seen, higher);
    most[i] = higher;
  });
  each_block(before, [&](std::size_t i, std::int64_t t, std::int64_t here) {
    float* const row = weights.data() + static_cast<std::int64_t>(i) * block_rows;
    run.exponentials(row, here, most[i]);
    run.add_scaled(window.data() + q_head * shape.max_tokens + t, row, here,
                   1 / (total[i] * static_cast<float>(queries.tokens)));
  });
}

/// One KV head's scores from its query heads' rows in `window`: each smoothed, then their mean.
void simd_exec::workspace::smooth_into(table<float> scores, std::int64_t head, std::int64_t group, std::int64_t before,
                                       smoothing how) {
  std::int64_t const reach = how.how == smoothing::kind::none ? 0 : how.width / 2;
  float* const out = scores.row(head);
  std::fill_n(out, before, 0.0f);
  std::array<float, 512> smoothed;
  for (std::int64_t q = head * group; q < (head + 1) * group; ++q) {
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
      run.add_scaled(out + t, smoothed.data(), count, 1 / (width * static_cast<float>(group)));
    }
  }
}

void simd_exec::window_attention(query_window const& queries, rows const& keys, smoothing smooth, table<float> scores) {
  workspace& w = *work_;
  w.check(keys, queries.heads);
  std::int64_t const before = keys.tokens - queries.tokens;
  std::int64_t const group = queries.heads / keys.heads;
  std::int64_t const all = std::numeric_limits<std::int64_t>::max();
  w.for_each(queries.heads, all, [&](std::int64_t q) {
    std::fill_n(w.window.data() + q * w.shape.max_tokens, before, 0.0f);
    for (std::int64_t first = 0; first < queries.tokens; first += simd::most_queries) {
      w.window_rows(queries, keys, q, first, std::min(simd::most_queries, queries.tokens - first));
    }
  });
  w.for_each(keys.heads, all, [&](std::int64_t head) { w.smooth_into(scores, head, group, before, smooth); });
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
