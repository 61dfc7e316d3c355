// Norms of a layer's keys, as knorm takes them of a prompt: by this library's kernel, and by Thrust over its row iterator.
#include <thrust/execution_policy.h>
#include <thrust/transform.h>

#include "cache.hpp"
#include "kvpolicy/gpu/base/row_iterator.hpp"
#include "kvpolicy/gpu/base/sequence_view.hpp"
#include "kvpolicy/gpu/retain/launch_scores.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {
namespace {

struct norm_of {
  __device__ float operator()(gpu::row const& key) const { return norm(key); }
};

void norms(measured_gpu& on, std::string const& name, std::int64_t context, bool by_thrust) {
  on.run(name, 1, context, [&] {
    using namespace llama_8b;
    double const bytes = keys(1, context);
    gpu::stream_device device(on.on());
    paged_cache const cache(on, 1, context, on.copies(bytes, bytes), false);
    auto const found = on.floats(kv_heads * context);
    return outcome{
        bytes, on.time([&](int turn) {
          if (!by_thrust) return gpu::detail::launch_row_norms(device, cache.keys(turn), context, found.get(), context);
          gpu::sequence_view<gpu::paged_batch, device_memory> const view{cache.layer(turn), shape(context), 0, context};
          for (std::int64_t h = 0; h < kv_heads; ++h) {
            auto const first = gpu::rows_begin(view, {0}, {h});
            thrust::transform(thrust::cuda::par_nosync.on(device.on()), first, first + context, found.get().data + h * context,
                              norm_of{});
          }
        })};
  });
}

}  // namespace

void key_norms(measured_gpu& on) {
  on.each_cell({1}, all_contexts, [&](std::int64_t, std::int64_t context) {
    norms(on, "norms of all keys", context, false);
    norms(on, "norms of all keys, Thrust", context, true);
  });
}

}  // namespace kvpolicy::bench
