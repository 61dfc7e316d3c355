// Rows that lists name and that are not on the device, brought from pinned host memory: nearly all of them, each time.
#include "kvpolicy/gpu/offload/resident_rows.hpp"

#include "host_rows.hpp"
#include "lists.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {
namespace {

using namespace llama_8b;

/// Lists of so many tokens, for resident_rows::plan().
struct listed_tokens {
  std::int64_t count;
  std::int64_t most_listed(layer_id, std::int64_t, head_id) const noexcept { return count; }
};

void gather(measured_gpu& on, std::int64_t context, std::int32_t listed) {
  on.run("gather " + std::to_string(listed) + " rows a head from the host", 1, context, [&] {
    host_rows const keys(context);
    host_rows const values(context);
    gpu::stream_device device(on.on());
    cache_shape one_layer = shape(context);
    one_layer.layers = 1;
    gpu::resident_rows<gpu::stream_device> resident(one_layer, 1, std::span(&listed, 1), device);
    resident.plan(listed_tokens{listed});
    host_batch const host{keys.rows(), values.rows()};
    scattered_lists const lists(on, 1, context, 1, listed, 2);  // in turns: what one names the other has not, nearly all of it
    timing const time = on.time([&](int turn) { resident.gather(host, {0}, lists.at(turn), device); });
    return outcome{static_cast<double>(listed) * layer_dims * 4,
                   time,
                   {text("note", "over the link to the host, not the device's memory")}};
  });
}

}  // namespace

void gathers(measured_gpu& on) {
  on.each_cell({1}, {131072}, [&](std::int64_t, std::int64_t context) {
    for (std::int32_t const listed : {1024, 4096}) gather(on, context, listed);
  });
}

}  // namespace kvpolicy::bench
