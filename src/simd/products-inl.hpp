// Products of queries with rows, and of weights with rows: what attention spends its time on. Included once per instruction
// set.
#if defined(KVPOLICY_SIMD_PRODUCTS) == defined(HWY_TARGET_TOGGLE)
#ifdef KVPOLICY_SIMD_PRODUCTS
#undef KVPOLICY_SIMD_PRODUCTS
#else
#define KVPOLICY_SIMD_PRODUCTS
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <type_traits>

#include "kernels.hpp"
#include "storage-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace kvpolicy::simd::HWY_NAMESPACE {

/// Bytes [from, from + bytes) of row `r` of those ahead, if there is one.
HWY_INLINE void fetch_part(rows_ahead ahead, std::int64_t r, std::int64_t from, std::int64_t bytes) {
  if (r >= ahead.count) return;
  for (std::int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(ahead.rows[r] + from + i);
}

HWY_INLINE void fetch(rows_ahead ahead, std::int64_t first, std::int64_t last, std::int64_t bytes) {
  for (std::int64_t r = first; r < last; ++r) fetch_part(ahead, r, 0, bytes);
}

/// Sums of four vectors, into out[0..3].
template <class D>
HWY_INLINE void store_sums(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> e, float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = hn::GetLane(hn::SumOfLanes(d, a));
  out[1] = hn::GetLane(hn::SumOfLanes(d, b));
  out[2] = hn::GetLane(hn::SumOfLanes(d, c));
  out[3] = hn::GetLane(hn::SumOfLanes(d, e));
#else
  // After the first addition each 128-bit block holds a b a b (c e c e), after the second a b c e.
  auto const ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  auto const ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  hn::RepartitionToWide<D> const pairs;
  auto const low = hn::InterleaveLower(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, ce));
  auto const high = hn::InterleaveUpper(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, ce));
  auto const sums = hn::Add(hn::BitCast(d, low), hn::BitCast(d, high));
  if constexpr (hn::MaxLanes(D{}) == 16) {
    hn::Half<D> const half;
    hn::Half<hn::Half<D> > const quarter;
    auto const eight = hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums));
    hn::StoreU(hn::Add(hn::LowerHalf(quarter, eight), hn::UpperHalf(quarter, eight)), quarter, out);
  } else if constexpr (hn::MaxLanes(D{}) == 8) {
    hn::Half<D> const half;
    hn::StoreU(hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)), half, out);
  } else {
    alignas(64) float lanes_of[hn::MaxLanes(D{})];
    hn::Store(sums, d, lanes_of);
    for (std::size_t i = 0; i < 4; ++i) {
      out[i] = 0;
      for (std::size_t block = i; block < hn::Lanes(d); block += 4) out[i] += lanes_of[block];
    }
  }
#endif
}

template <class Type, int Queries>
HWY_INLINE void dot_four(std::byte const* const* rows, float const* const* queries, std::int64_t dims, float scale,
                         float* scores, std::int64_t stride) {
  vector sums[Queries][4];
  HWY_UNROLL(8)
  for (int q = 0; q < Queries; ++q) {
    HWY_UNROLL(8)
    for (int r = 0; r < 4; ++r) sums[q][r] = hn::Zero(f);
  }
  std::int64_t i = 0;
  for (; i + lanes <= dims; i += lanes) {
    vector const row0 = Type::load(rows[0] + i * Type::size);
    vector const row1 = Type::load(rows[1] + i * Type::size);
    vector const row2 = Type::load(rows[2] + i * Type::size);
    vector const row3 = Type::load(rows[3] + i * Type::size);
    HWY_UNROLL(8)
    for (int q = 0; q < Queries; ++q) {
      vector const query = hn::LoadU(f, queries[q] + i);
      sums[q][0] = hn::MulAdd(query, row0, sums[q][0]);
      sums[q][1] = hn::MulAdd(query, row1, sums[q][1]);
      sums[q][2] = hn::MulAdd(query, row2, sums[q][2]);
      sums[q][3] = hn::MulAdd(query, row3, sums[q][3]);
    }
  }
  HWY_UNROLL(8)
  for (int q = 0; q < Queries; ++q) {
    float* const out = scores + q * stride;
    store_sums(f, sums[q][0], sums[q][1], sums[q][2], sums[q][3], out);
    for (std::int64_t j = i; j < dims; ++j) {
      HWY_UNROLL(8)
      for (int r = 0; r < 4; ++r) out[r] += queries[q][j] * Type::get(rows[r] + j * Type::size);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < 4; ++r) out[r] *= scale;
  }
}

