// Tiny models with random weights, written as GGUF with the public API and loaded by the engine.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <string>

namespace kvpolicy::llama::testing {

struct model_deleter {
  void operator()(llama_model* model) const noexcept { llama_model_free(model); }
};
using model_owner = std::unique_ptr<llama_model, model_deleter>;

inline constexpr std::int32_t tiny_vocabulary = 256;

struct tiny_shape {
  std::int64_t layers = 2;
  std::int64_t q_heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t head_dim = 32;
  std::uint64_t seed = 1;
  std::int32_t gpu_layers = 0;  ///< that lie on a device, the output being one more
};

/// A model of the llama architecture; the same shape gives the same weights. Its attention is neither flat nor one-hot:
/// logits q.k / sqrt(d) have a standard deviation near 2.
model_owner tiny_llama(tiny_shape const& shape = {});

/// A model of the gemma2 architecture, every other layer with a sliding window of 64 tokens.
model_owner tiny_sliding_window();

/// Only the header of a model of that architecture, loaded for its vocabulary: enough for the engine to say what it is.
model_owner header_of(std::string const& architecture);

/// Loads a file; null if it can't be. The engine's log is silenced.
model_owner load_model(std::string const& path);

}  // namespace kvpolicy::llama::testing
