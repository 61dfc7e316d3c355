// A batch whose first sequence is written, for tests of what a decoder is given.
#pragma once

#include "cuda/batch_cache.hpp"
#include "cuda/test_device.hpp"

namespace kvpolicy_test {

/// Two slots' caches; the first one's tokens are written.
struct written_batch {
  cache_shape shape;
  batch_cache cache;
  test_device device{};
  prompt_exec exec{};

  explicit written_batch(std::int64_t layers) : written_batch(layers, random_source(12)) {}
  written_batch(std::int64_t layers, random_source random)
      : shape{.layers = layers, .q_heads = 2, .kv_heads = 1, .head_dim = 8, .max_tokens = 40},
        cache(shape, 2, 8, page_layout::nhd, random, true) {
    for (std::int64_t t = 0; t < shape.max_tokens; ++t) cache.write(0, t, random);
  }
};

}  // namespace kvpolicy_test
