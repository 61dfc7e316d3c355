// Primitives over units, and the logits' entropy.
#pragma once

#include "kvpolicy/gpu/exec/staged.hpp"
#include "kvpolicy/gpu/hierarchy/entropy.hpp"

namespace kvpolicy::gpu::detail {

template <staging_device D>
class unit_primitives : public staged<D> {
  using base = staged<D>;

 public:
  using base::base;
  using typename base::memory;

  template <class Memory>
  void pool_mean(basic_rows<Memory> const& keys, pooling const& what, table<float> means, std::int64_t column) {
    if (what.first >= what.last) return;
    call const scope(*this);
    std::int64_t const unit = (what.first - what.origin) / what.unit_size;
    auto const units = (what.last - 1 - what.origin) / what.unit_size + 1 - unit;
    // Only the touched units' part of the table, addressed as if all of it were there.
    float* const first = means.row(unit) + column;
    buffer<float> out = device_.out(first, units, keys.heads * keys.head_dim, means.row_stride, true);
    pooled_tokens folded = tokens_of(what, units);
    folded.unit_base = unit;
    batch_rope_angles rotated{};
    std::int32_t const how[batch_rope_angles::facts] = {static_cast<std::int32_t>(what.rotated.pairs),
                                                        what.rotated.how == rotation::pairing::neighbours ? 1 : 0};
    if (what.rotated.angles != nullptr) {
      auto const [from, to] = tokens_between(keys, what.origin + unit * what.unit_size, what.last);
      std::int64_t const of_token = 2 * what.rotated.pairs;
      rotated = {device_.in(what.rotated.angles + from * of_token, (to - from) * of_token),
                 device_.in(how, batch_rope_angles::facts), from};
    }
    auto const set = [&](auto& a) {
      a.rotated = rotated;
      a.means = out;
      a.unit_stride = means.row_stride;
      a.head_stride = keys.head_dim;
    };
    batch_rows const from = rows_of(keys, what.last);
    if (what.rotated.angles != nullptr) launch_pool<pool_pre_rope_body>(device_, from, folded, 1, set);
    else launch_pool<pool_mean_body>(device_, from, folded, 1, set);
    device_.finish();
  }

  void pool_bounds(basic_rows<memory> const& keys, pooling const& what, bounds_table const& bounds) {
    if (what.first >= what.last) return;
    call const scope(*this);
    launch_pool<pool_bounds_body>(device_, rows_of(keys, what.last), tokens_of(what, touched(what)), 1,
                                  [&](auto& a) { a.bounds = bounds_of(bounds); });
    device_.finish();
  }

  template <class Memory>
  void pool_mean_deviation(basic_rows<Memory> const& keys, pooling const& what, float* moments, bounds_table const& bounds) {
    if (what.first >= what.last) return;
    call const scope(*this);
    std::int64_t const size = bounds.heads * bounds.units * 2 * bounds.head_dim;
    launch_pool<pool_mean_deviation_body>(device_, rows_of(keys, what.last), tokens_of(what, touched(what)), 1, [&](auto& a) {
      a.bounds = bounds_of(bounds);
      a.moments = device_.out(moments, 1, size, size, true);
    });
    device_.finish();
  }

  void score_dot(std::span<float const> anchor, table<float const> vectors, std::span<std::int32_t const> units,
                 std::span<float> scores) {
    if (units.empty()) return;
    call const scope(*this);
    auto const dims = static_cast<std::int64_t>(anchor.size());
    std::int64_t const count = std::ssize(units);
    score_dot_body::arguments a{};
    a.anchor = device_.in(anchor.data(), dims);
    a.vectors = device_.in(vectors.data, (vectors.rows - 1) * vectors.row_stride + dims);
    a.vector_stride = vectors.row_stride;
    a.dims = dims;
    a.units = device_.in(units.data(), count);
    a.count.all = count;
    a.scores = device_.out(scores.data(), 1, count, count, false);
    a.stride = count;
    launch_score_dot(device_, a, count, 1);
    device_.finish();
  }

  void score_bounds(query_heads const& queries, bounds_table const& bounds, std::int64_t units, group_merge merged,
                    table<float> scores) {
    if (units <= 0) return;
    call const scope(*this);
    std::int64_t const size = bounds.heads * bounds.units * 2 * bounds.head_dim;
    batch_rows made{};
    made.base = device_.in(bounds.data, size * size_of(bounds.type)).data;
    made.elements = size;
    made.type = bounds.type;
    made.heads = static_cast<std::int32_t>(bounds.heads);
    made.head_dim = static_cast<std::int32_t>(bounds.head_dim);
    made.head_stride = bounds.units * 2 * bounds.head_dim;
    made.token_stride = bounds.head_dim;
    auto const group = static_cast<std::int32_t>(queries.heads / bounds.heads);
    launch_score_bounds(device_, {finished(made), group, units, 1}, [&](auto& a) {
      a.queries = vectors_of(queries, bounds.head_dim);
      a.merged = merged;
      a.count.all = units;
      a.scores = device_.out(scores.data, bounds.heads, units, scores.row_stride, false);
      a.head_stride = scores.row_stride;
    });
    device_.finish();
  }

  void top_k(table<float const> scores, std::span<std::int32_t const> k, table<std::int32_t> indices) {
    std::int64_t most = 0;
    for (std::int32_t const wanted : k.first(static_cast<std::size_t>(scores.rows)))
      most = std::max<std::int64_t>(most, wanted);
    most = std::min(most, scores.columns);
    if (most <= 0) return;
    call const scope(*this);
    top_k_arguments a{};
    a.scores = table_in(scores);
    a.score_stride = scores.row_stride;
    a.columns.all = scores.columns;
    a.k.values = device_.in(k.data(), scores.rows);
    a.indices = device_.out(indices.data, scores.rows, most, indices.row_stride, true);
    a.index_stride = indices.row_stride;
    launch_top_k(device_, a, scores.rows, scores.columns);
    device_.finish();
  }

  uncertainty entropy(std::span<float const> logits) {
    call const scope(*this);
    uncertainty found;
    entropy_body::arguments a{};
    a.vocabulary = std::ssize(logits);
    a.logits.base = const_cast<float*>(device_.in(logits.data(), a.vocabulary).data);
    a.logits.elements = a.vocabulary;
    a.entropy = device_.out(&found.entropy, 1, 1, 1, false);
    a.varentropy = device_.out(&found.varentropy, 1, 1, 1, false);
    device_.template launch<entropy_body>({1, 1, 1}, a);
    device_.finish();
    return found;
  }

 protected:
  using base::bounds_of;
  using base::device_;
  using base::rows_of;
  using base::table_in;
  using base::tokens_of;
  using base::touched;
  using base::vectors_of;
  using typename base::call;
};

}  // namespace kvpolicy::gpu::detail