/// Calls body(count, first) for runs of at most `Most` (to 4) queries, the count as a constant.
template <int Most = 4, class Body>
HWY_INLINE void each_queries(std::int64_t query_count, Body body) {
  std::int64_t first = 0;
  for (; first + Most <= query_count; first += Most) body(std::integral_constant<int, Most>{}, first);
  switch (query_count - first) {
    case 1:
      return body(std::integral_constant<int, 1>{}, first);
    case 2:
      return body(std::integral_constant<int, 2>{}, first);
    case 3:
      return body(std::integral_constant<int, 3>{}, first);
    default:
      return;
  }
}

#if HWY_TARGET != HWY_SCALAR
/// Queries from which transposing the rows costs less than adding up the lanes of each product.
constexpr std::int64_t worth_transposing = 8;
constexpr std::int64_t transposed_dims = 256;  ///< at most

/// Stores the 128-bit blocks of some vectors, block b of all of them side by side at to + b * 4 * lanes.
HWY_INLINE void store_blocks(vector const (&of)[lanes / 4], float* to) {
  if constexpr (lanes == 16) {
    vector const ac_low = hn::ConcatLowerLower(f, of[2], of[0]);
    vector const bd_low = hn::ConcatLowerLower(f, of[3], of[1]);
    vector const ac_high = hn::ConcatUpperUpper(f, of[2], of[0]);
    vector const bd_high = hn::ConcatUpperUpper(f, of[3], of[1]);
    hn::Store(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(bd_low), ac_low), f, to);
    hn::Store(hn::OddEvenBlocks(bd_low, hn::SwapAdjacentBlocks(ac_low)), f, to + 4 * lanes);
    hn::Store(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(bd_high), ac_high), f, to + 8 * lanes);
    hn::Store(hn::OddEvenBlocks(bd_high, hn::SwapAdjacentBlocks(ac_high)), f, to + 12 * lanes);
  } else if constexpr (lanes == 8) {
    hn::Store(hn::ConcatLowerLower(f, of[1], of[0]), f, to);
    hn::Store(hn::ConcatUpperUpper(f, of[1], of[0]), f, to + 4 * lanes);
  } else {
    hn::Store(of[0], f, to);
  }
}

/// Channels of as many rows as a vector has lanes: to[i * lanes + r] is channel i of row r.
template <class Type>
HWY_INLINE void transpose(std::byte const* const* rows, std::int64_t dims, float* to) {
  hn::RepartitionToWide<floats> const pairs;
  std::int64_t i = 0;
  for (; i + lanes <= dims; i += lanes) {
    vector channel[4][lanes / 4];  // each holds, in its block b, channel 4b + c of four rows
    HWY_UNROLL(4)
    for (int r = 0; r < lanes / 4; ++r) {
      vector const a = Type::load(rows[4 * r] + i * Type::size);
      vector const b = Type::load(rows[4 * r + 1] + i * Type::size);
      vector const c = Type::load(rows[4 * r + 2] + i * Type::size);
      vector const e = Type::load(rows[4 * r + 3] + i * Type::size);
      auto const ab_low = hn::BitCast(pairs, hn::InterleaveLower(f, a, b));
      auto const ab_high = hn::BitCast(pairs, hn::InterleaveUpper(f, a, b));
      auto const ce_low = hn::BitCast(pairs, hn::InterleaveLower(f, c, e));
      auto const ce_high = hn::BitCast(pairs, hn::InterleaveUpper(f, c, e));
      channel[0][r] = hn::BitCast(f, hn::InterleaveLower(pairs, ab_low, ce_low));
      channel[1][r] = hn::BitCast(f, hn::InterleaveUpper(pairs, ab_low, ce_low));
      channel[2][r] = hn::BitCast(f, hn::InterleaveLower(pairs, ab_high, ce_high));
      channel[3][r] = hn::BitCast(f, hn::InterleaveUpper(pairs, ab_high, ce_high));
    }
    HWY_UNROLL(4)
    for (int c = 0; c < 4; ++c) store_blocks(channel[c], to + (i + c) * lanes);
  }
  for (; i < dims; ++i) {
    for (std::int64_t r = 0; r < lanes; ++r) to[i * lanes + r] = Type::get(rows[r] + i * Type::size);
  }
}

/// A vector that several products use stays in its register: g++ would load it for each of them, and loads are what such loops
/// wait for.
HWY_INLINE vector in_register(vector v) {
#if HWY_ARCH_X86 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
  asm("" : "+v"(v.raw));
#endif
  return v;
}

/// Scores of some queries with some vectors of transposed rows.
template <int Queries, int Vectors>
struct score_tile {
  vector of[Queries][Vectors];

