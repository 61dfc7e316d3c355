// In front of libllama by LD_PRELOAD: states of sequences, in memory and in files.
#include <kvpolicy/archive.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "checked_file.hpp"
#include "process.hpp"

namespace kvpolicy::preload {
namespace {

/// Whether its sequences are compacted, which need no state beside the engine's.
bool was_restored(served_context& served, llama_context const* context, llama_seq_id of) {
  nested const guard;
  if (served.compacts() != nullptr) served.compacts()->restored(llama_get_memory(context), of);
  return served.compacts() != nullptr;
}

/// The engine wrote so many bytes of a sequence's state, or read them.
void state_was_saved(llama_context* context, std::uint8_t const* bytes, std::size_t size, llama_seq_id of) {
  served_context* const served = size > 0 ? context_of(context) : nullptr;
  if (served == nullptr || served->compacts() != nullptr) return;
  or_say([&] {
    llama::saved_prompt prompt = served->save(of);
    std::lock_guard const lock(here->working);
    here->prompts.keep(std::as_bytes(std::span(bytes, size)), std::move(prompt));
  });
}
void state_was_restored(llama_context* context, std::uint8_t const* bytes, std::size_t size, llama_seq_id of) {
  served_context* const served = size > 0 ? context_of(context) : nullptr;
  if (served == nullptr || was_restored(*served, context, of)) return;
  std::lock_guard const lock(here->working);
  if (llama::saved_prompt const* const kept = here->prompts.find(std::as_bytes(std::span(bytes, size))))
    served->load(*kept, of);
}

/// The same in a file, with one of this library's beside it.
void file_was_saved(llama_context* context, char const* path, llama_seq_id of) {
  served_context* const served = context_of(context);
  if (served == nullptr || served->compacts() != nullptr) return;
  or_say([&] { write_beside(path, served->save(of)); });
}
void file_was_restored(llama_context* context, char const* path, llama_seq_id of) {
  served_context* const served = context_of(context);
  if (served == nullptr || was_restored(*served, context, of)) return;
  or_say([&] {
    if (auto const prompt = read_beside(path)) served->load(*prompt, of);
  });
}

/// Nothing is thrown into the engine's caller, who sees that nothing was done.
template <class Work>
void or_refuse(Work work) {
  nested const guard;
  try {
    work();
  } catch (std::exception const& why) {
    here->to.say(why.what());
  }
}

/// In place of a state that can't be: no bytes would be what a program takes for restored.
constexpr std::byte no_state[1]{};

/// A sequence's state in a managed cache: no_state where there can be none, or where it lacks the part that is asked for.
std::span<std::byte const> state_of(served_context& owner, llama_seq_id of, llama_state_seq_flags flags) {
  std::span<std::byte const> state = no_state;
  if (flags == LLAMA_STATE_SEQ_FLAGS_NONE) or_refuse([&] { state = owner.state(of); });
  return state;
}

/// The state is the library's, and the engine has none of the sequence behind it. Returns how many bytes were taken.
std::size_t take_state(served_context& owner, llama_context const* context, std::span<std::byte const> state, llama_seq_id of) {
  std::size_t taken = 0;
  or_refuse([&] {
    if (std::ranges::equal(state, no_state)) throw error("a state that could not be saved is not there to be restored");
    owner.load_state(state, of);
    engines<llama_memory_seq_rm>("llama_memory_seq_rm")(llama_get_memory(context), of, -1, -1);
    taken = state.size();
  });
  return taken;
}

constexpr std::string_view slot_file = "slot 1";

/// A slot's file: how many tokens, the tokens, the state.
std::size_t save_slot(served_context& owner, char const* path, llama_seq_id of, std::span<llama_token const> tokens) {
  std::size_t written = 0;
  or_refuse([&] {
    std::vector<std::byte> bytes;
    state_writer a(bytes);
    std::vector<llama_token> copied(tokens.begin(), tokens.end());
    a(copied);
    std::span const state = owner.state(of);
    bytes.insert(bytes.end(), state.begin(), state.end());
    owner.forget_state();
    write_checked(path, slot_file, bytes);
    written = bytes.size();
  });
  return written;
}

/// `to` null: how many tokens it has, and no more.
std::size_t load_slot(served_context& owner, llama_context const* context, char const* path, llama_seq_id of, llama_token* to,
                      std::size_t capacity, std::size_t* count) {
  std::size_t read = 0;
  or_refuse([&] {
    auto const bytes = read_checked(path, slot_file);
    if (!bytes) {
      throw invalid_value("'" + std::string(path) +
                          "' is not a state of a managed cache, of this version, or it is damaged; one that "
                          "was saved without managed-cache is restored without");
    }
    state_reader a(*bytes);
    std::vector<llama_token> tokens;
    a(tokens);
    *count = tokens.size();
    if (to != nullptr) {
      KVPOLICY_EXPECTS(tokens.size() <= capacity, "'" + std::string(path) + "' has " + std::to_string(tokens.size()) +
                                                      " tokens, and there is room for " + std::to_string(capacity));
      if (take_state(owner, context, a.rest(), of) == 0) return;
      std::ranges::copy(tokens, to);
    }
    read = bytes->size();
  });
  return read;
}

/// A whole context's state was restored, or not.
template <class Result>
Result all_were_restored(llama_context* context, Result done) {
  served_context* const served = serves() && done ? context_of(context) : nullptr;
  for (std::uint32_t of = 0; served != nullptr && of < llama_n_seq_max(context); ++of)
    was_restored(*served, context, static_cast<llama_seq_id>(of));
  return done;
}

/// Of a whole context.
bool has_no_state(llama_context const* context) {
  settle(context);
  if (owner_of(context) == nullptr) return false;
  here->to.say_once("a whole context's state is the engine's rows, and these are the library's own: save that of a sequence");
  return true;
}

}  // namespace
}  // namespace kvpolicy::preload

