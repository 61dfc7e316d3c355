// In front of libllama by LD_PRELOAD: contexts get the policy that KVPOLICY names, and decodes are told to it.
#include "process.hpp"

namespace kvpolicy::preload {
namespace {

/// What is loaded may lie where another model was.
llama_model* loaded(llama_model* model, llama_model_params const& params) {
  if (serves()) {
    std::lock_guard const lock(here->working);
    if (params.no_alloc) here->sketches.insert(model);
    else here->sketches.erase(model);
  }
  return model;
}

bool is_sketch(llama_model const* model) {
  std::lock_guard const lock(here->working);
  return here->sketches.contains(model);
}

llama_context* make_context(llama_model* model, llama_context_params params) {
  nested const guard;
  // A draft model's texts are the target's, and its context must be able to follow that one's cuts.
  bool const drafts = here->how.compact && params.ctx_other != nullptr;
  if (drafts || is_sketch(model)) return engines<llama_init_from_model>("llama_init_from_model")(model, params);
  std::unique_ptr<served_context> served;
  try {
    served = std::make_unique<served_context>(here->how, model, params, here->to);
  } catch (std::exception const& why) {
    here->to.say_once(here->how.policy + ": " + why.what() + (here->how.strict ? "" : "; this context is left to the engine"));
    if (here->how.strict) return nullptr;
  }
  llama_context* const made = engines<llama_init_from_model>("llama_init_from_model")(model, params);
  if (made == nullptr || served == nullptr) return made;
  try {
    served->made(made);
  } catch (std::exception const& why) {
    here->to.say_once(here->how.policy + ": " + why.what() + "; no context is made");
    engines<llama_free>("llama_free")(made);
    return nullptr;
  }
  std::lock_guard const lock(here->working);
  keep_watch();
  here->contexts[made] = std::move(served);
  return made;
}

/// `decode` is the engine's, or what does its work here, around it the policy is told.
template <class Decode>
int decode_with(llama_context* context, served_context* served, batch_tokens const& batch, Decode decode) {
  nested const guard;
  std::optional<int> done;
  or_say([&] { done = served->step(batch); });
  if (done) return *done;
  or_say([&] { served->before(context, batch); });
  int status = decode();
  or_say([&] { status = served->after(context, batch, status); });
  return status;
}

/// What the engine does next gives other logits than a decode's.
void leave_to_engine(llama_context const* context) {
  with_drafts(context, [](lossless_steps& steps) { steps.leave(); });
}

/// A token of a batch: at `index`, of this sequence.
int added(llama_batch_ext const* batch, llama_seq_id of, int index, llama_token id) {
  if (serves() && index >= 0) {
    std::lock_guard const lock(here->working);
    batch_tokens& tokens = here->batches[batch];
    auto const before = static_cast<std::size_t>(index);
    tokens.sequences.resize(before);
    tokens.outputs.resize(before);
    tokens.ids.resize(before);
    tokens.positions.resize(before);
    tokens.add(of, id);
    tokens.outputs.push_back(0);
  }
  return index;
}

/// Something was set of the token at an index, or not: `row` of what is known of tokens has it.
template <class Value>
bool was_set(llama_batch_ext const* batch, std::int32_t index, std::vector<Value> batch_tokens::*row, Value value, bool set) {
  if (serves() && set) {
    std::lock_guard const lock(here->working);
    std::vector<Value>& values = here->batches[batch].*row;
    if (index >= 0 && index < std::ssize(values)) values[static_cast<std::size_t>(index)] = value;
  }
  return set;
}

}  // namespace
}  // namespace kvpolicy::preload

namespace preload = kvpolicy::preload;

