// A layer's sentences against the running query: the mean keys of all of them, 28 tokens each.
#include "cache.hpp"
#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {
namespace {

void sentences(measured_gpu& on, std::int64_t batch, std::int64_t context) {
  on.run("score sentences of 28", batch, context, [&] {
    using namespace llama_8b;
    double const bytes = llama_8b::sentences(batch, context);
    std::int64_t const units = context / sentence;
    gpu::stream_device device(on.on());
    std::vector<gpu::device_buffer<std::uint16_t>> means;
    for (int left = on.copies(bytes, bytes); left > 0; --left) {
      means.push_back(on.halves(batch * units * layer_dims));
    }
    auto const queries = on.floats(batch * kv_heads * head_dim);
    auto const found = on.floats(batch * kv_heads * units);
    return outcome{bytes,
                   on.time([&](int turn) {
                     auto const& table = means[static_cast<std::size_t>(turn) % means.size()];
                     gpu::batch_rows rows{};
                     rows.base = table.get().data;
                     rows.elements = table.get().size;
                     rows.type = element_type::bf16;
                     rows.heads = kv_heads;
                     rows.head_dim = head_dim;
                     rows.sequence_stride = units * layer_dims;
                     rows.head_stride = units * head_dim;
                     rows.token_stride = head_dim;
                     gpu::detail::list_weights a{};
                     a.queries = vectors(queries, kv_heads, head_dim);
                     a.keys = gpu::finished(rows);
                     a.lists = all_tokens(units);
                     a.sequences = batch;
                     a.most_tokens = units;
                     gpu::detail::launch_list_logits(device, a, found.get());
                   }),
                   {}};
  });
}

}  // namespace

void sentence_scores(measured_gpu& on) {
  on.each_cell(all_batches, all_contexts, [&](std::int64_t batch, std::int64_t context) { sentences(on, batch, context); });
}

}  // namespace kvpolicy::bench
