// The executor for CPU engines: compiled (link kvpolicy::simd), vectorised with run-time dispatch, on a team of threads.
#pragma once

#include <memory>
#include <span>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/exec/team.hpp"

namespace kvpolicy {

/// The executor for CPU engines. It agrees with host_exec: indices exactly for equal scores, bounds exactly, scores and outputs
/// within fp32 rounding. Results do not depend on the number of threads. Contracts are in primitive/.
///
/// Calls come one at a time, with a team inside team::lead(). The constructor allocates all scratch. Only attend_block may
/// allocate again, where it goes query by query: for 4 queries or fewer, or if a query or a row holds an infinity or a NaN.
/// A primitive throws invalid_value if its scratch is too small for the input (more heads, channels or tokens than the shape
/// has), or if query heads are no multiple of KV heads. It also throws if more than 8192 channels are in rows that are not
/// contiguous, or in blocks, or in keys that pool_mean rotates back; attend_block also if it gets more queries than rows.
class simd_exec {
 public:
  using memory = host_memory;

  /// Allocates the scratch for a cache shape.
  /// @param shape  the most heads, channels and tokens of any call
  /// @param threads  shares the work, and must outlive the executor; null: the calling thread works alone
  explicit simd_exec(cache_shape const& shape, team* threads = nullptr);
  simd_exec(simd_exec&&) noexcept;
  simd_exec& operator=(simd_exec&&) noexcept;
  ~simd_exec();

  /// Returns the Highway name of the instruction set that run-time dispatch took ("AVX3_ZEN4").
  static char const* instruction_set() noexcept;
  /// Returns the instruction set of attend_block: "AMX_BF16" if the CPU has the tiles and its kernel allows them.
  static char const* block_instruction_set() noexcept;

  void pool_mean(rows const& keys, pooling const& what, table<float> means, std::int64_t column);
  void pool_bounds(rows const& keys, pooling const& what, bounds_table const& bounds);
  void pool_mean_deviation(rows const& keys, pooling const& what, float* moments, bounds_table const& bounds);
  void score_dot(std::span<float const> anchor, table<float const> vectors, std::span<std::int32_t const> units,
                 std::span<float> scores);
  void score_bounds(query_heads const& queries, bounds_table const& bounds, std::int64_t units, group_merge merged,
                    table<float> scores);
  void window_attention(query_window const& queries, rows const& keys, smoothing smooth, table<float> scores);
  void seen_attention(query_window const& queries, rows const& keys, table<float> scores);
  void following_queries(query_window const& queries, std::int64_t begin, rows const& keys, std::int64_t first,
                         std::int64_t last, std::int64_t local, std::int32_t const* positions, table<float> scores);
  void list_attention(query_heads const& queries, rows const& keys, std::span<range_list const> lists, group_merge merged,
                      table<float> out);
  void key_redundancy(rows const& keys, std::span<range_list const> lists, float alike, table<float> redundancy);
  void rotated_scores(rows const& keys, std::span<range_list const> lists, rotated_queries const& queries, table<float> wanted);
  void row_norms(rows const& from, table<float> norms);
  void key_similarity(rows const& keys, table<float> cosines);
  void query_moments(query_window const& queries, rotation const& rope, std::int64_t first, table<float> mean,
                     table<float> covariance);
  void gaussian_attention(rows const& keys, gaussian_queries const& queries, std::int64_t first, table<float> scores);
  void partition_deviation(rows const& from, partitions const& cut, table<float> spread);
  void top_k(table<float const> scores, std::span<std::int32_t const> k, table<std::int32_t> indices);
  void attend(query_window const& queries, rows const& keys, rows const& values, selection const& kept,
              attention_terms const& terms, table<float> out, std::span<float> log_sum_exp);
  void attend_block(query_window const& queries, rows const& keys, rows const& values, selection const& kept,
                    attention_terms const& terms, table<float> out);
  uncertainty entropy(std::span<float const> logits);

 private:
  struct workspace;
  std::unique_ptr<workspace> work_;
};

static_assert(executor<simd_exec>);

}  // namespace kvpolicy
