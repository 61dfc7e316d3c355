#include "log.hpp"

#include <kvpolicy/error.hpp>

#include <array>
#include <cerrno>
#include <cstring>

namespace kvpolicy::preload {
namespace {

/// What a program on libllama sets, and the options by which a server's user sets it.
constexpr std::array<std::array<std::string_view, 2>, 8> options_of{{
    {"set kv_unified", "start the program with --kv-unified"},
    {"set type_k and type_v to", "set --cache-type-k and --cache-type-v to"},
    {"set flash_attn_type to LLAMA_FLASH_ATTN_TYPE_ENABLED", "start the program with --flash-attn on"},
    {"with offload_kqv = false too", "with --no-kv-offload too"},
    {"set n_gpu_layers = 0, or compact the cache (kvpolicy::llama::compactor)",
     "start the program with --n-gpu-layers 0, or add compact"},
    {", or after llama_set_causal_attn(context, false)", ", or an embedding model's"},
    {" (llama_memory_seq_rm from the middle, or llama_memory_seq_div), or the batch has several sequences in one unified cache "
     "and set_batch() was not called",
     ", because the program removed tokens from the middle (--cache-reuse does, and --context-shift)"},
    {"; after the engine's state was restored, call load() with what save() gave", "; send the whole prompt again"},
}};

}  // namespace

std::string in_options(std::string_view line) {
  std::string made(line);
  for (auto const& [of_library, of_program] : options_of) {
    if (std::size_t const at = made.find(of_library); at != std::string::npos) made.replace(at, of_library.size(), of_program);
  }
  return made;
}

log::log(std::string const& path) : to_(stderr) {
  if (path.empty()) return;
  if (path == "none") {
    to_ = nullptr;
    return;
  }
  to_ = std::fopen(path.c_str(), "ae");
  if (to_ == nullptr) {
    throw invalid_value("KVPOLICY_LOG: '" + path + "' can't be written: " + std::strerror(errno) +
                        "; name a file, or none for no lines");
  }
}

void log::say(std::string_view said) {
  if (to_ == nullptr) return;
  std::string const line = in_options(said);
  std::lock_guard const lock(saying_);
  std::fprintf(to_, "kvpolicy: %.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(to_);
}

void log::say_once(std::string const& line) {
  {
    std::lock_guard const lock(saying_);
    if (!said_.insert(line).second) return;
  }
  say(line);
}

}  // namespace kvpolicy::preload
