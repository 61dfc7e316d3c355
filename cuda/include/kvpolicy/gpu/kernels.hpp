// Every kernel that kvpolicy::gpu compiles, in the groups in which it compiles them.
#pragma once

#include "kvpolicy/gpu/kernel/attend.hpp"
#include "kvpolicy/gpu/kernel/attend_block.hpp"
#include "kvpolicy/gpu/kernel/attend_tensor.hpp"
#include "kvpolicy/gpu/kernel/drift.hpp"
#include "kvpolicy/gpu/kernel/entropy.hpp"
#include "kvpolicy/gpu/kernel/evict.hpp"
#include "kvpolicy/gpu/kernel/gather.hpp"
#include "kvpolicy/gpu/kernel/gaussian.hpp"
#include "kvpolicy/gpu/kernel/keep_step.hpp"
#include "kvpolicy/gpu/kernel/kept_scores.hpp"
#include "kvpolicy/gpu/kernel/logits_tensor.hpp"
#include "kvpolicy/gpu/kernel/page_list.hpp"
#include "kvpolicy/gpu/kernel/page_table.hpp"
#include "kvpolicy/gpu/kernel/page_trigger.hpp"
#include "kvpolicy/gpu/kernel/pool.hpp"
#include "kvpolicy/gpu/kernel/prompt_attention.hpp"
#include "kvpolicy/gpu/kernel/prompt_attention_tensor.hpp"
#include "kvpolicy/gpu/kernel/representatives.hpp"
#include "kvpolicy/gpu/kernel/row_scores.hpp"
#include "kvpolicy/gpu/kernel/score.hpp"
#include "kvpolicy/gpu/kernel/sentence_fill.hpp"
#include "kvpolicy/gpu/kernel/sentences.hpp"
#include "kvpolicy/gpu/kernel/similarity.hpp"
#include "kvpolicy/gpu/kernel/softmax.hpp"
#include "kvpolicy/gpu/kernel/top_k.hpp"

// clang-format off

/// Each macro calls X(body) for every body of a group. Use it inside namespace kvpolicy::gpu.
#define KVPOLICY_EACH_TYPE(X, body) X(body<element_type::f32>) X(body<element_type::f16>) X(body<element_type::bf16>)
#define KVPOLICY_EACH_TENSOR(X, body)                                                  \
  X(body<element_type::f16, 2>) X(body<element_type::f16, 4>)                          \
  X(body<element_type::bf16, 2>) X(body<element_type::bf16, 4>)
#define KVPOLICY_EACH_BESIDE(X, type, chunks)                                          \
  X(pool_beside_bounds_body<pool_bounds_body<element_type::type>,                      \
                            score_bounds_tensor_body<element_type::type, chunks>>)     \
  X(pool_beside_bounds_body<pool_mean_deviation_body<element_type::type>,              \
                            score_bounds_tensor_body<element_type::type, chunks>>)
#define KVPOLICY_EACH_GROUP(X, type)                                                   \
  X(attend_body<element_type::type, 1>) X(attend_body<element_type::type, 2>)          \
  X(attend_body<element_type::type, 4>) X(attend_body<element_type::type, 8>)          \
  X(attend_body<element_type::type, 1, false>)

#define KVPOLICY_UNIT_KERNELS(X)                                                       \
  KVPOLICY_EACH_TYPE(X, pool_mean_body) KVPOLICY_EACH_TYPE(X, pool_pre_rope_body)     \
  KVPOLICY_EACH_TYPE(X, pool_bounds_body)                                              \
  KVPOLICY_EACH_TYPE(X, pool_mean_deviation_body) KVPOLICY_EACH_TYPE(X, score_bounds_body) \
  KVPOLICY_EACH_TENSOR(X, score_bounds_tensor_body)                                    \
  KVPOLICY_EACH_BESIDE(X, f16, 2) KVPOLICY_EACH_BESIDE(X, f16, 4)                      \
  KVPOLICY_EACH_BESIDE(X, bf16, 2) KVPOLICY_EACH_BESIDE(X, bf16, 4)                    \
  X(score_dot_body) X(top_k_body<true>) X(top_k_body<false>) X(named_tokens_body)        \
  X(entropy_body) X(page_trigger_body)                                                 \
  X(cascade_due_body) X(page_anchor_body) X(refresh_range_body)                        \
  X(cascade_following_body) X(cascade_children_body)                                   \
  X(cascade_pages_body) X(page_list_body)                                              \
  X(sentence_step_body) KVPOLICY_EACH_TYPE(X, sentence_means_body)                     \
  X(query_sums_body) X(sentence_fill_body) X(evict_body)                               \
  X(keep_queries_body) X(smooth_rows_body) X(drift_body) X(followers_due_body)        \
  X(block_queries_body) KVPOLICY_EACH_TYPE(X, represent_body) X(sum_heads_body)        \
  X(resolve_slots_body) KVPOLICY_EACH_TYPE(X, gather_rows_body) X(keep_step_body)      \
  X(page_table_body)

#define KVPOLICY_ATTEND_KERNELS(X)                                                     \
  KVPOLICY_EACH_GROUP(X, f32) KVPOLICY_EACH_GROUP(X, f16) KVPOLICY_EACH_GROUP(X, bf16) \
  KVPOLICY_EACH_TENSOR(X, attend_tensor_body) KVPOLICY_EACH_TENSOR(X, list_logits_tensor_body) \
  KVPOLICY_EACH_TYPE(X, list_logits_body) X(softmax_rows_body) X(group_weights_body)

#define KVPOLICY_PROMPT_KERNELS(X)                                                     \
  KVPOLICY_EACH_TYPE(X, attend_block_body)                                             \
  KVPOLICY_EACH_TYPE(X, window_statistics_body) X(merge_statistics_body)               \
  KVPOLICY_EACH_TYPE(X, window_sums_body) X(smooth_sums_body)                          \
  KVPOLICY_EACH_TENSOR(X, window_statistics_tensor_body)                               \
  KVPOLICY_EACH_TENSOR(X, window_sums_tensor_body)                                     \
  KVPOLICY_EACH_TYPE(X, row_norms_body)                                                \
  KVPOLICY_EACH_TYPE(X, key_cosines_body) X(redundancy_body)                           \
  KVPOLICY_EACH_TYPE(X, rotated_scores_body)                                           \
  KVPOLICY_EACH_TYPE(X, direction_sums_body) X(mean_direction_body)                    \
  KVPOLICY_EACH_TYPE(X, cosines_body) KVPOLICY_EACH_TYPE(X, partition_deviation_body)     \
  KVPOLICY_EACH_TYPE(X, following_queries_body)                                        \
  X(unrotate_body) X(query_mean_body) X(query_covariance_body)                         \
  KVPOLICY_EACH_TYPE(X, gaussian_logits_body)
// clang-format on
