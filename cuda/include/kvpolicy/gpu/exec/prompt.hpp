// Primitives that score a prompt's tokens.
#pragma once

#include "kvpolicy/gpu/exec/units.hpp"

namespace kvpolicy::gpu::detail {

template <staging_device D>
class prompt_primitives : public unit_primitives<D> {
  using base = unit_primitives<D>;

 public:
  using base::base;
  using typename base::memory;

  void window_attention(query_window const& queries, basic_rows<memory> const& keys, smoothing smooth, table<float> scores) {
    std::int64_t const before = keys.tokens - queries.tokens;
    if (before <= 0) return;
    call const scope(*this);
    launch_window_attention(device_, prompt_of(queries, keys), before, smooth.queries, [&](smooth_sums_body::arguments& a) {
      a.how = static_cast<std::int32_t>(smooth.how);
      a.width = static_cast<std::int32_t>(smooth.width);
      a.of_group = smooth.of_group.has_value();
      a.largest_head = smooth.of_group == group_merge::maximum;
      a.scores = device_.out(scores.data, keys.heads, before, scores.row_stride, false);
      a.score_stride = scores.row_stride;
    });
    device_.finish();
  }

  void seen_attention(query_window const& queries, basic_rows<memory> const& keys, table<float> scores) {
    call const scope(*this);
    launch_window_attention(device_, prompt_of(queries, keys), keys.tokens, group_merge::mean,
                            [&](smooth_sums_body::arguments& a) {
                              a.by_seen = true;
                              a.scores = device_.out(scores.data, keys.heads, keys.tokens, scores.row_stride, false);
                              a.score_stride = scores.row_stride;
                            });
    device_.finish();
  }

  void following_queries(query_window const& queries, std::int64_t begin, basic_rows<memory> const& keys, std::int64_t first,
                         std::int64_t last, std::int64_t local, std::int32_t const* positions, table<float> scores) {
    if (first >= last) return;
    call const scope(*this);
    launch_following_queries(device_, rows_of(keys, keys.tokens), last - first, [&](auto& a) {
      a.queries = vectors_of(queries, keys.head_dim);
      a.begin = begin;
      a.count = queries.tokens;
      a.group = static_cast<std::int32_t>(queries.heads / keys.heads);
      a.first = first;
      a.last = last;
      a.local = local;
      a.positions = device_.in(positions, positions == nullptr ? 0 : last);
      a.scores = device_.out(scores.data, keys.heads, last - first, scores.row_stride, false);
      a.stride = scores.row_stride;
    });
    device_.finish();
  }

  void list_attention(query_heads const& queries, basic_rows<memory> const& keys, std::span<range_list const> lists,
                      group_merge merged, table<float> out) {
    call const scope(*this);
    list_weights a{};
    a.queries = vectors_of(queries, keys.head_dim);
    a.scale = queries.scale;
    a.group = static_cast<std::int32_t>(queries.heads / keys.heads);
    a.keys = rows_of(keys, keys.tokens);
    a.lists = lists_of(lists, a.most_tokens);
    if (a.most_tokens == 0) return;
    a.out = device_.out(out.data, keys.heads, a.most_tokens, out.row_stride, true);
    a.head_stride = out.row_stride;
    a.maximum = merged == group_merge::maximum;
    launch_list_weights(device_, a);
    device_.finish();
  }

  void key_redundancy(basic_rows<memory> const& keys, std::span<range_list const> lists, float alike, table<float> redundancy) {
    call const scope(*this);
    std::int64_t most = 0;
    token_lists const listed = lists_of(lists, most);
    if (most == 0) return;
    launch_key_redundancy(device_, rows_of(keys, keys.tokens), listed, most, alike,
                          device_.out(redundancy.data, keys.heads, most, redundancy.row_stride, true), redundancy.row_stride);
    device_.finish();
  }