  HWY_INLINE void add(score_tile const& more) {
    HWY_UNROLL(8)
    for (int q = 0; q < Queries; ++q) {
      HWY_UNROLL(8)
      for (int v = 0; v < Vectors; ++v) of[q][v] = hn::Add(of[q][v], more.of[q][v]);
    }
  }
};

/// Channels `first`, `first + lanes` and so on: what one lane of dot_four's sums adds up for each row.
template <int Queries, int Vectors>
HWY_INLINE score_tile<Queries, Vectors> lane_sums(float const* rows, std::int64_t room, float const* const* queries,
                                                  std::int64_t first, std::int64_t dims) {
  score_tile<Queries, Vectors> sums;
  HWY_UNROLL(8)
  for (int q = 0; q < Queries; ++q) {
    HWY_UNROLL(8)
    for (int v = 0; v < Vectors; ++v) sums.of[q][v] = hn::Zero(f);
  }
  for (std::int64_t i = first; i < dims; i += lanes) {
    vector row[Vectors];
    HWY_UNROLL(8)
    for (int v = 0; v < Vectors; ++v) row[v] = in_register(hn::Load(f, rows + v * room + i * lanes));
    HWY_UNROLL(8)
    for (int q = 0; q < Queries; ++q) {
      vector const query = hn::Set(f, queries[q][i]);
      HWY_UNROLL(8)
      for (int v = 0; v < Vectors; ++v) sums.of[q][v] = hn::MulAdd(query, row[v], sums.of[q][v]);
    }
  }
  return sums;
}

/// What a 128-bit block of dot_four's sums adds up to, in its order.
template <int Queries, int Vectors>
HWY_INLINE score_tile<Queries, Vectors> block_sums(float const* rows, std::int64_t room, float const* const* queries,
                                                   std::int64_t first, std::int64_t dims) {
  auto even = lane_sums<Queries, Vectors>(rows, room, queries, first, dims);
  even.add(lane_sums<Queries, Vectors>(rows, room, queries, first + 2, dims));
  auto odd = lane_sums<Queries, Vectors>(rows, room, queries, first + 1, dims);
  odd.add(lane_sums<Queries, Vectors>(rows, room, queries, first + 3, dims));
  even.add(odd);
  return even;
}

/// dot_four's scores of some vectors of transposed rows, bit by bit.
template <int Queries, int Vectors>
HWY_INLINE void dot_transposed(float const* rows, std::int64_t room, float const* const* queries, std::int64_t dims,
                               float scale, float* scores, std::int64_t stride) {
  std::int64_t const whole = dims / lanes * lanes;
  auto sums = block_sums<Queries, Vectors>(rows, room, queries, 0, whole);
  if constexpr (lanes == 16) {
    sums.add(block_sums<Queries, Vectors>(rows, room, queries, 8, whole));
    auto others = block_sums<Queries, Vectors>(rows, room, queries, 4, whole);
    others.add(block_sums<Queries, Vectors>(rows, room, queries, 12, whole));
    sums.add(others);
  } else if constexpr (lanes == 8) {
    sums.add(block_sums<Queries, Vectors>(rows, room, queries, 4, whole));
  }
  vector const by = hn::Set(f, scale);
  HWY_UNROLL(8)
  for (int q = 0; q < Queries; ++q) {
    HWY_UNROLL(8)
    for (int v = 0; v < Vectors; ++v) {
      vector sum = sums.of[q][v];
      for (std::int64_t i = whole; i < dims; ++i)
        sum = hn::Add(sum, hn::Mul(hn::Set(f, queries[q][i]), hn::Load(f, rows + v * room + i * lanes)));
      hn::StoreU(hn::Mul(sum, by), f, scores + q * stride + v * lanes);
    }
  }
}
#endif

