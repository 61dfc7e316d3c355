// Compiled once per instruction set by Highway's foreach_target.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors are kept in arrays
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels.hpp"
#include "kvpolicy/primitive/top_k.hpp"
#include "products-inl.hpp"
#include "storage-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace kvpolicy::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Type>
HWY_INLINE void square_sums_of_four(std::byte const* const* rows, std::int64_t dims, float* out) {
  vector sums[4] = {hn::Zero(f), hn::Zero(f), hn::Zero(f), hn::Zero(f)};
  std::int64_t i = 0;
  for (; i + lanes <= dims; i += lanes) {
    HWY_UNROLL(8)
    for (int r = 0; r < 4; ++r) {
      vector const row = Type::load(rows[r] + i * Type::size);
      sums[r] = hn::MulAdd(row, row, sums[r]);
    }
  }
  store_sums(f, sums[0], sums[1], sums[2], sums[3], out);
  for (; i < dims; ++i) {
    for (int r = 0; r < 4; ++r) {
      float const x = Type::get(rows[r] + i * Type::size);
      out[r] += x * x;
    }
  }
}

void square_sums(std::byte const* const* rows, std::int64_t row_count, element_type type, std::int64_t dims, float* sums) {
  with_type(type, [&](auto storage) HWY_ATTR {
    using type_of = decltype(storage);
    std::int64_t r = 0;
    for (; r + 4 <= row_count; r += 4) square_sums_of_four<type_of>(rows + r, dims, sums + r);
    if (r == row_count) return;
    std::byte const* last[4];  // the rest: the last row stands in for those that are missing
    float rest[4];
    for (std::int64_t i = 0; i < 4; ++i) last[i] = rows[std::min(r + i, row_count - 1)];
    square_sums_of_four<type_of>(last, dims, rest);
    for (std::int64_t i = 0; r + i < row_count; ++i) sums[r + i] = rest[i];
  });
}

float maximum(float const* values, std::int64_t count) {
  float most = -std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  if (count >= lanes) {
    vector best = hn::Set(f, most);
    for (; i + lanes <= count; i += lanes) best = hn::Max(best, hn::LoadU(f, values + i));
    most = hn::GetLane(hn::MaxOfLanes(f, best));
  }
  for (; i < count; ++i) most = values[i] > most ? values[i] : most;
  return most;
}

/// Calls whole(vector, place) for whole vectors and part(vector, count, place) for what is left, padded with `pad`.
template <class Whole, class Part>
HWY_INLINE void each_vector(float const* values, std::int64_t count, float pad, Whole whole, Part part) {
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) whole(hn::LoadU(f, values + i), i);
  if (i == count) return;
  alignas(64) float rest[hn::MaxLanes(f)] = {};
  for (std::int64_t j = 0; j < lanes; ++j) rest[j] = i + j < count ? values[i + j] : pad;
  part(hn::Load(f, rest), count - i, i);
}

/// Highway's exponential of a NaN is 0; a NaN must be seen.
HWY_INLINE vector exponential(vector x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(f, x)); }

float exponentials(float* values, std::int64_t count, float shift) {
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  vector const by = hn::Set(f, shift);
  vector total = hn::Zero(f);
  each_vector(
      values, count, nothing,
      [&](vector v, std::int64_t i) HWY_ATTR {
        vector const e = exponential(hn::Sub(v, by));
        hn::StoreU(e, f, values + i);
        total = hn::Add(total, e);
      },
      [&](vector v, std::int64_t left, std::int64_t i) HWY_ATTR {
        vector const e = hn::IfThenElseZero(hn::FirstN(f, static_cast<std::size_t>(left)), exponential(hn::Sub(v, by)));
        alignas(64) float rest[hn::MaxLanes(f)];
        hn::Store(e, f, rest);
        for (std::int64_t j = 0; j < left; ++j) values[i + j] = rest[j];
        total = hn::Add(total, e);
      });
  return hn::GetLane(hn::SumOfLanes(f, total));
}

void scale(float* values, std::int64_t count, float factor) {
  vector const by = hn::Set(f, factor);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Mul(by, hn::LoadU(f, values + i)), f, values + i);
  for (; i < count; ++i) values[i] *= factor;
}

