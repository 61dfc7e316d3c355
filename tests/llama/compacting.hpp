// A context whose sequences a test compacts.
#pragma once

#include <llama.h>

#include <cstdint>

#include "decoding.hpp"
#include "kvpolicy/interop/llama/compact.hpp"

namespace kvpolicy::llama::testing {

inline std::int64_t cells_of(decoder const& of, llama_seq_id sequence = 0) {
  return llama_memory_seq_pos_max(of.memory(), sequence) - llama_memory_seq_pos_min(of.memory(), sequence) + 1;
}

/// A context with a compactor.
template <class Policy>
struct compacting {
  compactor with;
  decoder engine;

  compacting(llama_model* model, Policy const& policy, context_options const& options = {}, bool cache_offloaded = true)
      : with(policy), engine(model, attached(with, model, options, cache_offloaded)) {}

  static llama_context_params attached(compactor& with, llama_model const* model, context_options const& options,
                                       bool cache_offloaded) {
    llama_context_params params = parameters(options);
    params.offload_kqv = cache_offloaded;
    with.attach(params, model);
    return params;
  }
};

}  // namespace kvpolicy::llama::testing