  void rotated_scores(basic_rows<memory> const& keys, std::span<range_list const> lists, rotated_queries const& queries,
                      table<float> wanted) {
    call const scope(*this);
    std::int64_t most = 0;
    token_lists const listed = lists_of(lists, most);
    if (most == 0) return;
    auto const group = static_cast<std::int32_t>(queries.mean.rows / keys.heads);
    launch_rotated_scores(device_, rows_of(keys, keys.tokens), most, group, [&](auto& a) {
      a.lists = listed;
      a.mean = table_in(queries.mean);
      a.mean_stride = queries.mean.row_stride;
      a.spread = table_in(queries.spread);
      a.spread_stride = queries.spread.row_stride;
      a.pairs = static_cast<std::int32_t>(queries.spread.columns);
      a.halves = queries.pairing == rotation::pairing::halves;
      a.out = device_.out(wanted.data, queries.mean.rows, most, wanted.row_stride, true);
      a.stride = wanted.row_stride;
    });
    device_.finish();
  }

  void row_norms(basic_rows<memory> const& from, table<float> norms) {
    call const scope(*this);
    launch_row_norms(device_, rows_of(from, from.tokens), from.tokens,
                     device_.out(norms.data, from.heads, from.tokens, norms.row_stride, false), norms.row_stride);
    device_.finish();
  }

  void key_similarity(basic_rows<memory> const& keys, table<float> cosines) {
    call const scope(*this);
    launch_key_similarity(device_, rows_of(keys, keys.tokens), keys.tokens,
                          device_.out(cosines.data, keys.heads, keys.tokens, cosines.row_stride, false), cosines.row_stride);
    device_.finish();
  }

  void query_moments(query_window const& queries, rotation const& rope, std::int64_t first, table<float> mean,
                     table<float> covariance) {
    call const scope(*this);
    unrotate_body::arguments a{};
    a.queries = vectors_of(queries, mean.columns);
    a.inverse_frequency = device_.in(rope.inverse_frequency, rope.pairs);
    a.pairs = static_cast<std::int32_t>(rope.pairs);
    a.halves = rope.how == rotation::pairing::halves;
    a.first = first;
    a.tokens = queries.tokens;
    a.head_dim = static_cast<std::int32_t>(mean.columns);
    buffer<float> const covariances =
        covariance.rows == 0 ? buffer<float>{}
                             : device_.out(covariance.data, covariance.rows, mean.columns, covariance.row_stride, false);
    launch_query_moments(device_, a, queries.heads, device_.out(mean.data, mean.rows, mean.columns, mean.row_stride, false),
                         mean.row_stride, covariances, covariance.row_stride);
    device_.finish();
  }

  void gaussian_attention(basic_rows<memory> const& keys, gaussian_queries const& queries, std::int64_t first,
                          table<float> scores) {
    call const scope(*this);
    gaussian_logits_body<element_type::f32>::arguments a{};
    a.keys = rows_of(keys, keys.tokens);
    a.first = first;
    a.tokens = keys.tokens;
    a.mean = table_in(queries.mean);
    a.mean_stride = queries.mean.row_stride;
    a.covariance = table_in(queries.covariance);
    a.covariance_stride = queries.covariance.row_stride;
    a.scale = queries.scale;
    a.group = static_cast<std::int32_t>(queries.mean.rows / keys.heads);
    launch_gaussian_attention(device_, a, device_.out(scores.data, keys.heads, keys.tokens - first, scores.row_stride, false),
                              scores.row_stride);
    device_.finish();
  }

  void partition_deviation(basic_rows<memory> const& from, partitions const& cut, table<float> spread) {
    if (cut.count <= 0) return;
    call const scope(*this);
    launch_partition_deviation(device_, rows_of(from, cut.first + (cut.count + 1) * cut.size), cut.count, [&](auto& a) {
      a.first = cut.first;
      a.size = cut.size;
      a.spread = device_.out(spread.data, from.heads, cut.count * cut.size, spread.row_stride, false);
      a.stride = spread.row_stride;
    });
    device_.finish();
  }

 protected:
  using base::device_;
  using base::lists_of;
  using base::prompt_of;
  using base::rows_of;
  using base::table_in;
  using base::vectors_of;
  using typename base::call;
};

}  // namespace kvpolicy::gpu::detail
