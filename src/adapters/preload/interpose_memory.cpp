// In front of libllama by LD_PRELOAD: what becomes of a context's memory. Where rows are the library's own, the engine has but
// the last few tokens of each sequence, and is not asked what there is. Where its cells are compacted, it has all of them, and
// does not know which of their positions are a text's.
#include <algorithm>

#include "process.hpp"

namespace preload = kvpolicy::preload;

extern "C" {

void llama_memory_clear(llama_memory_t memory, bool data) {
  preload::settle(memory);
  if (preload::serves()) preload::tell_context_of(memory, [](preload::served_context& served) { served.begin_anew(); });
  if (preload::served_context* const owner = preload::owner_of(memory)) owner->remove(-1, 0);
  if (preload::compacted_sequences* const of = preload::compacting(memory)) of->keep(-1);
  preload::engines<llama_memory_clear>("llama_memory_clear")(memory, data);
}

bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id of, llama_pos from, llama_pos to) {
  preload::settle(memory);
  // Up to the end: what a shift of the context removes has tokens behind it.
  if (preload::serves() && to < 0) {
    bool const removes = of < 0 || llama_memory_seq_pos_max(memory, of) >= from;
    preload::tell_context_of(memory, [&](preload::served_context& served) { served.cut(of, removes); });
  }
  if (preload::served_context* const owner = preload::owner_of(memory)) {
    bool const is_tail = to < 0 || (of >= 0 && to > owner->last_position(of));
    if (!is_tail && std::max(from, 0) < to) return false;  // the engine's word for what can't be cut out
    if (is_tail) owner->remove(of, from);
  }
  if (preload::compacted_sequences* const compacted = preload::compacting(memory)) {
    if (!compacted->cut(of, from, to)) return false;
  }
  return preload::engines<llama_memory_seq_rm>("llama_memory_seq_rm")(memory, of, from, to);
}

void llama_memory_seq_keep(llama_memory_t memory, llama_seq_id of) {
  preload::settle(memory);
  if (preload::served_context* const owner = preload::owner_of(memory)) owner->keep(of);
  if (preload::compacted_sequences* const compacted = preload::compacting(memory)) compacted->keep(of);
  preload::engines<llama_memory_seq_keep>("llama_memory_seq_keep")(memory, of);
}

void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos first, llama_pos last) {
  preload::settle(memory);
  preload::engines<llama_memory_seq_cp>("llama_memory_seq_cp")(memory, from, to, first, last);
  if (preload::compacted_sequences* const compacted = preload::compacting(memory)) compacted->copy(memory, from, to);
  preload::served_context* const owner = preload::owner_of(memory);
  if (owner == nullptr || first > 0) return;
  try {
    owner->copy(from, to);
    if (last >= 0) owner->remove(to, last);
  } catch (std::exception const& why) {
    preload::here->to.say("sequence " + std::to_string(to) + " is no copy of " + std::to_string(from) + ": " + why.what());
  }
}

void llama_memory_seq_add(llama_memory_t memory, llama_seq_id of, llama_pos first, llama_pos last, llama_pos delta) {
  preload::settle(memory);
  preload::engines<llama_memory_seq_add>("llama_memory_seq_add")(memory, of, first, last, delta);
}

void llama_memory_seq_div(llama_memory_t memory, llama_seq_id of, llama_pos first, llama_pos last, int by) {
  preload::settle(memory);
  preload::engines<llama_memory_seq_div>("llama_memory_seq_div")(memory, of, first, last, by);
}

/// Positions are how the library tells tokens: they can't be moved.
bool llama_memory_can_shift(llama_memory_t memory) {
  return preload::owner_of(memory) == nullptr && preload::compacting(memory) == nullptr &&
         preload::engines<llama_memory_can_shift>("llama_memory_can_shift")(memory);
}

llama_pos llama_memory_seq_pos_min(llama_memory_t memory, llama_seq_id of) {
  preload::settle(memory);
  if (preload::compacted_sequences const* const compacted = preload::compacting(memory)) {
    if (llama_pos const from = compacted->compacted(of); from >= 0) return from;
  }
  preload::served_context const* const owner = preload::owner_of(memory);
  if (owner == nullptr) return preload::engines<llama_memory_seq_pos_min>("llama_memory_seq_pos_min")(memory, of);
  if (owner->last_position(of) >= 0) return owner->first_position(of);
  // A copy that could not be made: nothing of what the engine has of it can be gone on from.
  llama_pos const last = preload::engines<llama_memory_seq_pos_max>("llama_memory_seq_pos_max")(memory, of);
  return last < 0 ? -1 : last + 1;
}

llama_pos llama_memory_seq_pos_max(llama_memory_t memory, llama_seq_id of) {
  preload::settle(memory);
  preload::served_context const* const owner = preload::owner_of(memory);
  return owner != nullptr ? owner->last_position(of)
                          : preload::engines<llama_memory_seq_pos_max>("llama_memory_seq_pos_max")(memory, of);
}

}  // extern "C"
