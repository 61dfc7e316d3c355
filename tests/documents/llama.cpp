// Snippets of docs/llama.md, docs/lossless.md and docs/memory.md on llama.cpp, as the pages have them: compiled, not
// run.
#include <kvpolicy/compose.hpp>
#include <kvpolicy/interop/llama/compact.hpp>
#include <kvpolicy/interop/llama/lossless.hpp>
#include <kvpolicy/interop/llama/repetition.hpp>
#include <kvpolicy/presets/all.hpp>

namespace kv = kvpolicy;

void attach(llama_context_params& params, llama_model const* model);
void attach(llama_context_params& params, llama_model const* model) {
  kv::llama::session session(kv::presets::quest{.tokens = 512, .after = 16});
  session.attach(params, model);
}

void sequences(kv::llama::session& session, llama_context* context, llama_batch const& batch);
void sequences(kv::llama::session& session, llama_context* context, llama_batch const& batch) {
  session.use(kv::presets::snapkv{.tokens = 1024}, 2);
  session.set_batch(batch);
  llama_decode(context, batch);
  session.last_step(2).tokens_read;
}

void compressed(kv::llama::session& session, llama_context* context, llama_batch text, llama_batch question,
                void (*decode)(llama_batch));
void compressed(kv::llama::session& session, llama_context* context, llama_batch text, llama_batch question,
                void (*decode)(llama_batch)) {
  decode(text);
  kv::llama::repeat(session, context);
  decode(question);
}

void compacted(llama_context_params& params, llama_model* model, llama_batch const& prompt);
void compacted(llama_context_params& params, llama_model* model, llama_batch const& prompt) {
  kv::llama::compactor compactor(kv::presets::snapkv{.tokens = 1024, .after = 0});
  compactor.attach(params, model);
  llama_context* const context = llama_init_from_model(model, params);
  llama_decode(context, prompt);
  compactor.compact(context);
}

void lossless(llama_context_params& params, llama_model* model, llama_token token, llama_token (*sample)(float const*));
void lossless(llama_context_params& params, llama_model* model, llama_token token, llama_token (*sample)(float const*)) {
  kv::llama::session session(kv::llama::verified_draft{});
  session.attach(params, model);
  llama_context* const context = llama_init_from_model(model, params);
  // your prompt's llama_decode, and your sampler on its last logits
  kv::llama::lossless fast(session, context);
  while (token >= 0) token = sample(fast.decode(token).data());
}

void managed(llama_context_params& params, llama_model const* model, llama_context* context, llama_batch const& batch);
void managed(llama_context_params& params, llama_model const* model, llama_context* context, llama_batch const& batch) {
  kv::llama::session session(kv::presets::snapkv{.tokens = 512}, {.cache = kv::llama::managed_cache{}});
  params.n_ctx = 1024;
  session.attach(params, model);
  session.decode(context, batch);
  session.memory().bytes;
}
