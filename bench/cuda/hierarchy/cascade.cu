// CHESS's choice, coarse to fine over grids, chunks and pages: what a decoder enqueues at layer 0 of a step whose trigger
// fired.
#include <memory>

#include "cache.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/gpu/gpu_exec.hpp"
#include "kvpolicy/presets/chess.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {
namespace {

using chess_decoder = gpu::decoder<presets::chess, gpu::stream_device>;

/// A decoder in the step that ends a page, after its trigger fired: every choice from here on is made anew. Summaries of all
/// levels are there but for the last units, as when a trigger fires while decoding.
std::unique_ptr<chess_decoder> decoder_that_chooses(measured_gpu& on, presets::chess const& policy, std::int64_t batch,
                                                    std::int64_t context, paged_cache const& cache, gpu::stream_device& device,
                                                    gpu_exec& exec) {
  auto made = std::make_unique<chess_decoder>(policy, llama_8b::shape(context), batch, device);
  for (std::int64_t s = 0; s < batch; ++s) {
    for (std::int64_t l = 0; l < llama_8b::layers; ++l) made->prefill(s, cache.layer(l), context - 1, {l}, {}, exec);
  }
  std::vector<std::int32_t> const lengths(static_cast<std::size_t>(batch), static_cast<std::int32_t>(context));
  made->plan(lengths);
  constexpr std::int64_t few = 1024;
  auto const logits = on.floats(batch * few);
  made->observe(vectors(logits, 1, few), few);
  exec.device().finish();  // logits go
  return made;
}

void cascade(measured_gpu& on, std::int64_t batch, std::int64_t context) {
  on.run("cascade of depth 3", batch, context, [&] {
    using namespace llama_8b;
    presets::chess policy = presets::chess::aggressive();
    policy.entropy = policy.varentropy = 0;  // any page is unsure
    policy.both = false;                     // one entropy does not vary
    double const bytes = descent(batch, context, policy.fractions.grids, policy.fractions.chunks);
    double const memory = static_cast<double>(batch * context / chess_page * dims) * 4 * 1.15;
    gpu::stream_device device(on.on());
    gpu_exec exec(on.on());
    paged_cache const cache(on, batch, context, 1, false);
    std::vector<std::unique_ptr<chess_decoder>> decoders;
    for (int left = on.copies(2 * bytes, memory); left > 0; --left) {
      decoders.push_back(decoder_that_chooses(on, policy, batch, context, cache, device, exec));
    }
    auto const queries = on.floats(batch * q_heads * head_dim);
    return outcome{bytes,
                   on.time([&](int turn) {
                     chess_decoder& one = *decoders[static_cast<std::size_t>(turn) % decoders.size()];
                     static_cast<void>(one.choose(cache.layer(0), {0}, vectors(queries, q_heads, head_dim), scale));
                   }),
                   {text("note", "vectors are fp32 here: twice the floor's bytes; with the pooling of layer 0's new token")}};
  });
}

}  // namespace

void cascades(measured_gpu& on) {
  on.each_cell(all_batches, all_contexts, [&](std::int64_t batch, std::int64_t context) { cascade(on, batch, context); });
}

}  // namespace kvpolicy::bench
