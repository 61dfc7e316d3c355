#include "process.hpp"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <thread>

namespace kvpolicy::preload {

using namespace std::chrono_literals;

process* here = nullptr;
constinit thread_local int inside = 0;

served_context* context_of(llama_context const* context) {
  std::lock_guard const lock(here->working);
  auto const found = here->contexts.find(context);
  return found == here->contexts.end() ? nullptr : found->second.get();
}

served_context* owner_of(llama_context const* context) {
  served_context* const served = serves() ? context_of(context) : nullptr;
  return served != nullptr && served->manages_cache() ? served : nullptr;
}

namespace {

/// The context with this memory; null where it is the library that asks.
served_context* context_with(llama_memory_t memory) {
  if (!serves()) return nullptr;
  std::lock_guard const lock(here->working);
  for (auto& [context, served] : here->contexts) {
    if (llama_get_memory(context) == memory) return served.get();
  }
  return nullptr;
}

}  // namespace

served_context* owner_of(llama_memory_t memory) {
  served_context* const served = context_with(memory);
  return served != nullptr && served->manages_cache() ? served : nullptr;
}

compacted_sequences* compacting(llama_memory_t memory) {
  served_context* const served = context_with(memory);
  return served != nullptr ? served->compacts() : nullptr;
}

namespace {

/// The engine does not say when a request has ended: it has, at the latest, when nothing was decoded for a second.
void watch() {
  for (;;) {
    std::this_thread::sleep_for(250ms);
    std::lock_guard const lock(here->working);
    for (auto& [context, served] : here->contexts) served->say_ended(1s);
  }
}

}  // namespace

void keep_watch() {
  static std::once_flag watching;
  std::call_once(watching, [] { std::thread(watch).detach(); });
}

namespace {

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

}  // namespace
}  // namespace kvpolicy::preload
