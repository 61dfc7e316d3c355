// Every kernel that kvpolicy::gpu compiles, by the folders that hold their bodies.
#pragma once

#include "kvpolicy/gpu/attention/attend.hpp"
#include "kvpolicy/gpu/attention/attend_block.hpp"
#include "kvpolicy/gpu/attention/attend_latent.hpp"
#include "kvpolicy/gpu/attention/attend_tensor.hpp"
#include "kvpolicy/gpu/attention/group_weights.hpp"
#include "kvpolicy/gpu/attention/list_weights.hpp"
#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/attention/logits_tensor.hpp"
#include "kvpolicy/gpu/attention/prompt_attention.hpp"
#include "kvpolicy/gpu/attention/prompt_attention_tensor.hpp"
#include "kvpolicy/gpu/base/top_k.hpp"
#include "kvpolicy/gpu/drift/looks.hpp"
#include "kvpolicy/gpu/hierarchy/anchor.hpp"
#include "kvpolicy/gpu/hierarchy/descent.hpp"
#include "kvpolicy/gpu/hierarchy/entropy.hpp"
#include "kvpolicy/gpu/hierarchy/level.hpp"
#include "kvpolicy/gpu/hierarchy/page_trigger.hpp"
#include "kvpolicy/gpu/offload/gather.hpp"
#include "kvpolicy/gpu/pages/largest_channels.hpp"
#include "kvpolicy/gpu/pages/prune.hpp"
#include "kvpolicy/gpu/pages/represent.hpp"
#include "kvpolicy/gpu/pooling/pool.hpp"
#include "kvpolicy/gpu/pooling/score_bounds.hpp"
#include "kvpolicy/gpu/pooling/score_bounds_tensor.hpp"
#include "kvpolicy/gpu/pooling/score_dot.hpp"
#include "kvpolicy/gpu/retain/evict.hpp"
#include "kvpolicy/gpu/retain/gaussian.hpp"
#include "kvpolicy/gpu/retain/late_queries.hpp"
#include "kvpolicy/gpu/retain/list_scores.hpp"
#include "kvpolicy/gpu/retain/row_scores.hpp"
#include "kvpolicy/gpu/retain/similarity.hpp"
#include "kvpolicy/gpu/sentences/buckets.hpp"
#include "kvpolicy/gpu/sentences/fill.hpp"
#include "kvpolicy/gpu/step/kept_step.hpp"
#include "kvpolicy/gpu/step/page_table.hpp"

// clang-format off

/// Each macro calls X(body) for every body of a folder. Use it where kvpolicy's names are known.
#define KVPOLICY_EACH_TYPE(X, body) X(body<element_type::f32>) X(body<element_type::f16>) X(body<element_type::bf16>)
#define KVPOLICY_EACH_SIZE(X, body, type) X(body<type, 2>) X(body<type, 3>) X(body<type, 4>) X(body<type, 8>)
#define KVPOLICY_EACH_TENSOR(X, body)                                                                          \
  KVPOLICY_EACH_SIZE(X, body, element_type::f16) KVPOLICY_EACH_SIZE(X, body, element_type::bf16)

#define KVPOLICY_EACH_GROUP(X, type)                                                                           \
  X(gpu::detail::attend_body<element_type::type, 1>) X(gpu::detail::attend_body<element_type::type, 2>)        \
  X(gpu::detail::attend_body<element_type::type, 4>) X(gpu::detail::attend_body<element_type::type, 8>)        \
  X(gpu::detail::attend_body<element_type::type, 1, false>)                                                    \
  X(gpu::detail::attend_body<element_type::type, 1, false, true>) X(gpu::detail::attend_body<element_type::type, 4, true, true>) \
  X(gpu::detail::attend_body<element_type::type, 1, false, true, true>) X(gpu::detail::list_logits_body<element_type::type, true>)
#define KVPOLICY_EACH_LATENT(X, type)                                                                          \
  X(gpu::detail::attend_latent_body<element_type::type, false>) X(gpu::detail::attend_latent_body<element_type::type, true>)
#define KVPOLICY_ATTENTION_KERNELS(X)                                                                          \
  KVPOLICY_EACH_GROUP(X, f32) KVPOLICY_EACH_GROUP(X, f16) KVPOLICY_EACH_GROUP(X, bf16)                         \
  KVPOLICY_EACH_LATENT(X, f16) KVPOLICY_EACH_LATENT(X, bf16)                                                   \
  KVPOLICY_EACH_TENSOR(X, gpu::detail::attend_tensor_body) KVPOLICY_EACH_TENSOR(X, gpu::detail::list_logits_tensor_body) \
  KVPOLICY_EACH_TENSOR(X, gpu::detail::list_statistics_tensor_body) KVPOLICY_EACH_TENSOR(X, gpu::detail::unit_logits_tensor_body) \
  KVPOLICY_EACH_TYPE(X, gpu::detail::list_logits_body) X(gpu::detail::softmax_rows_body) X(gpu::detail::group_weights_body) \
  X(gpu::detail::named_tokens_body)