void weigh(float* scores, std::int64_t stride, std::int64_t query_count, std::int64_t row_count, std::int64_t dims,
           float* const* sums) {
  for (std::int64_t q = 0; q < query_count; ++q) {
    float* const row = scores + q * stride;
    float* const at = sums[q];
    float const most = std::max(at[dims], maximum(row, row_count));
    if (most > at[dims]) {
      float const shrink = std::exp(at[dims] - most);
      scale(at, dims, shrink);
      at[dims + 1] *= shrink;
      at[dims] = most;
    }
    at[dims + 1] += exponentials(row, row_count, most);
  }
}

void add_scaled(float* to, float const* from, std::int64_t count, float factor) {
  vector const by = hn::Set(f, factor);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::MulAdd(by, hn::LoadU(f, from + i), hn::LoadU(f, to + i)), f, to + i);
  }
  // One element rounds as it does in a vector: equal numbers stay equal, wherever they stand.
  constexpr hn::CappedTag<float, 1> one;
  for (; i < count; ++i) {
    hn::StoreU(hn::MulAdd(hn::Set(one, factor), hn::LoadU(one, from + i), hn::LoadU(one, to + i)), one, to + i);
  }
}

void raise(float* to, float const* from, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Max(hn::LoadU(f, from + i), hn::LoadU(f, to + i)), f, to + i);
  }
  for (; i < count; ++i) to[i] = from[i] > to[i] ? from[i] : to[i];
}

void blend(std::byte const* row, element_type type, std::int64_t dims, float weight, float* mean) {
  with_type(type, [&](auto storage) HWY_ATTR {
    using type_of = decltype(storage);
    vector const by = hn::Set(f, weight);
    std::int64_t i = 0;
    for (; i + lanes <= dims; i += lanes) {
      vector const m = hn::LoadU(f, mean + i);
      hn::StoreU(hn::MulAdd(hn::Sub(type_of::load(row + i * type_of::size), m), by, m), f, mean + i);
    }
    for (; i < dims; ++i) mean[i] += (type_of::get(row + i * type_of::size) - mean[i]) * weight;
  });
}

void bound(std::byte const* const* rows, std::int64_t row_count, element_type type, std::int64_t dims, bool fresh,
           std::byte* high, std::byte* low) {
  float const edge = largest(type);
  with_type(type, [&](auto storage) HWY_ATTR {
    using type_of = decltype(storage);
    vector const top = hn::Set(f, edge);
    vector const bottom = hn::Set(f, -edge);
    std::int64_t i = 0;
    for (; i + lanes <= dims; i += lanes) {
      std::int64_t const at = i * type_of::size;
      vector most = fresh ? bottom : type_of::load(high + at);
      vector least = fresh ? top : type_of::load(low + at);
      for (std::int64_t r = 0; r < row_count; ++r) {
        vector const value = type_of::load(rows[r] + at);
        // Comparisons, so that a NaN changes nothing; Min and Max, so that an infinity does not get in.
        most = hn::Min(hn::IfThenElse(hn::Gt(value, most), value, most), top);
        least = hn::Max(hn::IfThenElse(hn::Lt(value, least), value, least), bottom);
      }
      type_of::store(most, high + at);
      type_of::store(least, low + at);
    }
    for (; i < dims; ++i) {
      std::int64_t const at = i * type_of::size;
      float most = fresh ? -edge : type_of::get(high + at);
      float least = fresh ? edge : type_of::get(low + at);
      for (std::int64_t r = 0; r < row_count; ++r) {
        float const value = type_of::get(rows[r] + at);
        most = value > most ? std::min(value, edge) : most;
        least = value < least ? std::max(value, -edge) : least;
      }
      type_of::put(most, high + at);
      type_of::put(least, low + at);
    }
  });
}

void sortable_keys(float const* scores, std::int64_t count, std::uint32_t* keys) {
  hn::RebindToUnsigned<floats> const u;
  hn::RebindToSigned<floats> const s;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    vector const score = hn::LoadU(f, scores + i);
    auto const bits = hn::BitCast(s, hn::Add(score, hn::Zero(f)));
    auto const flip = hn::Or(hn::BroadcastSignBit(bits), hn::Set(s, std::numeric_limits<std::int32_t>::min()));
    auto const number = hn::RebindMask(s, hn::Eq(score, score));
    hn::StoreU(hn::BitCast(u, hn::IfThenElseZero(number, hn::Xor(bits, flip))), u, keys + i);
  }
  for (; i < count; ++i) keys[i] = sortable_key(scores[i]);
}

