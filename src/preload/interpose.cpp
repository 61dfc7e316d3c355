// In front of libllama by LD_PRELOAD: contexts get the policy that KVPOLICY names, and decodes are told to it. The only state
// of the library that belongs to a process; what it does is served_context's.
#include <llama.h>

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kept_prompts.hpp"
#include "log.hpp"
#include "served_context.hpp"
#include "settings.hpp"

namespace kvpolicy::preload {
namespace {

using namespace std::chrono_literals;

/// The engine's own function behind this library's of the same name; null where it has none.
template <auto* Interposed>
decltype(Interposed) engines(char const* name) {
  static auto const found = reinterpret_cast<decltype(Interposed)>(dlsym(RTLD_NEXT, name));
  return found;
}

struct process {
  process(settings said, std::string const& log_path) : how(std::move(said)), to(log_path) {}

  settings how;
  log to;
  std::mutex working{};
  std::map<llama_context*, std::unique_ptr<served_context>> contexts{};
  std::map<llama_batch_ext const*, std::vector<llama_seq_id>> batches{};  ///< of each, its tokens' sequences
  std::set<llama_model const*> sketches{};                                ///< models without weights, to see what fits
  kept_prompts prompts{};
};

/// Never destroyed: threads of the engine may outlive exit()'s destructors. Null: nothing is done.
process* here = nullptr;

/// The session calls the engine, too.
thread_local int inside = 0;
struct nested {
  nested() { ++inside; }
  ~nested() { --inside; }
  nested(nested const&) = delete;
  nested& operator=(nested const&) = delete;
};

bool serves() { return here != nullptr && inside == 0; }

served_context* context_of(llama_context* context) {
  std::lock_guard const lock(here->working);
  auto const found = here->contexts.find(context);
  return found == here->contexts.end() ? nullptr : found->second.get();
}

/// The engine does not say when a request has ended: it has, at the latest, when nothing was decoded for a second.
void watch() {
  for (;;) {
    std::this_thread::sleep_for(250ms);
    std::lock_guard const lock(here->working);
    for (auto& [context, served] : here->contexts) served->say_ended(1s);
  }
}

std::string version_of(char const* version, char const* commit) { return std::string(version) + " (" + commit + ")"; }

/// Development versions share a number, and are told by their commit, which may say -dirty; releases need no more.
bool is_built_for(std::string_view version, std::string_view commit) {
  if (version != KVPOLICY_LLAMA_VERSION) return false;
  return !version.ends_with("-dev") || commit.substr(0, commit.find('-')) == KVPOLICY_LLAMA_COMMIT;
}

[[noreturn]] void refuse(std::string const& why) {
  std::fprintf(stderr, "kvpolicy: %s\n", why.c_str());
  std::_Exit(2);
}

/// The same program again, without this library in front: structs of another version can't even be passed on.
void start_without(char** arguments) {
  char const* const front = std::getenv("LD_PRELOAD");
  std::istringstream all(front != nullptr ? front : "");
  std::string others;
  for (std::string one; std::getline(all, one, ':');) {
    if (!one.ends_with("libkvpolicy-llama.so")) others += (others.empty() ? "" : ":") + one;
  }
  setenv("LD_PRELOAD", others.c_str(), 1);
  unsetenv("KVPOLICY");  // should the library be there by another name
  execv("/proc/self/exe", arguments);
  refuse(std::string("the program can't be started again without this library: ") + std::strerror(errno));
}

/// Before main. Programs without the engine are left alone: a shell that starts a server, say.
__attribute__((constructor)) void begin(int, char** arguments, char**) {
  char const* const said = std::getenv("KVPOLICY");
  if (said == nullptr || *said == '\0' || engines<llama_init_from_model>("llama_init_from_model") == nullptr) return;
  char const* const path = std::getenv("KVPOLICY_LOG");
  try {
    auto made = std::make_unique<process>(parse_settings(said), path != nullptr ? path : "");
    auto* const version = engines<llama_version>("llama_version");
    auto* const commit = engines<ggml_commit>("ggml_commit");
    std::string const found = version != nullptr && commit != nullptr ? version_of(version(), commit()) : "an older one";
    if (version == nullptr || commit == nullptr || !is_built_for(version(), commit())) {
      std::string const why = "built for llama.cpp " + version_of(KVPOLICY_LLAMA_VERSION, KVPOLICY_LLAMA_COMMIT) +
                              ", and this is " + found + "; build kvpolicy against it";
      if (made->how.strict) refuse(why);
      made->to.say(why + "; the program goes on without a policy");
      start_without(arguments);
    }
    here = made.release();
  } catch (std::exception const& why) {
    refuse(why.what());
  }
}

__attribute__((destructor)) void end() {
  if (here == nullptr) return;
  std::lock_guard const lock(here->working);
  for (auto& [context, served] : here->contexts) served->say_ended(0s);
}

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

/// Nothing is thrown into the engine, or its caller.
template <class Work>
void or_say(Work work) {
  try {
    work();
  } catch (std::exception const& why) {
    here->to.say_once(std::string("the engine goes on alone here: ") + why.what());
  }
}

llama_context* make_context(llama_model* model, llama_context_params params) {
  nested const guard;
  if (is_sketch(model)) return engines<llama_init_from_model>("llama_init_from_model")(model, params);
  std::unique_ptr<served_context> served;
  try {
    served = std::make_unique<served_context>(here->how, model, params, here->to);
  } catch (std::exception const& why) {
    here->to.say_once(here->how.policy + ": " + why.what() + (here->how.strict ? "" : "; this context is left to the engine"));
    if (here->how.strict) return nullptr;
  }
  llama_context* const made = engines<llama_init_from_model>("llama_init_from_model")(model, params);
  if (made == nullptr || served == nullptr) return made;
  std::lock_guard const lock(here->working);
  if (here->contexts.empty()) {
    static std::once_flag watching;
    std::call_once(watching, [] { std::thread(watch).detach(); });
  }
  here->contexts[made] = std::move(served);
  return made;
}

/// `decode` is the engine's, around it the policy is told.
template <class Decode>
int decode_with(llama_context* context, std::vector<llama_seq_id> const& sequences, Decode decode) {
  served_context* const served = context_of(context);
  if (served == nullptr) return decode();
  nested const guard;
  or_say([&] { served->before(sequences); });
  int status = decode();
  or_say([&] { status = served->after(sequences, status); });
  return status;
}

template <class Tell>
void tell_context_of(llama_memory_t memory, Tell tell) {
  std::lock_guard const lock(here->working);
  for (auto& [context, served] : here->contexts) {
    if (llama_get_memory(context) == memory) tell(*served);
  }
}

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

/// A token of a batch: at `index`, of this sequence.
int added(llama_batch_ext const* batch, llama_seq_id of, int index) {
  if (serves() && index >= 0) {
    std::lock_guard const lock(here->working);
    auto& sequences = here->batches[batch];
    sequences.resize(static_cast<std::size_t>(index) + 1);
    sequences.back() = of;
  }
  return index;
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

void llama_perf_context_reset(llama_context* context) {
  preload::served_context* const served = preload::serves() ? preload::context_of(context) : nullptr;
  if (served != nullptr) served->begin_anew();
  preload::engines<llama_perf_context_reset>("llama_perf_context_reset")(context);
}

std::int32_t llama_decode(llama_context* context, llama_batch batch) {
  auto const decode = [&] { return preload::engines<llama_decode>("llama_decode")(context, batch); };
  if (!preload::serves()) return decode();
  std::vector<llama_seq_id> sequences;
  for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
    bool const named = batch.seq_id != nullptr && batch.n_seq_id != nullptr && batch.n_seq_id[i] > 0;
    sequences.push_back(named ? batch.seq_id[i][0] : 0);
  }
  return preload::decode_with(context, sequences, decode);
}

std::int32_t llama_process(llama_context* context, llama_process_type type, llama_batch_ext* batch) {
  auto const decode = [&] { return preload::engines<llama_process>("llama_process")(context, type, batch); };
  if (!preload::serves() || type != LLAMA_PROCESS_TYPE_DECODE) return decode();
  std::vector<llama_seq_id> sequences;
  {
    std::lock_guard const lock(preload::here->working);
    if (auto const found = preload::here->batches.find(batch); found != preload::here->batches.end()) sequences = found->second;
  }
  return preload::decode_with(context, sequences, decode);
}

std::int32_t llama_batch_ext_add(llama_batch_ext* batch, llama_seq_id of) {
  return preload::added(batch, of, preload::engines<llama_batch_ext_add>("llama_batch_ext_add")(batch, of));
}

std::int32_t llama_batch_ext_add_token(llama_batch_ext* batch, llama_seq_id of, llama_token id) {
  return preload::added(batch, of, preload::engines<llama_batch_ext_add_token>("llama_batch_ext_add_token")(batch, of, id));
}

std::int32_t llama_batch_ext_add_embd(llama_batch_ext* batch, llama_seq_id of, llama_embd embedding) {
  return preload::added(batch, of,
                        preload::engines<llama_batch_ext_add_embd>("llama_batch_ext_add_embd")(batch, of, embedding));
}

void llama_batch_ext_clear(llama_batch_ext* batch) {
  if (preload::serves()) {
    std::lock_guard const lock(preload::here->working);
    preload::here->batches[batch].clear();
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
