// kvpolicy.h's decoders: arguments are checked, C++ is called, what it throws becomes a status.
#include <string>

#include "gpu_decoder.hpp"
#include "status.hpp"
#include "store.hpp"

using namespace kvpolicy;
using namespace kvpolicy::c;

namespace {

template <class Call>
kvpolicy_status on_decoder(kvpolicy_decoder* decoder, Call call) noexcept {
  return guarded([&] {
    required(decoder, "decoder");
    decoder->enter();
    call();
  });
}

}  // namespace

kvpolicy_status kvpolicy_decoder_start(kvpolicy_policy const* policy, kvpolicy_shape const* shape, int64_t sequences,
                                       int32_t device, void* stream, int64_t workspace, kvpolicy_decoder** decoder) {
  return guarded([&] {
    required(policy, "policy");
    required(decoder, "decoder");
    cache_shape const of = shape_from(shape);
    constexpr std::int64_t most = 65535;  // blocks of a grid
    KVPOLICY_EXPECTS(sequences >= 1 && sequences <= most,
                     std::to_string(sequences) + " sequences; there must be 1 to " + std::to_string(most));
    KVPOLICY_EXPECTS(workspace >= 0,
                     "a workspace of " + std::to_string(workspace) + " bytes; give 0 for 64 MiB, or more than that");
#ifdef KVPOLICY_C_HAS_GPU
    *decoder = start_decoder(*policy, of, sequences, device, stream, workspace).release();
#else
    static_cast<void>(of), static_cast<void>(stream);
    throw unsupported("CUDA device " + std::to_string(device) +
                      " was asked for, and this library was built without CUDA; configure it where nvcc is");
#endif
  });
}

void kvpolicy_decoder_free(kvpolicy_decoder* decoder) { delete decoder; }

kvpolicy_status kvpolicy_decoder_bind(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* keys,
                                      kvpolicy_tensor const* values, kvpolicy_tensor const* pages) {
  return on_decoder(decoder, [&] { decoder->bind(layer, keys, values, pages); });
}

kvpolicy_status kvpolicy_decoder_prefill(kvpolicy_decoder* decoder, int64_t sequence, int64_t layer, int64_t tokens,
                                         kvpolicy_prompt const* prompt) {
  return on_decoder(decoder, [&] {
    required(prompt, "prompt");
    decoder->prefill(sequence, layer, tokens, *prompt);
  });
}

kvpolicy_status kvpolicy_decoder_plan(kvpolicy_decoder* decoder, int32_t const* tokens, int32_t* idle) {
  return on_decoder(decoder, [&] {
    required(tokens, "tokens");
    bool const found = decoder->plan({tokens, static_cast<std::size_t>(decoder->slots())});
    if (idle != nullptr) *idle = found ? 1 : 0;
  });
}

kvpolicy_status kvpolicy_decoder_decides(kvpolicy_decoder* decoder, int32_t* decides) {
  return on_decoder(decoder, [&] {
    required(decides, "decides");
    *decides = decoder->decides() ? 1 : 0;
  });
}

kvpolicy_status kvpolicy_decoder_decide(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* queries, float scale) {
  return on_decoder(decoder, [&] { decoder->decide(layer, queries, scale); });
}

kvpolicy_status kvpolicy_decoder_choose(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* queries, float scale,
                                        kvpolicy_tensor const* token_ids, kvpolicy_device_lists* lists) {
  return on_decoder(decoder, [&] {
    kvpolicy_device_lists const made = decoder->choose(layer, queries, scale, token_ids);
    if (lists != nullptr) *lists = made;
  });
}

kvpolicy_status kvpolicy_decoder_standing(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_device_lists* lists) {
  return on_decoder(decoder, [&] {
    kvpolicy_device_lists const made = decoder->standing(layer);
    if (lists != nullptr) *lists = made;
  });
}

kvpolicy_status kvpolicy_decoder_attend(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* queries, float scale,
                                        kvpolicy_tensor const* out) {
  return on_decoder(decoder, [&] { decoder->attend(layer, queries, scale, out); });
}

kvpolicy_status kvpolicy_decoder_renew(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* queries, float scale) {
  return on_decoder(decoder, [&] { decoder->renew(layer, queries, scale); });
}

kvpolicy_status kvpolicy_decoder_observe(kvpolicy_decoder* decoder, kvpolicy_tensor const* logits) {
  return on_decoder(decoder, [&] { decoder->observe(logits); });
}
