// What a user's own scorers give on a GPU: compiled by nvcc, looked at by gpu_test.cpp.
#pragma once

#include <vector>

#include "cuda/batch_cache.hpp"
#include "kvpolicy/compose.hpp"

namespace kvpolicy_test {

/// The four verbs' and a decoder's lists for one token after a prompt, of KV head `head`; norms of its keys by rows_begin().
struct scored_on_device {
  std::vector<std::int64_t> by_verbs;
  std::vector<std::int64_t> by_decoder;
  std::vector<float> key_norms;
};
scored_on_device score_on_device(batch_cache const& cache, cache_shape const& shape, std::int64_t tokens,
                                 retain_options const& keep, std::int64_t head);

}  // namespace kvpolicy_test
