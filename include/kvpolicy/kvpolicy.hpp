// kvpolicy: KV-cache policies for inference engines. This page is the index; it only includes.
#pragma once

#include "kvpolicy/error.hpp"
#include "kvpolicy/types.hpp"

// What an engine hands over, and gets back.
#include "kvpolicy/selection.hpp"
#include "kvpolicy/signals.hpp"
#include "kvpolicy/view.hpp"

// The composition, and the four verbs: start, prefill, choose, observe.
#include "kvpolicy/act.hpp"
#include "kvpolicy/concepts.hpp"
#include "kvpolicy/head_profile.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/prompt_pages.hpp"
#include "kvpolicy/request.hpp"

// Parts, in the order in which data passes through them.
#include "kvpolicy/budget/adaptive.hpp"
#include "kvpolicy/budget/by_head_role.hpp"
#include "kvpolicy/budget/fractions.hpp"
#include "kvpolicy/budget/mass.hpp"
#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/pool/bounds.hpp"
#include "kvpolicy/pool/hierarchical_mean.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/pool/unit_mean.hpp"
#include "kvpolicy/score/accumulated_attention.hpp"
#include "kvpolicy/score/anchor_affinity.hpp"
#include "kvpolicy/score/expected_attention.hpp"
#include "kvpolicy/score/key_norm.hpp"
#include "kvpolicy/score/key_similarity.hpp"
#include "kvpolicy/score/lag.hpp"
#include "kvpolicy/score/last_attention.hpp"
#include "kvpolicy/score/pivot_attention.hpp"
#include "kvpolicy/score/query_mean_dot.hpp"
#include "kvpolicy/score/recency.hpp"
#include "kvpolicy/score/representatives.hpp"
#include "kvpolicy/score/upper_bound.hpp"
#include "kvpolicy/score/window_attention.hpp"
#include "kvpolicy/segment/hierarchy.hpp"
#include "kvpolicy/segment/pages.hpp"
#include "kvpolicy/segment/sentences.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/cascade.hpp"
#include "kvpolicy/select/fill.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/any_of.hpp"
#include "kvpolicy/trigger/drift.hpp"
#include "kvpolicy/trigger/entropy.hpp"
#include "kvpolicy/trigger/every.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/lag.hpp"
#include "kvpolicy/window/pages.hpp"
#include "kvpolicy/window/tokens.hpp"

// What runs them. Included by name, because their users are few or their targets compiled: exec/simd.hpp and exec/team.hpp,
// exec/ranked.hpp with interop/mpi.hpp or interop/nccl.hpp; interop/page_table.hpp, flashinfer.hpp, vllm.hpp, sglang.hpp,
// tensorrt_llm.hpp, dense.hpp and llama.hpp there.
#include "kvpolicy/exec/host.hpp"

// Published methods, as compositions.
#include "kvpolicy/presets/all.hpp"