void dot(std::byte const* const* rows, std::int64_t row_count, element_type type, float const* const* queries,
         std::int64_t query_count, std::int64_t dims, float scale, float* scores, std::int64_t stride, rows_ahead ahead) {
  with_type(type, [&](auto storage) HWY_ATTR {
    using type_of = decltype(storage);
    std::int64_t first_row = 0;
#if HWY_TARGET != HWY_SCALAR
    if (query_count >= worth_transposing && dims <= transposed_dims) {
      alignas(64) float transposed[2 * transposed_dims * lanes];
      std::int64_t const room = dims * lanes;
      for (std::int64_t here = 0; first_row + lanes <= row_count; first_row += here) {
        here = first_row + 2 * lanes <= row_count ? 2 * lanes : lanes;
        transpose<type_of>(rows + first_row, dims, transposed);
        if (here > lanes) transpose<type_of>(rows + first_row + lanes, dims, transposed + room);
        std::int64_t fetched = first_row;
        each_queries<3>(query_count, [&](auto count, std::int64_t q) HWY_ATTR {
          std::int64_t const due = first_row + here * (q + count()) / query_count;
          fetch(ahead, fetched, due, dims * type_of::size);
          fetched = due;
          float* const to = scores + q * stride + first_row;
          if (here > lanes) dot_transposed<count(), 2>(transposed, room, queries + q, dims, scale, to, stride);
          else dot_transposed<count(), 1>(transposed, room, queries + q, dims, scale, to, stride);
        });
      }
    }
#endif
    each_queries(query_count, [&](auto count, std::int64_t first) HWY_ATTR {
      constexpr int queries_here = count();
      float* const to = scores + first * stride;
      std::int64_t r = first_row;
      for (; r + 4 <= row_count; r += 4) {
        if (first == 0) fetch(ahead, r, r + 4, dims * type_of::size);
        dot_four<type_of, queries_here>(rows + r, queries + first, dims, scale, to + r, stride);
      }
      if (first == 0) fetch(ahead, r, ahead.count, dims * type_of::size);
      if (r == row_count) return;
      std::byte const* last[4];  // the rest: the last row stands in for those that are missing
      float rest[4 * 4];
      for (std::int64_t i = 0; i < 4; ++i) last[i] = rows[r + i < row_count ? r + i : row_count - 1];
      dot_four<type_of, queries_here>(last, queries + first, dims, scale, rest, 4);
      for (int q = 0; q < queries_here; ++q) {
        for (std::int64_t i = 0; r + i < row_count; ++i) to[q * stride + r + i] = rest[q * 4 + i];
      }
    });
  });
}

/// Vectors of a row that one pass holds sums for; with 4 queries they fill half of the registers.
constexpr int pass_vectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

template <class Type, int Queries, int Vectors>
HWY_INLINE void accumulate_pass(std::byte const* const* rows, std::int64_t row_count, float const* weights, std::int64_t stride,
                                std::int64_t first, float* const* sums, rows_ahead ahead) {
  vector total[Queries][Vectors];
  HWY_UNROLL(8)
  for (int q = 0; q < Queries; ++q) {
    HWY_UNROLL(8)
    for (int v = 0; v < Vectors; ++v) total[q][v] = hn::LoadU(f, sums[q] + first + v * lanes);
  }
  for (std::int64_t r = 0; r < row_count; ++r) {
    fetch_part(ahead, r, first * Type::size, Vectors * lanes * Type::size);
    vector row[Vectors];
    HWY_UNROLL(8)
    for (int v = 0; v < Vectors; ++v) row[v] = Type::load(rows[r] + (first + v * lanes) * Type::size);
    HWY_UNROLL(8)
    for (int q = 0; q < Queries; ++q) {
      vector const weight = hn::Set(f, weights[q * stride + r]);
      HWY_UNROLL(8)
      for (int v = 0; v < Vectors; ++v) total[q][v] = hn::MulAdd(weight, row[v], total[q][v]);
    }
  }
  HWY_UNROLL(8)
  for (int q = 0; q < Queries; ++q) {
    HWY_UNROLL(8)
    for (int v = 0; v < Vectors; ++v) hn::StoreU(total[q][v], f, sums[q] + first + v * lanes);
  }
}

void accumulate(std::byte const* const* rows, std::int64_t row_count, element_type type, float const* weights,
                std::int64_t stride, std::int64_t query_count, std::int64_t dims, float* const* sums, rows_ahead ahead) {
  with_type(type, [&](auto storage) HWY_ATTR {
    using type_of = decltype(storage);
    each_queries(query_count, [&](auto count, std::int64_t first) HWY_ATTR {
      constexpr int queries_here = count();
      float const* const from = weights + first * stride;
      std::int64_t const from_row = ahead.count * first / query_count;
      rows_ahead const now{ahead.rows + from_row, ahead.count * (first + queries_here) / query_count - from_row};
      std::int64_t i = 0;
      for (; i + pass_vectors * lanes <= dims; i += pass_vectors * lanes) {
        accumulate_pass<type_of, queries_here, pass_vectors>(rows, row_count, from, stride, i, sums + first, now);
      }
      for (; i + lanes <= dims; i += lanes) {
        accumulate_pass<type_of, queries_here, 1>(rows, row_count, from, stride, i, sums + first, now);
      }
      for (; i < dims; ++i) {
        for (int q = 0; q < queries_here; ++q) {
          for (std::int64_t r = 0; r < row_count; ++r) {
            sums[first + q][i] += from[q * stride + r] * type_of::get(rows[r] + i * type_of::size);
          }
        }
      }
    });
  });
}

}  // namespace kvpolicy::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
