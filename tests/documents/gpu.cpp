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

struct slots {
  kv::gpu::batch_rows k, v;
  kv::gpu::batch_rows keys(kv::layer_id) const { return k; }
  kv::gpu::batch_rows values(kv::layer_id) const { return v; }
};

void gather(kv::gpu::resident_rows<kv::gpu::stream_device>& resident, kv::gpu::paged_batch const& host, kv::layer_id l,
            kv::gpu::token_lists const& lists, decoder_type& decoder, kv::gpu::vector_rows const& queries, float scale,
            kv::gpu::vector_rows const& out, kv::gpu_exec& exec);
void gather(kv::gpu::resident_rows<kv::gpu::stream_device>& resident, kv::gpu::paged_batch const& host, kv::layer_id l,
            kv::gpu::token_lists const& lists, decoder_type& decoder, kv::gpu::vector_rows const& queries, float scale,
            kv::gpu::vector_rows const& out, kv::gpu_exec& exec) {
  kv::gpu::token_lists const here = resident.gather(host.keys(l), host.values(l), lists, exec.device());
  decoder.attend(slots{resident.keys(), resident.values()}, l, here, queries, scale, out);
}
