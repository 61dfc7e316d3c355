// The presets as a session holds them, compiled once for all files of these tests: erased_presets.cpp.
#pragma once

#include "kvpolicy/exec/host_policy.hpp"
#include "kvpolicy/presets/all.hpp"

// clang-format off
#define KVPOLICY_EACH_PRESET(X)                                                                                      \
  X(full) X(chess) X(heterocache) X(sentencekv) X(chunkkv) X(streaming_llm) X(h2o) X(tova) X(knorm) X(snapkv)          \
  X(pyramidkv) X(adakv) X(quest) X(infllm) X(expected_attention) X(lagkv)
// clang-format on
#define KVPOLICY_ERASED(preset) \
  template any_policy<layer_table_view, simd_exec> erase<layer_table_view, simd_exec, presets::preset>(presets::preset const&);

namespace kvpolicy {

#define KVPOLICY_DECLARED(preset) extern KVPOLICY_ERASED(preset)
KVPOLICY_EACH_PRESET(KVPOLICY_DECLARED)
#undef KVPOLICY_DECLARED

}  // namespace kvpolicy
