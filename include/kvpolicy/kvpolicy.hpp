// kvpolicy: KV-cache policies for inference engines. This header includes the others and serves as their index.
#pragma once

#include "kvpolicy/error.hpp"
#include "kvpolicy/types.hpp"

// What an engine passes to a policy, and what it gets back.
#include "kvpolicy/selection.hpp"
#include "kvpolicy/signals.hpp"
#include "kvpolicy/view.hpp"

// Rules, policies and requests, with the four verbs: start, prefill, choose, observe.
#include "kvpolicy/adapter.hpp"
#include "kvpolicy/concepts.hpp"
#include "kvpolicy/head_profile.hpp"
#include "kvpolicy/layering.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/prompt_pages.hpp"
#include "kvpolicy/request.hpp"
#include "kvpolicy/rule.hpp"

// Parts.
#include "kvpolicy/budgets/adaptive.hpp"
#include "kvpolicy/budgets/by_head.hpp"
#include "kvpolicy/budgets/by_head_role.hpp"
#include "kvpolicy/budgets/fractions.hpp"
#include "kvpolicy/budgets/mass.hpp"
#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/pools/bounds.hpp"
#include "kvpolicy/pools/hierarchical_mean.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/pools/unit_mean.hpp"
#include "kvpolicy/scorers/accumulated_attention.hpp"
#include "kvpolicy/scorers/anchor_affinity.hpp"
#include "kvpolicy/scorers/current_attention.hpp"
#include "kvpolicy/scorers/expected_attention.hpp"
#include "kvpolicy/scorers/key_norm.hpp"
#include "kvpolicy/scorers/key_similarity.hpp"
#include "kvpolicy/scorers/lag.hpp"
#include "kvpolicy/scorers/last_attention.hpp"
#include "kvpolicy/scorers/pivot_attention.hpp"
#include "kvpolicy/scorers/query_mean_dot.hpp"
#include "kvpolicy/scorers/recency.hpp"
#include "kvpolicy/scorers/recent_attention.hpp"
#include "kvpolicy/scorers/redundancy.hpp"
#include "kvpolicy/scorers/representatives.hpp"
#include "kvpolicy/scorers/trigonometric.hpp"
#include "kvpolicy/scorers/upper_bound.hpp"
#include "kvpolicy/scorers/weighted_sum.hpp"
#include "kvpolicy/scorers/window_attention.hpp"
#include "kvpolicy/segments/hierarchy.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/segments/sentences.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/cascade.hpp"
#include "kvpolicy/selectors/fill.hpp"
#include "kvpolicy/selectors/pruned_top.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/any_of.hpp"
#include "kvpolicy/triggers/drift.hpp"
#include "kvpolicy/triggers/entropy.hpp"
#include "kvpolicy/triggers/every.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/lag.hpp"
#include "kvpolicy/windows/pages.hpp"
#include "kvpolicy/windows/tokens.hpp"

// The host executor. Include other executors and engines' formats by name, because they have few users or compiled targets:
// exec/simd.hpp and exec/team.hpp; exec/ranked.hpp with interop/mpi.hpp or interop/nccl.hpp; and in interop/ page_table.hpp,
// flashinfer.hpp, vllm.hpp, sglang.hpp, tensorrt_llm.hpp, dense.hpp and llama.hpp.
#include "kvpolicy/exec/host.hpp"

// Published methods, composed of parts.
#include "kvpolicy/presets/all.hpp"
