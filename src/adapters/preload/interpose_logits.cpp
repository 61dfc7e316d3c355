// In front of libllama by LD_PRELOAD: logits of lossless decoding, which the engine may have computed a call before, and what
// would change them.
#include "process.hpp"

namespace kvpolicy::preload {
namespace {

/// Null where the last decode was the engine's, or there is no policy.
lossless_steps* steps_of(llama_context const* context) {
  served_context* const served = serves() ? context_of(context) : nullptr;
  lossless_steps* const steps = served != nullptr ? served->lossless() : nullptr;
  return steps != nullptr && steps->has_logits() ? steps : nullptr;
}

}  // namespace
}  // namespace kvpolicy::preload

namespace preload = kvpolicy::preload;

extern "C" {

float* llama_get_logits_ith(llama_context* context, std::int32_t index) {
  preload::lossless_steps* const steps = preload::steps_of(context);
  return steps != nullptr ? steps->logits(index)
                          : preload::engines<llama_get_logits_ith>("llama_get_logits_ith")(context, index);
}

float* llama_get_logits(llama_context* context) {
  preload::lossless_steps* const steps = preload::steps_of(context);
  return steps != nullptr ? steps->all_logits() : preload::engines<llama_get_logits>("llama_get_logits")(context);
}

void llama_set_embeddings(llama_context* context, bool wanted) {
  preload::with_drafts(context, [&](preload::lossless_steps& steps) { steps.want_embeddings(wanted); });
  preload::engines<llama_set_embeddings>("llama_set_embeddings")(context, wanted);
}

/// Samplers inside the engine would sample each draft.
bool llama_set_sampler(llama_context* context, llama_seq_id of, llama_sampler* sampler) {
  preload::served_context* const served = preload::serves() ? preload::context_of(context) : nullptr;
  if (served != nullptr && served->lossless() != nullptr && sampler != nullptr) return false;
  return preload::engines<llama_set_sampler>("llama_set_sampler")(context, of, sampler);
}

std::int32_t llama_set_adapters_lora(llama_context* context, llama_adapter_lora** adapters, std::size_t count, float* scales) {
  preload::with_drafts(context, [&](preload::lossless_steps& steps) {  // a server sets the same ones before each batch
    if (steps.changes({adapters, count}, {scales, count})) steps.settle();
  });
  return preload::engines<llama_set_adapters_lora>("llama_set_adapters_lora")(context, adapters, count, scales);
}

std::int32_t llama_set_adapter_cvec(llama_context* context, float const* data, std::size_t size, std::int32_t channels,
                                    std::int32_t first, std::int32_t last) {
  preload::settle(context);
  return preload::engines<llama_set_adapter_cvec>("llama_set_adapter_cvec")(context, data, size, channels, first, last);
}

}  // extern "C"