std::int64_t count_from(std::uint32_t const* keys, std::int64_t count, std::uint32_t threshold) {
  hn::RebindToUnsigned<floats> const u;
  auto const below = hn::Set(u, threshold - 1);
  std::int64_t found = 0;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    found += static_cast<std::int64_t>(hn::CountTrue(u, hn::Gt(hn::LoadU(u, keys + i), below)));
  }
  for (; i < count; ++i) found += keys[i] >= threshold ? 1 : 0;
  return found;
}

void entropy_sums(float const* values, std::int64_t count, float shift, double sums[3]) {
  constexpr std::int64_t block = 4096;  // fp32 within a block, double across
  vector const by = hn::Set(f, shift);
  sums[0] = sums[1] = sums[2] = 0;
  for (std::int64_t first = 0; first < count; first += block) {
    vector zeroth = hn::Zero(f);
    vector once = hn::Zero(f);
    vector twice = hn::Zero(f);
    auto const add = [&](vector v) HWY_ATTR {
      vector const x = hn::Sub(by, v);
      vector const e = exponential(hn::Neg(x));
      // A vanished probability contributes nothing, though its surprise be infinite.
      auto const there = hn::Or(hn::Gt(e, hn::Zero(f)), hn::IsNaN(e));
      vector const ex = hn::IfThenElseZero(there, hn::Mul(e, x));
      zeroth = hn::Add(zeroth, e);
      once = hn::Add(once, ex);
      twice = hn::Add(twice, hn::IfThenElseZero(there, hn::Mul(ex, x)));
    };
    each_vector(
        values + first, count - first < block ? count - first : block, -std::numeric_limits<float>::infinity(),
        [&](vector v, std::int64_t) HWY_ATTR { add(v); }, [&](vector v, std::int64_t, std::int64_t) HWY_ATTR { add(v); });
    sums[0] += static_cast<double>(hn::GetLane(hn::SumOfLanes(f, zeroth)));
    sums[1] += static_cast<double>(hn::GetLane(hn::SumOfLanes(f, once)));
    sums[2] += static_cast<double>(hn::GetLane(hn::SumOfLanes(f, twice)));
  }
}

kernels const& table_of() {
  static constexpr kernels functions{.instruction_set = nullptr,
                                     .dot = dot,
                                     .accumulate = accumulate,
                                     .square_sums = square_sums,
                                     .maximum = maximum,
                                     .exponentials = exponentials,
                                     .weigh = weigh,
                                     .scale = scale,
                                     .add_scaled = add_scaled,
                                     .raise = raise,
                                     .blend = blend,
                                     .bound = bound,
                                     .sortable_keys = sortable_keys,
                                     .count_from = count_from,
                                     .entropy_sums = entropy_sums};
  static kernels const named = [] {
    kernels made = functions;
    made.instruction_set = hwy::TargetName(HWY_TARGET);
    return made;
  }();
  return named;
}

}  // namespace kvpolicy::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvpolicy::simd {

HWY_EXPORT(table_of);

namespace {

/// KVPOLICY_SIMD names the best instruction set that may be used; one that this CPU lacks, or that nobody knows, changes
/// nothing.
bool hold_to_environment() noexcept {
  char const* const wanted = std::getenv("KVPOLICY_SIMD");
  if (wanted == nullptr) return false;
  std::int64_t const supported = hwy::SupportedTargets();
  for (std::int64_t target = 1; target > 0 && target <= HWY_SCALAR; target <<= 1) {
    if ((supported & target) == 0 || std::strcmp(hwy::TargetName(target), wanted) != 0) continue;
    hwy::DisableTargets(target - 1);  // the better ones
    return true;
  }
  return false;
}

}  // namespace

bool held_back() noexcept {
  static bool const held = hold_to_environment();
  return held;
}

kernels const& best_kernels() noexcept {
  held_back();
  static kernels const& chosen = HWY_DYNAMIC_DISPATCH(table_of)();
  return chosen;
}

}  // namespace kvpolicy::simd
#endif
