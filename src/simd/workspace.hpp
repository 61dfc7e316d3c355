// What simd_exec's translation units share: blocks of rows, and all scratch.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "block_workspace.hpp"
#include "kernels.hpp"
#include "kvpolicy/exec/simd.hpp"
#include "widen.hpp"

namespace kvpolicy {
namespace simd {

constexpr std::int64_t block_rows = 64;       // rows of one kernel call, at most
constexpr std::int64_t block_bytes = 12288;   // of keys and values that attend works on: two such blocks fit the L1 cache
constexpr std::int64_t max_parts = 64;        // of a prompt's rows
constexpr std::int64_t some_queries = 16;     // that share the rows of one kernel call
constexpr std::int64_t strip_queries = 16;    // of a window, that share one reading of the keys
constexpr std::int64_t copied_floats = 8192;  // of rows with odd strides, at a time
constexpr std::int64_t worth_sharing = 64;    // rows; below, waking the team costs more than it saves
constexpr std::int64_t everyone = std::numeric_limits<std::int64_t>::max();  // rows: always worth sharing

/// Addresses of one head's rows of a few tokens; where they are not plain, of copies as floats.
class row_block {
 public:
  /// Rows that fit.
  static std::int64_t room(rows const& from) noexcept {
    return from.plain() ? block_rows : std::clamp<std::int64_t>(copied_floats / from.head_dim, 1, block_rows);
  }
  void fill(rows const& from, std::int64_t head, std::span<std::int64_t const> tokens) noexcept {
    count_ = std::ssize(tokens);
    type_ = from.plain() ? from.type : element_type::f32;
    if (!from.plain()) return copy_rows(from, head, tokens, widen_, copies_.data(), address_.data());
    for (std::size_t i = 0; i < tokens.size(); ++i) address_[i] = from.address({head}, {tokens[i]});
  }
  std::byte const* const* data() const noexcept { return address_.data(); }
  float element(std::int64_t row, std::int64_t i) const noexcept {
    return element_at(address_[static_cast<std::size_t>(row)], i, type_);
  }
  std::int64_t size() const noexcept { return count_; }
  element_type type() const noexcept { return type_; }

 private:
  std::int64_t count_ = 0;
  element_type type_ = element_type::f32;
  widen_function widen_ = best_widen();
  std::array<std::byte const*, block_rows> address_;
  std::array<float, copied_floats> copies_;
};

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// Where a part of a list begins, counted along it: 16 parts of 256 tokens, 16 of 512, and so on. Where parts begin does not
/// depend on the list's length, so a query's bits don't depend on the tokens behind it; there are few parts to merge, and the
/// longest is a small share of the list.
constexpr std::int64_t part_begin(std::int64_t part) noexcept {
  std::int64_t const doubled = part / 16;
  return 256 * (16 * ((std::int64_t{1} << doubled) - 1) + (part % 16 << doubled));
}
constexpr std::int64_t parts_of(std::int64_t tokens) noexcept {
  std::int64_t parts = 0;
  while (part_begin(parts) < tokens) ++parts;
  return parts;
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

/// visit(place of the first, block) over blocks of a head's tokens [first, last) of a list, counted along it.
template <class Visit>
void each_listed(rows const& from, std::int64_t head, range_list const& list, std::int64_t first, std::int64_t last,
                 Visit visit) {
  row_block block;
  std::array<std::int64_t, block_rows> tokens;
  std::size_t count = 0;
  std::int64_t at = first;
  auto const flush = [&] {
    if (count == 0) return;
    block.fill(from, head, std::span(tokens).first(count));
    visit(at, block);
    at += static_cast<std::int64_t>(count);
    count = 0;
  };
  each_token(list, first, last, [&](std::int64_t token) {
    tokens[count++] = token;
    if (static_cast<std::int64_t>(count) == row_block::room(from)) flush();
  });
  flush();
}

}  // namespace simd

/// All scratch. Its sizes follow from the shape alone; items index it by what they work on, so no two share a place. What
/// grows with the tokens is not filled: its memory is there when as many tokens came.
struct simd_exec::workspace {
  cache_shape shape;
  team* threads;
  simd::kernels const& run = simd::best_kernels();
  simd::raw_room partial;                 ///< floats `[parts, most_step_tokens * q_heads, head_dim + 2]`: sums, maximum, total
  simd::unset_array<float> window;        ///< `[q_heads, max_tokens]`
  simd::unset_array<float> strips;        ///< `[window_workers, strip_queries, max_tokens]`
  std::vector<float> bound_queries;       ///< `[q_heads, 2 head_dim]`
  simd::unset_array<std::uint32_t> keys;  ///< `[kv_heads, max_tokens]`
  simd::unset_array<float> bounds;        ///< `[max_parts, kv_heads, 2, head_dim]`
  std::vector<float> rope;                ///< `[block_rows, head_dim]`: cosines and sines of a block's positions
  simd::block_workspace tiled;