extern "C" {

llama_context* llama_init_from_model(llama_model* model, llama_context_params params) {
  return preload::serves() ? preload::make_context(model, params)
                           : preload::engines<llama_init_from_model>("llama_init_from_model")(model, params);
}

llama_model* llama_model_load_from_file(char const* path, llama_model_params params) {
  return preload::loaded(preload::engines<llama_model_load_from_file>("llama_model_load_from_file")(path, params), params);
}

llama_model* llama_model_load_from_splits(char const** paths, std::size_t count, llama_model_params params) {
  return preload::loaded(preload::engines<llama_model_load_from_splits>("llama_model_load_from_splits")(paths, count, params),
                         params);
}

void llama_free(llama_context* context) {
  std::unique_ptr<preload::served_context> served;
  if (preload::serves()) {
    std::lock_guard const lock(preload::here->working);
    if (auto found = preload::here->contexts.extract(context)) served = std::move(found.mapped());
  }
  if (served) served->say_ended({});
  preload::engines<llama_free>("llama_free")(context);
}

void llama_perf_context_reset(llama_context* context) {
  preload::served_context* const served = preload::serves() ? preload::context_of(context) : nullptr;
  if (served != nullptr) served->begin_anew();
  preload::engines<llama_perf_context_reset>("llama_perf_context_reset")(context);
}

std::int32_t llama_decode(llama_context* context, llama_batch batch) {
  preload::served_context* const served = preload::serves() ? preload::context_of(context) : nullptr;
  if (served == nullptr) return preload::engines<llama_decode>("llama_decode")(context, batch);
  return preload::decode_with(context, served, preload::tokens_of(batch), [&] {
    return served->manages_cache() ? served->decode(context, batch)
                                   : preload::engines<llama_decode>("llama_decode")(context, batch);
  });
}

std::int32_t llama_process(llama_context* context, llama_process_type type, llama_batch_ext* batch) {
  auto const decode = [&] { return preload::engines<llama_process>("llama_process")(context, type, batch); };
  preload::served_context* const served = preload::serves() ? preload::context_of(context) : nullptr;
  if (type != LLAMA_PROCESS_TYPE_DECODE) preload::leave_to_engine(context);
  if (served == nullptr || type != LLAMA_PROCESS_TYPE_DECODE) return decode();
  preload::batch_tokens tokens;
  {
    std::lock_guard const lock(preload::here->working);
    if (auto const found = preload::here->batches.find(batch); found != preload::here->batches.end()) tokens = found->second;
  }
  return preload::decode_with(context, served, tokens, decode);
}

std::int32_t llama_encode(llama_context* context, llama_batch batch) {
  preload::leave_to_engine(context);
  return preload::engines<llama_encode>("llama_encode")(context, batch);
}

std::uint32_t llama_n_ctx(llama_context const* context) {
  preload::served_context const* const owner = preload::owner_of(context);
  return owner != nullptr ? owner->asked().all : preload::engines<llama_n_ctx>("llama_n_ctx")(context);
}

std::uint32_t llama_n_ctx_seq(llama_context const* context) {
  preload::served_context const* const owner = preload::owner_of(context);
  return owner != nullptr ? owner->asked().of_sequence : preload::engines<llama_n_ctx_seq>("llama_n_ctx_seq")(context);
}

std::int32_t llama_batch_ext_add(llama_batch_ext* batch, llama_seq_id of) {
  return preload::added(batch, of, preload::engines<llama_batch_ext_add>("llama_batch_ext_add")(batch, of), -1);
}

std::int32_t llama_batch_ext_add_token(llama_batch_ext* batch, llama_seq_id of, llama_token id) {
  return preload::added(batch, of, preload::engines<llama_batch_ext_add_token>("llama_batch_ext_add_token")(batch, of, id), id);
}

std::int32_t llama_batch_ext_add_embd(llama_batch_ext* batch, llama_seq_id of, llama_embd embedding) {
  return preload::added(batch, of, preload::engines<llama_batch_ext_add_embd>("llama_batch_ext_add_embd")(batch, of, embedding),
                        -1);
}

bool llama_batch_ext_add_seq(llama_batch_ext* batch, std::int32_t index, llama_seq_id of) {
  bool const there = preload::engines<llama_batch_ext_add_seq>("llama_batch_ext_add_seq")(batch, index, of);
  if (there && preload::serves()) {
    std::lock_guard const lock(preload::here->working);
    preload::here->batches[batch].others.push_back(of);
  }
  return there;
}

bool llama_batch_ext_set_output_embd(llama_batch_ext* batch, std::int32_t index, bool value) {
  return preload::was_set(
      batch, index, &preload::batch_tokens::outputs, static_cast<std::int8_t>(value),
      preload::engines<llama_batch_ext_set_output_embd>("llama_batch_ext_set_output_embd")(batch, index, value));
}

bool llama_batch_ext_set_output_logits(llama_batch_ext* batch, std::int32_t index, bool value) {
  return preload::was_set(
      batch, index, &preload::batch_tokens::outputs, static_cast<std::int8_t>(value),
      preload::engines<llama_batch_ext_set_output_logits>("llama_batch_ext_set_output_logits")(batch, index, value));
}

bool llama_batch_ext_set_pos(llama_batch_ext* batch, std::int32_t index, llama_pos const* positions) {
  return preload::was_set(batch, index, &preload::batch_tokens::positions, positions != nullptr ? positions[0] : -1,
                          preload::engines<llama_batch_ext_set_pos>("llama_batch_ext_set_pos")(batch, index, positions));
}

// A token with an embedding is none that lossless decoding could decode again.
bool llama_batch_ext_set_embd_token(llama_batch_ext* batch, std::int32_t index, llama_embd embedding) {
  return preload::was_set(
      batch, index, &preload::batch_tokens::ids, -1,
      preload::engines<llama_batch_ext_set_embd_token>("llama_batch_ext_set_embd_token")(batch, index, embedding));
}

bool llama_batch_ext_set_embd_state(llama_batch_ext* batch, std::int32_t index, llama_embd embedding) {
  return preload::was_set(
      batch, index, &preload::batch_tokens::ids, -1,
      preload::engines<llama_batch_ext_set_embd_state>("llama_batch_ext_set_embd_state")(batch, index, embedding));
}

void llama_batch_ext_clear(llama_batch_ext* batch) {
  if (preload::serves()) {
    std::lock_guard const lock(preload::here->working);
    preload::here->batches[batch] = {};
  }
  preload::engines<llama_batch_ext_clear>("llama_batch_ext_clear")(batch);
}

void llama_batch_ext_free(llama_batch_ext* batch) {
  if (preload::serves()) {
    std::lock_guard const lock(preload::here->working);
    preload::here->batches.erase(batch);
  }
  preload::engines<llama_batch_ext_free>("llama_batch_ext_free")(batch);
}

}  // extern "C"