#define KVPOLICY_PROMPT_ATTENTION_KERNELS(X)                                                                   \
  KVPOLICY_EACH_TYPE(X, gpu::detail::attend_block_body)                                                        \
  KVPOLICY_EACH_TYPE(X, gpu::detail::window_statistics_body) X(gpu::detail::merge_statistics_body)             \
  KVPOLICY_EACH_TYPE(X, gpu::detail::window_sums_body) X(gpu::detail::smooth_sums_body)                        \
  KVPOLICY_EACH_TENSOR(X, gpu::detail::window_statistics_tensor_body)                                          \
  KVPOLICY_EACH_TENSOR(X, gpu::detail::window_sums_tensor_body)

#define KVPOLICY_EACH_BESIDE(X, type, chunks)                                                                  \
  X(gpu::detail::pool_beside_bounds_body<gpu::detail::pool_bounds_body<element_type::type>,                    \
                            gpu::detail::score_bounds_tensor_body<element_type::type, chunks>>)                \
  X(gpu::detail::pool_beside_bounds_body<gpu::detail::pool_mean_deviation_body<element_type::type>,            \
                            gpu::detail::score_bounds_tensor_body<element_type::type, chunks>>)
#define KVPOLICY_POOLING_KERNELS(X)                                                                            \
  KVPOLICY_EACH_TYPE(X, gpu::detail::pool_mean_body) KVPOLICY_EACH_TYPE(X, gpu::detail::pool_pre_rope_body)    \
  KVPOLICY_EACH_TYPE(X, gpu::detail::pool_bounds_body) KVPOLICY_EACH_TYPE(X, gpu::detail::pool_mean_deviation_body) \
  X(gpu::detail::score_dot_body)                                                                               \
  KVPOLICY_EACH_TYPE(X, gpu::detail::score_bounds_body) KVPOLICY_EACH_TENSOR(X, gpu::detail::score_bounds_tensor_body) \
  X(gpu::detail::score_bounds_body<element_type::f32, true>) X(gpu::detail::score_bounds_body<element_type::f16, true>) \
  X(gpu::detail::score_bounds_body<element_type::bf16, true>)                                                  \
  KVPOLICY_EACH_BESIDE(X, f16, 2) KVPOLICY_EACH_BESIDE(X, f16, 3)                                              \
  KVPOLICY_EACH_BESIDE(X, f16, 4) KVPOLICY_EACH_BESIDE(X, f16, 8)                                              \
  KVPOLICY_EACH_BESIDE(X, bf16, 2) KVPOLICY_EACH_BESIDE(X, bf16, 3)                                            \
  KVPOLICY_EACH_BESIDE(X, bf16, 4) KVPOLICY_EACH_BESIDE(X, bf16, 8)

#define KVPOLICY_PAGES_KERNELS(X)                                                                              \
  X(gpu::detail::block_queries_body) KVPOLICY_EACH_TYPE(X, gpu::detail::represent_body) X(gpu::detail::merge_heads_body) \
  X(gpu::detail::largest_channels_body) X(gpu::detail::prune_body)
#define KVPOLICY_HIERARCHY_KERNELS(X)                                                                          \
  X(gpu::detail::entropy_body) X(gpu::detail::page_trigger_body) X(gpu::detail::cascade_due_body)              \
  X(gpu::detail::prepare_descent_body) X(gpu::detail::cascade_level_body)
#define KVPOLICY_DRIFT_KERNELS(X)                                                                              \
  X(gpu::detail::keep_queries_body) X(gpu::detail::drift_body)
#define KVPOLICY_SENTENCES_KERNELS(X)                                                                          \
  X(gpu::detail::sentence_step_body) KVPOLICY_EACH_TYPE(X, gpu::detail::sentence_take_body)                   \
  X(gpu::detail::sentence_fill_body)

#define KVPOLICY_RETAIN_KERNELS(X)                                                                             \
  KVPOLICY_EACH_TYPE(X, gpu::detail::row_norms_body) KVPOLICY_EACH_TYPE(X, gpu::detail::partition_deviation_body) \
  KVPOLICY_EACH_TYPE(X, gpu::detail::following_queries_body)                                                   \
  KVPOLICY_EACH_TYPE(X, gpu::detail::key_cosines_body) X(gpu::detail::redundancy_body)                         \
  KVPOLICY_EACH_TYPE(X, gpu::detail::rotated_scores_body)                                                      \
  KVPOLICY_EACH_TYPE(X, gpu::detail::direction_sums_body) X(gpu::detail::mean_direction_body)                  \
  KVPOLICY_EACH_TYPE(X, gpu::detail::cosines_body)                                                             \
  X(gpu::detail::unrotate_body) X(gpu::detail::query_mean_body) X(gpu::detail::query_covariance_body)          \
  KVPOLICY_EACH_TYPE(X, gpu::detail::gaussian_logits_body) X(gpu::detail::evict_body)
#define KVPOLICY_OFFLOAD_KERNELS(X) X(gpu::detail::resolve_slots_body) KVPOLICY_EACH_TYPE(X, gpu::detail::gather_rows_body)
#define KVPOLICY_STEP_KERNELS(X)                                                                               \
  X(gpu::detail::top_k_body) X(gpu::detail::top_k_digits_body) X(gpu::detail::top_k_parts_body) \
  X(gpu::detail::keep_step_body) X(gpu::detail::keep_late_body) X(gpu::detail::page_table_body)
// clang-format on
