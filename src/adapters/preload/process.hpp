// What the library has in a process: the policy that was named, and the contexts that have it. Its only global state.
#pragma once

#include <llama.h>

#include <dlfcn.h>

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kept_prompts.hpp"
#include "log.hpp"
#include "served_context.hpp"
#include "settings.hpp"

namespace kvpolicy::preload {

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
  std::map<llama_context const*, std::unique_ptr<served_context>> contexts{};
  std::map<llama_batch_ext const*, batch_tokens> batches{};
  std::set<llama_model const*> sketches{};  ///< models without weights, to see what fits
  kept_prompts prompts{};
};

/// Never destroyed: threads of the engine may outlive exit()'s destructors. Null: nothing is done.
extern process* here;

/// The session calls the engine, too.
extern constinit thread_local int inside;
struct nested {
  nested() { ++inside; }
  ~nested() { --inside; }
  nested(nested const&) = delete;
  nested& operator=(nested const&) = delete;
};

inline bool serves() { return here != nullptr && inside == 0; }

/// Null where the context is the engine's alone.
served_context* context_of(llama_context const* context);
/// The same of those with rows of their own, and where it is not the session that asks; null also where there is no policy.
served_context* owner_of(llama_context const* context);
served_context* owner_of(llama_memory_t memory);
/// What compacts this memory's sequences; null if nothing does.
compacted_sequences* compacting(llama_memory_t memory);

/// From the first context on, what ended requests did is said.
void keep_watch();

/// Of each context with this memory.
template <class Tell>
void tell_context_of(llama_memory_t memory, Tell tell) {
  std::lock_guard const lock(here->working);
  for (auto& [context, served] : here->contexts) {
    if (llama_get_memory(context) == memory) tell(*served);
  }
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

/// Calls work(lossless_steps&), if a context has them; what it calls of the engine is not served.
template <class Work>
void with_drafts(served_context* served, Work work) {
  if (served == nullptr || served->lossless() == nullptr) return;
  nested const guard;
  or_say([&] { work(*served->lossless()); });
}
template <class Work>
void with_drafts(llama_context const* context, Work work) {
  with_drafts(serves() ? context_of(context) : nullptr, work);
}

/// Where a program does anything to a context but decode: it knows of no drafts.
inline void settle(llama_context const* context) {
  with_drafts(context, [](lossless_steps& steps) { steps.settle(); });
}
inline void settle(llama_memory_t memory) {
  if (!serves()) return;
  tell_context_of(memory, [](served_context& served) { with_drafts(&served, [](lossless_steps& steps) { steps.settle(); }); });
}

}  // namespace kvpolicy::preload
