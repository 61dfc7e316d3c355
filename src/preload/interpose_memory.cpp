// In front of libllama by LD_PRELOAD: what becomes of a context's memory.
#include "process.hpp"

namespace preload = kvpolicy::preload;

extern "C" {

void llama_memory_clear(llama_memory_t memory, bool data) {
  if (preload::serves()) preload::tell_context_of(memory, [](preload::served_context& served) { served.begin_anew(); });
  preload::engines<llama_memory_clear>("llama_memory_clear")(memory, data);
}

bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id of, llama_pos from, llama_pos to) {
  // Up to the end: what a shift of the context removes has tokens behind it.
  if (preload::serves() && to < 0) {
    bool const removes = of < 0 || llama_memory_seq_pos_max(memory, of) >= from;
    preload::tell_context_of(memory, [&](preload::served_context& served) { served.cut(of, removes); });
  }
  return preload::engines<llama_memory_seq_rm>("llama_memory_seq_rm")(memory, of, from, to);
}

}  // extern "C"
