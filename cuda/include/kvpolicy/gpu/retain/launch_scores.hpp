// Launches that score a prompt's tokens, one sequence at a time.
#pragma once

#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/retain/gaussian.hpp"
#include "kvpolicy/gpu/retain/list_scores.hpp"
#include "kvpolicy/gpu/retain/row_scores.hpp"
#include "kvpolicy/gpu/retain/similarity.hpp"

namespace kvpolicy::gpu::detail {

template <device D>
void launch_row_norms(D& device, batch_rows const& rows, std::int64_t tokens, buffer<float> norms, std::int64_t stride) {
  expect_row("row_norms", rows.head_dim);
  if (tokens <= 0) return;
  with_type(rows.type, [&]<element_type E>() {
    using body = row_norms_body<E>;
    device.template launch<body>({divided_up(tokens, rows_of_block(rows, body::threads)), rows.heads, 1},
                                 {rows, tokens, norms, stride});
  });
}

/// How much each of at most `most` tokens of a list repeats others.
template <device D>
void launch_key_redundancy(D& device, batch_rows const& keys, token_lists const& lists, std::int64_t most, float alike,
                           buffer<float> out, std::int64_t stride) {
  expect_row("key_redundancy", keys.head_dim);
  if (most <= 0) return;
  scratch_scope const scope(device);
  buffer<float> const sums = device.template scratch<float>(keys.heads * most);
  buffer<std::int32_t> const last = device.template scratch<std::int32_t>(keys.heads * most);
  buffer<float> const cosines = device.template scratch<float>(keys.heads * most);
  with_type(keys.type, [&]<element_type E>() {
    device.template launch<key_cosines_body<E>>({most, keys.heads, 1}, {keys, lists, alike, sums, last, cosines, most});
  });
  device.template launch<redundancy_body>({divided_up(most, redundancy_body::threads), keys.heads, 1},
                                          {sums, last, cosines, most, lists, out, stride});
}

/// What queries to come want of at most `most` tokens of a list.
template <device D, class Set>
void launch_rotated_scores(D& device, batch_rows const& keys, std::int64_t most, std::int32_t group, Set set) {
  expect_row("rotated_scores", keys.head_dim, group);
  if (most <= 0) return;
  with_type(keys.type, [&]<element_type E>() {
    using body = rotated_scores_body<E>;
    typename body::arguments a{};
    a.keys = keys;
    a.group = group;
    set(a);
    device.template launch<body>({divided_up(most, body::threads), static_cast<std::int64_t>(keys.heads) * group, 1}, a);
  });
}

template <device D>
void launch_key_similarity(D& device, batch_rows const& keys, std::int64_t tokens, buffer<float> cosines, std::int64_t stride) {
  expect_row("key_similarity", keys.head_dim);
  if (tokens <= 0) return;
  scratch_scope const scope(device);
  with_type(keys.type, [&]<element_type E>() {
    using sums_of = direction_sums_body<E>;
    using cosines_of = cosines_body<E>;
    std::int64_t const stretches = divided_up(tokens, sums_of::stretch);
    buffer<float> const sums = device.template scratch<float>(keys.heads * stretches * keys.head_dim);
    buffer<float> const direction = device.template scratch<float>(keys.heads * keys.head_dim);
    device.template launch<sums_of>({stretches, keys.heads, 1}, {keys, tokens, sums, stretches});
    device.template launch<mean_direction_body>({keys.heads, 1, 1}, {sums, stretches, keys.head_dim, direction});
    device.template launch<cosines_of>({divided_up(tokens, rows_of_block(keys, cosines_of::threads)), keys.heads, 1},
                                       {keys, tokens, direction, cosines, stride});
  });
}

template <device D, class Set>
void launch_partition_deviation(D& device, batch_rows const& rows, std::int64_t partitions, Set set) {
  expect_row("partition_deviation", rows.head_dim);
  if (partitions <= 0) return;
  with_type(rows.type, [&]<element_type E>() {
    typename partition_deviation_body<E>::arguments a{};
    a.rows = rows;
    set(a);
    device.template launch<partition_deviation_body<E>>({partitions, rows.heads, 1}, a);
  });
}

template <device D, class Set>
void launch_following_queries(D& device, batch_rows const& keys, std::int64_t tokens, Set set) {
  expect_row("following_queries", keys.head_dim);
  if (tokens <= 0) return;
  with_type(keys.type, [&]<element_type E>() {
    using body = following_queries_body<E>;
    typename body::arguments a{};
    a.keys = keys;
    set(a);
    device.template launch<body>({divided_up(tokens, rows_of_block(keys, body::threads)), keys.heads, 1}, a);
  });
}

/// `pre_rope.plain` is scratch that this takes; covariance may be none.
template <device D>
void launch_query_moments(D& device, unrotate_body::arguments pre_rope, std::int64_t q_heads, buffer<float> mean,
                          std::int64_t mean_stride, buffer<float> covariance, std::int64_t covariance_stride) {
  scratch_scope const scope(device);
  std::int32_t const dim = pre_rope.head_dim;
  pre_rope.plain = device.template scratch<float>(q_heads * pre_rope.tokens * dim);
  device.template launch<unrotate_body>({pre_rope.tokens, q_heads, 1}, pre_rope);
  device.template launch<query_mean_body>({divided_up(dim, 32), q_heads, 1},
                                          {pre_rope.plain, pre_rope.tokens, dim, mean, mean_stride});
  if (covariance.data == nullptr) return;
  std::int64_t const tiles = divided_up(dim, 16);
  device.template launch<query_covariance_body>(
      {tiles * tiles, q_heads, 1}, {pre_rope.plain, pre_rope.tokens, dim, mean, mean_stride, covariance, covariance_stride,
                                    static_cast<std::int32_t>(tiles)});
}

/// `a.logits` is scratch that this takes.
template <device D>
void launch_gaussian_attention(D& device, gaussian_logits_body<element_type::f32>::arguments const& a, buffer<float> scores,
                               std::int64_t stride) {
  expect_row("gaussian_attention", a.keys.head_dim, a.group);
  std::int64_t const columns = a.tokens - a.first;
  if (columns <= 0) return;
  scratch_scope const scope(device);
  std::int64_t const q_heads = static_cast<std::int64_t>(a.keys.heads) * a.group;
  buffer<float> const logits = device.template scratch<float>(q_heads * columns);
  with_type(a.keys.type, [&]<element_type E>() {
    using body = gaussian_logits_body<E>;
    device.template launch<body>({divided_up(columns, body::tokens_of_block), q_heads, 1},
                                 {a.keys, a.first, a.tokens, a.mean, a.mean_stride, a.covariance, a.covariance_stride, a.scale,
                                  a.group, logits, columns});
  });
  list_weights all{};
  all.group = a.group;
  all.keys = a.keys;
  all.lists.tokens.all = a.tokens;
  all.lists.tail.all = 0;
  all.first = a.first;
  all.most_tokens = columns;
  all.out = scores;
  all.head_stride = stride;
  buffer<float> const statistics = device.template scratch<float>(q_heads * 2);
  launch_softmax_rows(device, logits, columns, all, statistics);
  launch_group_weights(device, logits, columns, statistics, all, [](auto&) {});
}

}  // namespace kvpolicy::gpu::detail
