// Scores of all of a sequence's pages: by their bounds, a layer's (Quest), and by one vector of all layers (CHESS).
#include "cache.hpp"
#include "kvpolicy/gpu/pooling/launch_pool.hpp"
#include "kvpolicy/gpu/pooling/score_dot.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {
namespace {

void bounds(measured_gpu& on, std::int64_t batch, std::int64_t context) {
  on.run("score bounds of 16", batch, context, [&] {
    using namespace llama_8b;
    double const bytes = llama_8b::bounds(batch, context);
    std::int64_t const units = context / page;
    std::int64_t const of_head = units * 2 * head_dim;
    gpu::stream_device device(on.on());
    std::vector<gpu::device_buffer<std::uint16_t>> tables;
    for (int left = on.copies(bytes, bytes); left > 0; --left) tables.push_back(on.halves(batch * kv_heads * of_head));
    auto const queries = on.floats(batch * q_heads * head_dim);
    auto const found = on.floats(batch * kv_heads * units);
    return outcome{bytes, on.time([&](int turn) {
                     auto const& table = tables[static_cast<std::size_t>(turn) % tables.size()];
                     gpu::batch_rows rows{};
                     rows.base = table.get().data;
                     rows.elements = table.get().size;
                     rows.type = element_type::bf16;
                     rows.heads = kv_heads;
                     rows.head_dim = head_dim;
                     rows.sequence_stride = kv_heads * of_head;
                     rows.head_stride = of_head;
                     rows.token_stride = head_dim;
                     gpu::detail::launch_score_bounds(device, {gpu::finished(rows), q_heads / kv_heads, units, batch},
                                                      [&](auto& a) {
                                                        a.queries = vectors(queries, q_heads, head_dim);
                                                        a.merged = group_merge::mean;
                                                        a.count.all = units;
                                                        a.scores = found.get();
                                                        a.sequence_stride = kv_heads * units;
                                                        a.head_stride = units;
                                                      });
                   })};
  });
}

void dots(measured_gpu& on, std::int64_t batch, std::int64_t context) {
  on.run("score dot, all pages of 32", batch, context, [&] {
    using namespace llama_8b;
    double const bytes = pages(batch, context);
    std::int64_t const units = context / chess_page;
    gpu::stream_device device(on.on());
    std::vector<gpu::device_buffer<float>> tables;
    for (int left = on.copies(2 * bytes, 2 * bytes); left > 0; --left) tables.push_back(on.floats(batch * units * dims));
    auto const anchors = on.floats(batch * dims);
    auto const found = on.floats(batch * units);
    return outcome{bytes,
                   on.time([&](int turn) {
                     gpu::detail::score_dot_body::arguments a{};
                     a.anchor = anchors.get();
                     a.anchor_stride = dims;
                     a.vectors = tables[static_cast<std::size_t>(turn) % tables.size()].get();
                     a.vector_sequence_stride = units * dims;
                     a.vector_stride = dims;
                     a.dims = dims;
                     a.count.all = units;
                     a.scores = found.get();
                     a.stride = units;
                     gpu::detail::launch_score_dot(device, a, units, batch);
                   }),
                   {text("note", "vectors are fp32 here: twice the floor's bytes")}};
  });
}

}  // namespace

void scores(measured_gpu& on) {
  on.each_cell(all_batches, all_contexts, [&](std::int64_t batch, std::int64_t context) { bounds(on, batch, context); });
  on.each_cell(all_batches, all_contexts, [&](std::int64_t batch, std::int64_t context) { dots(on, batch, context); });
}

}  // namespace kvpolicy::bench
