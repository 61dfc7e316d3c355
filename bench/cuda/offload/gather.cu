// Rows that lists name and that are not on the device, brought from pinned host memory: nearly all of them, each time.
#include "kvpolicy/gpu/offload/resident_rows.hpp"
#include "lists.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {
namespace {

using namespace llama_8b;

/// 16-bit rows of one sequence on the host, `[tokens, kv_heads, head_dim]`, pinned.
class host_rows {
 public:
  explicit host_rows(std::int64_t tokens)
      : halves_(static_cast<std::size_t>(tokens * layer_dims)), pinned_(halves_.data(), std::ssize(halves_) * 2) {
    std::uint32_t state = 1;
    for (std::uint16_t& half : halves_) {
      state = state * 1664525u + 1013904223u;
      half = static_cast<std::uint16_t>(state >> 16);
    }
  }
  gpu::batch_rows rows() const {
    gpu::batch_rows made{};
    made.base = halves_.data();
    made.elements = std::ssize(halves_);
    made.type = element_type::bf16;
    made.heads = kv_heads;
    made.head_dim = head_dim;
    made.head_stride = head_dim;
    made.token_stride = layer_dims;
    return gpu::finished(made);
  }

 private:
  std::vector<std::uint16_t> halves_;
  gpu::pinned_memory pinned_;
};

void gather(measured_gpu& on, std::int64_t context, std::int32_t listed) {
  on.run("gather " + std::to_string(listed) + " rows a head from the host", 1, context, [&] {
    host_rows const keys(context);
    host_rows const values(context);
    gpu::stream_device device(on.on());
    gpu::resident_rows<gpu::stream_device> resident(shape(context), 1, listed, device);
    scattered_lists const lists(on, 1, context, 1, listed, 2);  // in turns: what one names the other has not, nearly all of it
    timing const time =
        on.time([&](int turn) { static_cast<void>(resident.gather(keys.rows(), values.rows(), lists.at(turn), device)); });
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
