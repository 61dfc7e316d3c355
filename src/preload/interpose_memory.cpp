// In front of libllama by LD_PRELOAD: what becomes of a context's memory. Where rows are the library's own, the engine has but
// the last few tokens of each sequence, and is not asked what there is.
#include "process.hpp"

namespace preload = kvpolicy::preload;

extern "C" {

void llama_memory_clear(llama_memory_t memory, bool data) {
  if (preload::serves()) preload::tell_context_of(memory, [](preload::served_context& served) { served.begin_anew(); });
  if (preload::served_context* const owner = preload::owner_of(memory)) owner->remove(-1, 0);
  preload::engines<llama_memory_clear>("llama_memory_clear")(memory, data);
}

bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id of, llama_pos from, llama_pos to) {
  // Up to the end: what a shift of the context removes has tokens behind it.
  if (preload::serves() && to < 0) {
    bool const removes = of < 0 || llama_memory_seq_pos_max(memory, of) >= from;
    preload::tell_context_of(memory, [&](preload::served_context& served) { served.cut(of, removes); });
  }
  preload::served_context* const owner = preload::owner_of(memory);
  if (owner != nullptr && (to < 0 || (of >= 0 && to > owner->last_position(of)))) owner->remove(of, from);
  return preload::engines<llama_memory_seq_rm>("llama_memory_seq_rm")(memory, of, from, to);
}

void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos first, llama_pos last) {
  preload::engines<llama_memory_seq_cp>("llama_memory_seq_cp")(memory, from, to, first, last);
  preload::served_context* const owner = preload::owner_of(memory);
  if (owner == nullptr || first > 0) return;
  preload::or_say([&] {
    owner->copy(from, to);
    if (last >= 0) owner->remove(to, last);
  });
}

/// Positions are how the library tells tokens: they can't be moved.
bool llama_memory_can_shift(llama_memory_t memory) {
  return preload::owner_of(memory) == nullptr && preload::engines<llama_memory_can_shift>("llama_memory_can_shift")(memory);
}

llama_pos llama_memory_seq_pos_min(llama_memory_t memory, llama_seq_id of) {
  preload::served_context const* const owner = preload::owner_of(memory);
  return owner != nullptr ? owner->first_position(of)
                          : preload::engines<llama_memory_seq_pos_min>("llama_memory_seq_pos_min")(memory, of);
}

llama_pos llama_memory_seq_pos_max(llama_memory_t memory, llama_seq_id of) {
  preload::served_context const* const owner = preload::owner_of(memory);
  return owner != nullptr ? owner->last_position(of)
                          : preload::engines<llama_memory_seq_pos_max>("llama_memory_seq_pos_max")(memory, of);
}

}  // extern "C"
