// A layer's decode attention: over everything, and over 1024 tokens of each KV head's own, as pages of 16 or one by one. And
// the weights alone, of the same lists.
#include <functional>
#include <memory>
#include <vector>

#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "lists.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {
namespace {

constexpr std::int64_t few = 1024;

using lists_at = std::function<gpu::token_lists(int)>;

/// What each turn's lists are, and how many tokens they name; unit 0: all tokens.
struct reading {
  std::int64_t unit;
  std::int64_t most;

  lists_at lists(measured_gpu& on, std::int64_t batch, std::int64_t context) const {
    if (unit == 0) return [context](int) { return all_tokens(context); };
    auto const made = std::make_shared<scattered_lists>(on, batch, context, unit, most / unit, measured_gpu::repetitions);
    return [made](int turn) { return made->at(turn); };
  }
};

void attend(measured_gpu& on, std::string const& name, std::int64_t batch, std::int64_t context, reading const& what) {
  on.run(name, batch, context, [&] {
    using namespace llama_8b;
    double const bytes = llama_8b::attention(batch, what.most);
    auto const memory = static_cast<double>(paged_cache::bytes_of(batch, context, true));
    gpu::stream_device device(on.on());
    paged_cache const cache(on, batch, context, on.copies(bytes, memory), true);
    lists_at const lists = what.lists(on, batch, context);
    auto const queries = on.floats(batch * q_heads * head_dim);
    auto const out = on.floats(batch * q_heads * head_dim);
    return outcome{bytes, on.time([&](int turn) {
                     gpu::detail::decode_attention a{};
                     a.queries = vectors(queries, q_heads, head_dim);
                     a.scale = scale;
                     a.group = q_heads / kv_heads;
                     a.keys = cache.keys(turn);
                     a.values = cache.values(turn);
                     a.lists = lists(turn);
                     a.sequences = batch;
                     a.most_tokens = what.most;
                     a.out = vectors(out, q_heads, head_dim);
                     gpu::detail::launch_attend(device, a);
                   })};
  });
}

/// FlashMLA's shape: keys of 576 channels, whose first 512 are the values, and all query heads of a rank.
void attend_latent(measured_gpu& on, std::string const& name, std::int64_t batch, std::int64_t context, std::int32_t group) {
  on.run(name, batch, context, [&] {
    constexpr std::int64_t dim = 576;
    std::int64_t const elements = batch * context * dim;
    auto const bytes = static_cast<double>(elements * 2);
    gpu::stream_device device(on.on());
    std::vector<gpu::device_buffer<std::uint16_t>> copies;
    for (std::int64_t c = on.copies(bytes, bytes); c > 0; --c) copies.push_back(on.halves(elements));
    auto const queries = on.halves(batch * group * dim);
    auto const out = on.floats(batch * group * gpu::detail::latent::value_dim);
    return outcome{bytes, on.time([&](int turn) {
                     gpu::batch_rows rows{};
                     rows.base = copies[static_cast<std::size_t>(turn) % copies.size()].get().data;
                     rows.elements = elements;
                     rows.heads = 1;
                     rows.head_dim = dim;
                     rows.sequence_stride = context * dim;
                     rows.token_stride = dim;
                     gpu::detail::decode_attention a{};
                     a.queries.base = queries.get().data;
                     a.queries.elements = queries.get().size;
                     a.queries.type = element_type::f16;
                     a.queries.sequence_stride = group * dim;
                     a.queries.head_stride = dim;
                     a.scale = llama_8b::scale;
                     a.group = group;
                     a.keys = gpu::finished(rows);
                     rows.head_dim = gpu::detail::latent::value_dim;
                     a.values = gpu::finished(rows);
                     a.lists = all_tokens(context);
                     a.sequences = batch;
                     a.most_tokens = context;
                     a.out = vectors(out, group, gpu::detail::latent::value_dim);
                     gpu::detail::launch_attend(device, a);
                   })};
  });
}

void weigh(measured_gpu& on, std::string const& name, std::int64_t batch, std::int64_t context, reading const& what) {
  on.run(name, batch, context, [&] {
    using namespace llama_8b;
    double const bytes = keys(batch, what.most);
    auto const memory = static_cast<double>(paged_cache::bytes_of(batch, context, false));
    std::int64_t const logits = batch * q_heads * what.most * 4;
    gpu::stream_device device(on.on(), logits + (std::int64_t{64} << 20));
    auto const found = on.floats(batch * kv_heads * what.most);
    paged_cache const cache(on, batch, context, on.copies(bytes, memory), false);
    lists_at const lists = what.lists(on, batch, context);
    auto const queries = on.floats(batch * q_heads * head_dim);
    return outcome{bytes, on.time([&](int turn) {
                     gpu::detail::list_weights a{};
                     a.queries = vectors(queries, q_heads, head_dim);
                     a.scale = scale;
                     a.group = q_heads / kv_heads;
                     a.keys = cache.keys(turn);
                     a.lists = lists(turn);
                     a.sequences = batch;
                     a.most_tokens = what.most;
                     a.out = found.get();
                     a.sequence_stride = kv_heads * what.most;
                     a.head_stride = what.most;
                     gpu::detail::launch_list_weights(device, a);
                   })};
  });
}

}  // namespace

void attention(measured_gpu& on) {
  on.each_cell(all_batches, all_contexts, [&](std::int64_t batch, std::int64_t context) {
    attend(on, "attend to all", batch, context, {0, context});
    attend(on, "attend to 1024, pages of 16", batch, context, {llama_8b::page, few});
    attend(on, "attend to 1024, single tokens", batch, context, {1, few});
    attend_latent(on, "attend to all, latent rows, 16 heads", batch, context, 16);
    attend_latent(on, "attend to all, latent rows, 128 heads", batch, context, 128);
  });
}

void list_weight_cases(measured_gpu& on) {
  on.each_cell(all_batches, all_contexts, [&](std::int64_t batch, std::int64_t context) {
    weigh(on, "list weights of all", batch, context, {0, context});
    weigh(on, "list weights of 1024, pages of 16", batch, context, {llama_8b::page, few});
  });
}

}  // namespace kvpolicy::bench
