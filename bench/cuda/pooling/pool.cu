// Pooling a layer's keys: a whole prompt's into means (pages of 32) and bounds (of 16), and one new token into either.
#include "cache.hpp"
#include "kvpolicy/gpu/pooling/launch_pool.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {
namespace {

/// Where a layer's means go, `[sequences, units, kv_heads, head_dim]`; or its bounds, `[sequences, kv_heads, units, 2,
/// head_dim]`.
struct summaries {
  std::int64_t units;
  gpu::device_buffer<float> means;
  gpu::device_buffer<std::uint16_t> bounds;

  summaries(measured_gpu& on, std::int64_t batch, std::int64_t context, std::int64_t unit, bool of_bounds)
      : units(context / unit),
        means(on.floats(of_bounds ? 0 : batch * units * llama_8b::layer_dims)),
        bounds(on.halves(of_bounds ? batch * units * 2 * llama_8b::layer_dims : 0)) {}

  void take(gpu::stream_device& device, gpu::batch_rows const& keys, gpu::detail::pooled_tokens const& what,
            std::int64_t batch) {
    if (bounds.get().size > 0) {
      gpu::detail::launch_pool<gpu::detail::pool_bounds_body>(device, keys, what, batch, [&](auto& a) {
        a.bounds = {bounds.get().data, bounds.get().size, units * 2 * llama_8b::layer_dims, units * 2 * llama_8b::head_dim};
      });
    } else {
      gpu::detail::launch_pool<gpu::detail::pool_mean_body>(device, keys, what, batch, [&](auto& a) {
        a.means = means.get();
        a.sequence_stride = units * llama_8b::layer_dims;
        a.unit_stride = llama_8b::layer_dims;
        a.head_stride = llama_8b::head_dim;
      });
    }
  }
};

void prompts(measured_gpu& on, std::string const& name, std::int64_t unit, bool of_bounds) {
  on.each_cell(all_batches, all_contexts, [&](std::int64_t batch, std::int64_t context) {
    on.run(name, batch, context, [&] {
      double const bytes = llama_8b::keys(batch, context);
      gpu::stream_device device(on.on());
      paged_cache const cache(on, batch, context, on.copies(bytes, bytes), false);
      summaries to(on, batch, context, unit, of_bounds);
      gpu::detail::pooled_tokens what{};
      what.last.all = context;
      what.unit_size = static_cast<std::int32_t>(unit);
      what.units = to.units;
      return outcome{bytes, on.time([&](int turn) { to.take(device, cache.keys(turn), what, batch); })};
    });
  });
}

/// Each turn is of another page, which that token closes.
void tokens(measured_gpu& on, std::string const& name, std::int64_t unit, bool of_bounds) {
  on.each_cell(all_batches, {32768}, [&](std::int64_t batch, std::int64_t context) {
    on.run(name, batch, context, [&] {
      gpu::stream_device device(on.on());
      paged_cache const cache(on, batch, context, 1, false);
      summaries to(on, batch, context, unit, of_bounds);
      gpu::detail::pooled_tokens what{};
      what.newest = 1;
      what.unit_size = static_cast<std::int32_t>(unit);
      what.units = 1;
      return outcome{llama_8b::pooled_token(batch), on.time([&](int turn) {
                       what.last.all = context - turn * unit;
                       to.take(device, cache.keys(0), what, batch);
                     })};
    });
  });
}

}  // namespace

void pooling(measured_gpu& on) {
  prompts(on, "pool means of 32, prompt", llama_8b::chess_page, false);
  prompts(on, "pool bounds of 16, prompt", llama_8b::page, true);
  tokens(on, "pool means of 32, one token", llama_8b::chess_page, false);
  tokens(on, "pool bounds of 16, one token", llama_8b::page, true);
}

}  // namespace kvpolicy::bench