  workspace(cache_shape const& s, team* t)
      : shape(s),
        threads(t),
        partial(simd::raw_bytes(std::max(simd::parts_of(s.max_tokens), simd::max_parts) * most_step_tokens * s.q_heads *
                                partial_size() * 4)),
        window(s.q_heads * s.max_tokens),
        strips(window_workers() * simd::strip_queries * s.max_tokens),
        bound_queries(static_cast<std::size_t>(s.q_heads * 2 * s.head_dim)),
        keys(s.kv_heads * s.max_tokens),
        bounds(simd::max_parts * s.kv_heads * 2 * s.head_dim),
        rope(static_cast<std::size_t>(simd::block_rows * s.head_dim)),
        tiled(s) {}

  /// Threads that share a window's query heads.
  std::int64_t window_workers() const noexcept {
    return threads == nullptr ? 1 : std::min<std::int64_t>(threads->size(), shape.q_heads);
  }
  std::int64_t partial_size() const noexcept { return shape.head_dim + 2; }
  float* partial_of(std::int64_t part, std::int64_t query) noexcept {
    return reinterpret_cast<float*>(partial.get()) + (part * most_step_tokens * shape.q_heads + query) * partial_size();
  }

  /// body(i) for i in [0, items), shared with the team where the rows in all are worth it.
  template <class Body>
  void for_each(std::int64_t items, std::int64_t total_rows, Body&& body) {
    if (threads != nullptr && total_rows >= simd::worth_sharing) {
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
    KVPOLICY_EXPECTS(r.plain() || r.head_dim <= simd::copied_floats,
                     "rows of " + std::to_string(r.head_dim) + " elements that are not contiguous, or in blocks; at most " +
                         std::to_string(simd::copied_floats) + " can be");
    KVPOLICY_EXPECTS(q_heads % r.heads == 0,
                     std::to_string(q_heads) + " query heads are no multiple of " + std::to_string(r.heads) + " KV heads");
  }

  static std::string text(std::int64_t q_heads, std::int64_t kv_heads, std::int64_t dim, std::int64_t tokens) {
    return std::to_string(q_heads) + "/" + std::to_string(kv_heads) + " heads x " + std::to_string(dim) + ", " +
           std::to_string(tokens) + " tokens";
  }

  void smooth_into(table<float> scores, std::int64_t head, std::int64_t group, std::int64_t before, smoothing how);
  void window_strip(query_window const& queries, rows const& keys_of, std::int64_t q_head, std::int64_t first,
                    std::int64_t count, std::int64_t columns, group_merge merged, float* logits);
  void attention_of_window(query_window const& queries, rows const& keys_of, std::int64_t columns, group_merge merged);

  /// visit(first token, block) over blocks of a head's tokens [first, last).
  template <class Visit>
  void each_block(rows const& from, std::int64_t head, std::int64_t first, std::int64_t last, Visit visit) const {
    simd::row_block block;
    std::array<std::int64_t, simd::block_rows> tokens;
    for (std::int64_t t = first; t < last; t += block.size()) {
      std::int64_t const here = std::min(simd::row_block::room(from), last - t);
      for (std::int64_t i = 0; i < here; ++i) tokens[static_cast<std::size_t>(i)] = t + i;
      block.fill(from, head, std::span(tokens).first(static_cast<std::size_t>(here)));
      visit(t, block);
    }
  }
};

}  // namespace kvpolicy
