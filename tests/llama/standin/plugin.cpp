// The stand-in and what is put before it, as one library to preload: for llama-server, unmodified.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "device.hpp"
#include "hook.hpp"

/// libllama's, which programs call before they load a model.
extern "C" __attribute__((visibility("default"))) void llama_backend_init() {
  try {
    kvpolicy::llama::testing::register_standin();
    char const* const policy = std::getenv("KVPOLICY");
    kvpolicy::ggml::put_before_devices(policy != nullptr ? policy : "",
                                       [](std::string const& line) { std::fprintf(stderr, "kvpolicy: %s\n", line.c_str()); });
  } catch (std::exception const& why) {
    std::fprintf(stderr, "kvpolicy: %s\n", why.what());
    std::exit(2);
  }
  reinterpret_cast<void (*)()>(dlsym(RTLD_NEXT, "llama_backend_init"))();
}
