// A layer's keys against a prompt's last queries (SnapKV), smoothed as presets do it. One sequence after the other, as prefill
// is.
#include "cache.hpp"
#include "kvpolicy/gpu/attention/launch_prompt.hpp"
#include "kvpolicy/gpu/base/batch.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {
namespace {

void window(measured_gpu& on, std::int64_t batch, std::int64_t context, std::int64_t window, std::int32_t width) {
  on.run("window attention of " + std::to_string(window), batch, context, [&] {
    using namespace llama_8b;
    double const bytes = keys(batch, context);
    gpu::stream_device device(on.on(), std::int64_t{256} << 20);
    paged_cache const cache(on, batch, context, on.copies(bytes, bytes), false);
    auto const queries = on.floats(window * q_heads * head_dim);
    auto const found = on.floats(kv_heads * context);
    return outcome{bytes, on.time([&](int turn) {
                     gpu::detail::prompt_attention what{};
                     what.queries = vectors(queries, q_heads, head_dim);
                     what.queries.token_stride = q_heads * head_dim;
                     what.scale = scale;
                     what.group = q_heads / kv_heads;
                     what.window = window;
                     what.tokens = context;
                     for (std::int64_t s = 0; s < batch; ++s) {
                       what.keys = gpu::of_sequence(cache.keys(turn), s);
                       gpu::detail::launch_window_attention(device, what, context - window, group_merge::mean, [&](auto& a) {
                         a.how = static_cast<std::int32_t>(smoothing::kind::maximum);
                         a.width = width;
                         a.scores = found.get();
                         a.score_stride = context;
                       });
                     }
                   })};
  });
}

}  // namespace

void window_attention_cases(measured_gpu& on) {
  on.each_cell(all_batches, all_contexts, [&](std::int64_t batch, std::int64_t context) {
    window(on, batch, context, 8, 31);
    window(on, batch, context, 32, 7);
  });
}

}  // namespace kvpolicy::bench
