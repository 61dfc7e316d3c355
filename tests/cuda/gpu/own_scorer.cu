#include "cuda/gpu/own_scorer.hpp"

#include <thrust/copy.h>
#include <thrust/device_vector.h>

#include "cuda/batch_run.hpp"
#include "kvpolicy/gpu/kvpolicy.cuh"
#include "kvpolicy/gpu/score_tokens.cuh"

namespace kvpolicy_test {
namespace {

struct value_recency {
  __device__ float operator()(gpu::row const& key, gpu::row const& value, std::int64_t age) const {
    return norm(value) + dot(key, value) - static_cast<float>(age) / 64;
  }
};
struct norm_of {
  __device__ float operator()(gpu::row const& key) const { return norm(key); }
};

}  // namespace

scored_on_device score_on_device(batch_cache const& cache, cache_shape const& shape, std::int64_t tokens,
                                 retain_options const& keep, std::int64_t head) {
  auto const policy = retain(gpu::score_tokens(value_recency{}), keep);
  gpu_exec exec(test_stream(), test_workspace());
  gpu::sequence_view<gpu::paged_batch, device_memory> const view{cache.view(), shape, 0, tokens};
  scored_on_device made;

  auto state = start(policy, shape);
  state.prefill(view, {0}, {}, exec);
  auto next = view;
  ++next.count;
  for (token_range const& range : state.choose(next, {0}, {}, exec).of({head})) {
    for (std::int64_t t = range.begin; t < range.end; ++t) made.by_verbs.push_back(t);
  }

  gpu_device device;
  gpu::decoder<std::decay_t<decltype(policy)>, gpu_device> decoder(policy, shape, 1, device);
  decoder.prefill(0, cache.view(), tokens, {0}, {}, exec);
  decoder.plan(std::vector<std::int32_t>{static_cast<std::int32_t>(tokens + 1)});
  made.by_decoder = tokens_of(device, decoder.choose(cache.view(), {0}, {}, 1), 0, head);

  auto const first = gpu::rows_begin(view, {0}, {head});
  thrust::device_vector<float> norms(static_cast<std::size_t>(tokens));
  thrust::transform(thrust::cuda::par_nosync.on(test_stream()), first, first + tokens, norms.begin(), norm_of{});
  made.key_norms.resize(norms.size());
  wait_for(test_stream());
  thrust::copy(norms.begin(), norms.end(), made.key_norms.begin());
  return made;
}

}  // namespace kvpolicy_test
