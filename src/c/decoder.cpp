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

kvpolicy_status kvpolicy_decoder_start(kvpolicy_policy const* policy, kvpolicy_shape const* shape,
                                       kvpolicy_decoder_options const* options, kvpolicy_decoder** decoder) {
  return guarded([&] {
    required(policy, "policy");
    required(options, "options");
    required(decoder, "decoder");
    cache_shape const of = shape_from(shape);
    constexpr std::int64_t most = 65535;  // blocks of a grid
    KVPOLICY_EXPECTS(options->sequences >= 1 && options->sequences <= most,
                     std::to_string(options->sequences) + " sequences; there must be 1 to " + std::to_string(most));
    KVPOLICY_EXPECTS(options->workspace >= 0,
                     "a workspace of " + std::to_string(options->workspace) + " bytes; give 0 for 64 MiB, or more than that");
#ifdef KVPOLICY_C_HAS_GPU
    *decoder = start_decoder(*policy, of, *options).release();
#else
    static_cast<void>(of);
    throw unsupported("CUDA device " + std::to_string(options->device) +
                      " was asked for, and this library was built without CUDA; configure it where nvcc is");
#endif
  });
}

void kvpolicy_decoder_free(kvpolicy_decoder* decoder) { delete decoder; }

kvpolicy_status kvpolicy_decoder_on(kvpolicy_decoder* decoder, void* stream) {
  return on_decoder(decoder, [&] { decoder->on(stream); });
}

kvpolicy_status kvpolicy_decoder_bind(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* keys,
                                      kvpolicy_tensor const* values, kvpolicy_tensor const* pages) {
  return on_decoder(decoder, [&] { decoder->bind(layer, keys, values, pages); });
}

kvpolicy_status kvpolicy_decoder_bind_terms(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_terms const* terms) {
  return on_decoder(decoder, [&] {
    required(terms, "terms");
    decoder->bind_terms(layer, *terms);
  });
}

kvpolicy_status kvpolicy_decoder_prefill(kvpolicy_decoder* decoder, int64_t sequence, int64_t row, int64_t layer,
                                         int64_t tokens, kvpolicy_prompt const* prompt) {
  return on_decoder(decoder, [&] {
    required(prompt, "prompt");
    decoder->prefill(sequence, row, layer, tokens, *prompt);
  });
}

kvpolicy_status kvpolicy_decoder_plan(kvpolicy_decoder* decoder, int64_t rows, int32_t const* tokens, int32_t const* brought,
                                      int32_t const* slots, int32_t* step) {
  return on_decoder(decoder, [&] {
    KVPOLICY_EXPECTS(rows >= 0, std::to_string(rows) + " rows; there are 0 at least");
    if (rows > 0) required(tokens, "tokens");
    auto const numbers = [&](int32_t const* from) {
      return std::span<std::int32_t const>(from, from == nullptr ? 0 : static_cast<std::size_t>(rows));
    };
    std::int32_t const asked = decoder->plan(numbers(tokens), numbers(brought), numbers(slots));
    if (step != nullptr) *step = asked;
  });
}

kvpolicy_status kvpolicy_decoder_settle(kvpolicy_decoder* decoder, float scale) {
  return on_decoder(decoder, [&] { decoder->settle(scale); });
}

kvpolicy_status kvpolicy_decoder_cut(kvpolicy_decoder* decoder, int64_t sequence, int64_t tokens) {
  return on_decoder(decoder, [&] { decoder->cut(sequence, tokens); });
}

kvpolicy_status kvpolicy_decoder_end(kvpolicy_decoder* decoder, int64_t sequence) {
  return on_decoder(decoder, [&] { decoder->end(sequence); });
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