namespace preload = kvpolicy::preload;

extern "C" {

std::size_t llama_state_seq_get_size(llama_context* context, llama_seq_id of) {
  return llama_state_seq_get_size_ext(context, of, LLAMA_STATE_SEQ_FLAGS_NONE);
}

std::size_t llama_state_seq_get_size_ext(llama_context* context, llama_seq_id of, llama_state_seq_flags flags) {
  preload::settle(context);
  preload::served_context* const owner = preload::owner_of(context);
  if (owner == nullptr)
    return preload::engines<llama_state_seq_get_size_ext>("llama_state_seq_get_size_ext")(context, of, flags);
  return preload::state_of(*owner, of, flags).size();
}

std::size_t llama_state_seq_get_data(llama_context* context, std::uint8_t* to, std::size_t size, llama_seq_id of) {
  return llama_state_seq_get_data_ext(context, to, size, of, LLAMA_STATE_SEQ_FLAGS_NONE);
}

std::size_t llama_state_seq_get_data_ext(llama_context* context, std::uint8_t* to, std::size_t size, llama_seq_id of,
                                         llama_state_seq_flags flags) {
  preload::settle(context);
  if (preload::served_context* const owner = preload::owner_of(context)) {
    std::span const state = preload::state_of(*owner, of, flags);
    if (state.size() > size) return 0;
    std::ranges::copy(state, reinterpret_cast<std::byte*>(to));
    std::size_t const written = state.size();
    owner->forget_state();
    return written;
  }
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
  preload::settle(context);
  if (preload::served_context* const owner = preload::owner_of(context))
    return preload::take_state(*owner, context, std::as_bytes(std::span(from, size)), of);
  std::size_t const read =
      preload::engines<llama_state_seq_set_data_ext>("llama_state_seq_set_data_ext")(context, from, size, of, flags);
  if (preload::serves() && flags == LLAMA_STATE_SEQ_FLAGS_NONE) preload::state_was_restored(context, from, read, of);
  return read;
}

std::size_t llama_state_seq_save_file(llama_context* context, char const* path, llama_seq_id of, llama_token const* tokens,
                                      std::size_t count) {
  preload::settle(context);
  if (preload::served_context* const owner = preload::owner_of(context))
    return preload::save_slot(*owner, path, of, {tokens, count});
  std::size_t const written =
      preload::engines<llama_state_seq_save_file>("llama_state_seq_save_file")(context, path, of, tokens, count);
  if (written > 0 && preload::serves()) preload::file_was_saved(context, path, of);
  return written;
}

std::size_t llama_state_seq_load_file(llama_context* context, char const* path, llama_seq_id of, llama_token* tokens,
                                      std::size_t capacity, std::size_t* count) {
  preload::settle(context);
  if (preload::served_context* const owner = preload::owner_of(context))
    return preload::load_slot(*owner, context, path, of, tokens, capacity, count);
  std::size_t const read =
      preload::engines<llama_state_seq_load_file>("llama_state_seq_load_file")(context, path, of, tokens, capacity, count);
  if (read > 0 && preload::serves()) preload::file_was_restored(context, path, of);
  return read;
}

std::size_t llama_state_get_size(llama_context* context) {
  return preload::has_no_state(context) ? 0 : preload::engines<llama_state_get_size>("llama_state_get_size")(context);
}

std::size_t llama_state_get_data(llama_context* context, std::uint8_t* to, std::size_t size) {
  return preload::has_no_state(context) ? 0 : preload::engines<llama_state_get_data>("llama_state_get_data")(context, to, size);
}

std::size_t llama_state_set_data(llama_context* context, std::uint8_t const* from, std::size_t size) {
  if (preload::has_no_state(context)) return 0;
  return preload::all_were_restored(context,
                                    preload::engines<llama_state_set_data>("llama_state_set_data")(context, from, size));
}

bool llama_state_load_file(llama_context* context, char const* path, llama_token* tokens, std::size_t capacity,
                           std::size_t* count) {
  return !preload::has_no_state(context) &&
         preload::all_were_restored(
             context, preload::engines<llama_state_load_file>("llama_state_load_file")(context, path, tokens, capacity, count));
}

bool llama_state_save_file(llama_context* context, char const* path, llama_token const* tokens, std::size_t count) {
  return !preload::has_no_state(context) &&
         preload::engines<llama_state_save_file>("llama_state_save_file")(context, path, tokens, count);
}

}  // extern "C"
