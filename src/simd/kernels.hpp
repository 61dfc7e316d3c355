// The vectorised inner loops, once per instruction set, behind one table of functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvpolicy/types.hpp"

namespace kvpolicy::simd {

/// Rows that will be needed soon, of the same size as those in work: fetched into the cache meanwhile. May be none.
struct rows_ahead {
  std::byte const* const* rows = nullptr;
  std::int64_t count = 0;
};

/// Rows are contiguous in their dims, given by address, in any order; `dims` may be anything from 1.
struct kernels {
  char const* instruction_set;

  /// scores[q * stride + r] = scale * (queries[q] . rows[r]); queries `[count][dims]`. The bits of a score do not depend on how
  /// many queries and rows there are.
  void (*dot)(std::byte const* const* rows, std::int64_t row_count, element_type type, float const* const* queries,
              std::int64_t query_count, std::int64_t dims, float scale, float* scores, std::int64_t stride, rows_ahead ahead);

  /// sums[q][:] += sum over rows of weights[q * stride + r] * rows[r], row after row; sums `[count][dims]`.
  void (*accumulate)(std::byte const* const* rows, std::int64_t row_count, element_type type, float const* weights,
                     std::int64_t stride, std::int64_t query_count, std::int64_t dims, float* const* sums, rows_ahead ahead);

  /// sums[r] = rows[r] . rows[r].
  void (*square_sums)(std::byte const* const* rows, std::int64_t row_count, element_type type, std::int64_t dims, float* sums);

  float (*maximum)(float const* values, std::int64_t count);

  /// values[i] = exp(values[i] - shift); returns their sum.
  float (*exponentials)(float* values, std::int64_t count, float shift);

  /// One more block of a softmax: scores[q * stride + r] become weights relative to the maximum so far. sums[q] is
  /// `[dims + 2]`: the sums over values, which shrink where the maximum rises, the maximum, and the weights' total.
  void (*weigh)(float* scores, std::int64_t stride, std::int64_t query_count, std::int64_t row_count, std::int64_t dims,
                float* const* sums);

  /// values[i] *= factor.
  void (*scale)(float* values, std::int64_t count, float factor);

  /// to[i] += factor * from[i].
  void (*add_scaled)(float* to, float const* from, std::int64_t count, float factor);

  /// to[i] = max(to[i], from[i]).
  void (*raise)(float* to, float const* from, std::int64_t count);

  /// mean[i] += (row[i] - mean[i]) * weight.
  void (*blend)(std::byte const* row, element_type type, std::int64_t dims, float weight, float* mean);

  /// high[i] = max(high[i], row[i]), low likewise; infinities count as the type's largest values, NaN is passed over.
  void (*bound)(std::byte const* const* rows, std::int64_t row_count, element_type type, std::int64_t dims, bool fresh,
                std::byte* high, std::byte* low);

  /// keys[i] = sortable_key(scores[i]).
  void (*sortable_keys)(float const* scores, std::int64_t count, std::uint32_t* keys);

  /// How many keys are >= threshold, which is at least 1.
  std::int64_t (*count_from)(std::uint32_t const* keys, std::int64_t count, std::uint32_t threshold);

  /// Of e_i = exp(values[i] - shift) and x_i = shift - values[i]: sums of e, e x and e x^2.
  void (*entropy_sums)(float const* values, std::int64_t count, float shift, double sums[3]);
};

/// The table for the best instruction set that this CPU has and the environment's KVPOLICY_SIMD allows ("AVX2").
kernels const& best_kernels() noexcept;
/// Whether the environment named an instruction set that this CPU has: tiles are not used then.
bool held_back() noexcept;

}  // namespace kvpolicy::simd
