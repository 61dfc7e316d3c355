// In front of libllama by LD_PRELOAD: states of sequences, in memory and in files.
#include <cstddef>
#include <span>

#include "process.hpp"

namespace kvpolicy::preload {
namespace {

/// The engine wrote so many bytes of a sequence's state, or read them.
void state_was_saved(llama_context* context, std::uint8_t const* bytes, std::size_t size, llama_seq_id of) {
  served_context const* const served = size > 0 ? context_of(context) : nullptr;
  if (served == nullptr) return;
  or_say([&] {
    llama::saved_prompt prompt = served->save(of);
    std::lock_guard const lock(here->working);
    here->prompts.keep(std::as_bytes(std::span(bytes, size)), std::move(prompt));
  });
}
void state_was_restored(llama_context* context, std::uint8_t const* bytes, std::size_t size, llama_seq_id of) {
  served_context* const served = size > 0 ? context_of(context) : nullptr;
  if (served == nullptr) return;
  std::lock_guard const lock(here->working);
  if (llama::saved_prompt const* const kept = here->prompts.find(std::as_bytes(std::span(bytes, size))))
    served->load(*kept, of);
}

/// The same in a file, with one of this library's beside it.
void file_was_saved(llama_context* context, char const* path, llama_seq_id of) {
  served_context const* const served = context_of(context);
  if (served == nullptr) return;
  or_say([&] { write_beside(path, served->save(of)); });
}
void file_was_restored(llama_context* context, char const* path, llama_seq_id of) {
  served_context* const served = context_of(context);
  if (served == nullptr) return;
  or_say([&] {
    if (auto const prompt = read_beside(path)) served->load(*prompt, of);
  });
}

}  // namespace
}  // namespace kvpolicy::preload

namespace preload = kvpolicy::preload;

extern "C" {

std::size_t llama_state_seq_get_data(llama_context* context, std::uint8_t* to, std::size_t size, llama_seq_id of) {
  return llama_state_seq_get_data_ext(context, to, size, of, LLAMA_STATE_SEQ_FLAGS_NONE);
}

std::size_t llama_state_seq_get_data_ext(llama_context* context, std::uint8_t* to, std::size_t size, llama_seq_id of,
                                         llama_state_seq_flags flags) {
  std::size_t const written =
      preload::engines<llama_state_seq_get_data_ext>("llama_state_seq_get_data_ext")(context, to, size, of, flags);
  if (preload::serves() && flags == LLAMA_STATE_SEQ_FLAGS_NONE) preload::state_was_saved(context, to, written, of);
  return written;
}

std::size_t llama_state_seq_set_data(llama_context* context, std::uint8_t const* from, std::size_t size, llama_seq_id of) {
  return llama_state_seq_set_data_ext(context, from, size, of, LLAMA_STATE_SEQ_FLAGS_NONE);
}

std::size_t llama_state_seq_set_data_ext(llama_context* context, std::uint8_t const* from, std::size_t size, llama_seq_id of,
                                         llama_state_seq_flags flags) {
  std::size_t const read =
      preload::engines<llama_state_seq_set_data_ext>("llama_state_seq_set_data_ext")(context, from, size, of, flags);
  if (preload::serves() && flags == LLAMA_STATE_SEQ_FLAGS_NONE) preload::state_was_restored(context, from, read, of);
  return read;
}

std::size_t llama_state_seq_save_file(llama_context* context, char const* path, llama_seq_id of, llama_token const* tokens,
                                      std::size_t count) {
  std::size_t const written =
      preload::engines<llama_state_seq_save_file>("llama_state_seq_save_file")(context, path, of, tokens, count);
  if (written > 0 && preload::serves()) preload::file_was_saved(context, path, of);
  return written;
}

std::size_t llama_state_seq_load_file(llama_context* context, char const* path, llama_seq_id of, llama_token* tokens,
                                      std::size_t capacity, std::size_t* count) {
  std::size_t const read =
      preload::engines<llama_state_seq_load_file>("llama_state_seq_load_file")(context, path, of, tokens, capacity, count);
  if (read > 0 && preload::serves()) preload::file_was_restored(context, path, of);
  return read;
}

}  // extern "C"
