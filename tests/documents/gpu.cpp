// Snippets of docs/cuda.md, as the page has them: compiled, not run.
#include <kvpolicy/gpu/decoder.hpp>
#include <kvpolicy/gpu/gpu_exec.hpp>
#include <kvpolicy/gpu/offload/resident_rows.hpp>
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;
using decoder_type = kv::gpu::decoder<kv::presets::chess, kv::gpu::stream_device>;

void steps(kv::gpu::stream stream, kv::cache_shape const& shape, std::int64_t sequences, kv::gpu::paged_batch const& view,
           std::int64_t s, std::int64_t tokens, kv::layer_id layer_given, kv::prompt_signals const& prompt,
           std::span<std::int32_t const> lengths, int layers, kv::gpu::vector_rows const& queries, float scale,
           kv::gpu::buffer<std::int32_t const> ids, kv::gpu::vector_rows const& out, kv::gpu::vector_rows const& logits,
           std::int64_t vocabulary);
void steps(kv::gpu::stream stream, kv::cache_shape const& shape, std::int64_t sequences, kv::gpu::paged_batch const& view,
           std::int64_t s, std::int64_t tokens, kv::layer_id layer_given, kv::prompt_signals const& prompt,
           std::span<std::int32_t const> lengths, int layers, kv::gpu::vector_rows const& queries, float scale,
           kv::gpu::buffer<std::int32_t const> ids, kv::gpu::vector_rows const& out, kv::gpu::vector_rows const& logits,
           std::int64_t vocabulary) {
  kv::gpu_exec exec(stream);
  kv::gpu::decoder<kv::presets::chess, kv::gpu::stream_device> decoder({}, shape, sequences, exec.device());
  {
    std::int64_t const layer = layer_given.value;
    decoder.prefill(s, view, tokens, {layer}, prompt, exec);
  }
  decoder.plan(lengths);
  for (int layer = 0; layer < layers; ++layer) {
    kv::gpu::token_lists const lists = decoder.choose(view, {layer}, queries, scale, ids);
    decoder.attend(view, {layer}, lists, queries, scale, out);
  }
  decoder.observe(logits, vocabulary);
}

void several(kv::gpu_exec& exec, kv::cache_shape const& shape, std::int64_t sequences, kv::gpu::paged_batch const& view,
             std::span<std::int32_t const> lengths, std::span<std::int32_t const> brought, float scale);
void several(kv::gpu_exec& exec, kv::cache_shape const& shape, std::int64_t sequences, kv::gpu::paged_batch const& view,
             std::span<std::int32_t const> lengths, std::span<std::int32_t const> brought, float scale) {
  kv::gpu::decoder<kv::presets::quest, kv::gpu::stream_device> decoder({}, shape, sequences, exec.device(), 8);
  decoder.plan(lengths, brought);
  if (decoder.unsettled()) decoder.settle(view, scale);
}

void moving(kv::gpu_exec& exec, kv::cache_shape const& shape, std::int64_t slots, std::int64_t rows,
            kv::gpu::paged_batch const& view, std::int64_t slot, std::int64_t row, std::int64_t tokens,
            kv::layer_id layer_given, kv::prompt_signals const& prompt, std::span<std::int32_t const> slots_of_rows,
            std::span<std::int32_t const> lengths);
void moving(kv::gpu_exec& exec, kv::cache_shape const& shape, std::int64_t slots, std::int64_t rows,
            kv::gpu::paged_batch const& view, std::int64_t slot, std::int64_t row, std::int64_t tokens,
            kv::layer_id layer_given, kv::prompt_signals const& prompt, std::span<std::int32_t const> slots_of_rows,
            std::span<std::int32_t const> lengths) {
  kv::gpu::decoder<kv::presets::quest, kv::gpu::stream_device> decoder({}, shape, slots, exec.device(), 1, rows);
  std::int64_t const layer = layer_given.value;
  decoder.prefill(slot, view, tokens, {layer}, prompt, exec, row);
  decoder.plan_rows(slots_of_rows, lengths);
  decoder.end(slot);
}

void offloaded(kv::gpu::decoder<kv::presets::heterocache, kv::gpu::stream_device>& decoder, kv::cache_shape const& shape,
               std::int64_t sequences, std::span<std::int32_t const> slots, kv::gpu::paged_batch const& host,
               std::span<std::int32_t const> lengths, kv::gpu::vector_rows const* queries, float scale,
               kv::gpu::vector_rows const* out, kv::gpu::stream side, kv::gpu::stream_device& device);
void offloaded(kv::gpu::decoder<kv::presets::heterocache, kv::gpu::stream_device>& decoder, kv::cache_shape const& shape,
               std::int64_t sequences, std::span<std::int32_t const> slots, kv::gpu::paged_batch const& host,
               std::span<std::int32_t const> lengths, kv::gpu::vector_rows const* queries, float scale,
               kv::gpu::vector_rows const* out, kv::gpu::stream side, kv::gpu::stream_device& device) {
  kv::gpu::resident_rows resident(shape, sequences, slots, device);
  decoder.plan(lengths);
  resident.plan(decoder);
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    kv::layer_id const l{i};
    kv::gpu::token_lists const lists = decoder.choose(host, l, queries[i], scale);
    resident.gather(host, l, lists, device);
    decoder.attend(resident.view(), l, lists, queries[i], scale, out[i]);
    decoder.renew(resident.view(), l, queries[i], scale);
    device.beside(side, [&] { resident.gather(host, l, decoder.standing(l), device); });
  }
  device.join(side);
}

void retained(kv::gpu::decoder<kv::presets::snapkv, kv::gpu::stream_device>& decoder, kv::cache_shape const& shape,
              std::int64_t sequences, std::span<std::int32_t const> slots, kv::gpu::paged_batch const& pages,
              std::span<std::int32_t const> lengths, kv::gpu::vector_rows const* queries, float scale,
              kv::gpu::vector_rows const* out, kv::gpu::stream_device& device);
void retained(kv::gpu::decoder<kv::presets::snapkv, kv::gpu::stream_device>& decoder, kv::cache_shape const& shape,
              std::int64_t sequences, std::span<std::int32_t const> slots, kv::gpu::paged_batch const& pages,
              std::span<std::int32_t const> lengths, kv::gpu::vector_rows const* queries, float scale,
              kv::gpu::vector_rows const* out, kv::gpu::stream_device& device) {
  kv::gpu::resident_rows kept(shape, sequences, slots, device);
  decoder.plan(lengths);
  kept.plan_retained(decoder);
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    kv::layer_id const l{i};
    kept.gather(pages, l, decoder.retained(l), device);
    kv::gpu::token_lists const lists = decoder.choose(kept.view(), l, queries[i], scale);
    decoder.attend(kept.view(), l, lists, queries[i], scale, out[i]);
  }
}
