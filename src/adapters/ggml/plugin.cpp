// libkvpolicy-ggml.so: put before a program by LD_PRELOAD, or loaded by llama.cpp as a ggml backend that GGML_BACKEND_PATH
// names. It has no device of its own.
#include <dlfcn.h>
#include <ggml-backend-impl.h>
#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>

#include "hook.hpp"
#include "kvpolicy/error.hpp"
#include "preload/log.hpp"

namespace {

void put_before_devices_once() {
  static std::once_flag done;
  std::call_once(done, [] {
    try {
      char const* const policy = std::getenv("KVPOLICY");
      if (policy == nullptr || *policy == '\0')
        throw kvpolicy::invalid_value("KVPOLICY names no policy, quest:tokens=1024 for instance");
      // Steps are captured whole, here; ggml's own capture of their parts would stand in the way.
      setenv("GGML_CUDA_DISABLE_GRAPHS", "1", 1);
      char const* const file = std::getenv("KVPOLICY_LOG");
      auto* const to = new kvpolicy::preload::log(file != nullptr ? file : "");  // for as long as there are backends
      kvpolicy::ggml::put_before_devices(policy, [to](std::string const& line) { to->say(line); });
    } catch (std::exception const& why) {
      std::fprintf(stderr, "kvpolicy: %s\n", why.what());
      std::exit(2);  // a server without its policy would answer otherwise than its user asked
    }
  });
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  static ggml_backend_reg none{};
  none.api_version = GGML_BACKEND_API_VERSION;
  none.iface.get_name = [](ggml_backend_reg_t) { return "kvpolicy"; };
  none.iface.get_device_count = [](ggml_backend_reg_t) { return std::size_t{0}; };
  none.iface.get_device = [](ggml_backend_reg_t, std::size_t) -> ggml_backend_dev_t { return nullptr; };
  none.iface.get_proc_address = [](ggml_backend_reg_t, char const*) -> void* { return nullptr; };
  put_before_devices_once();
  return &none;
}

/// libllama's, where this library was preloaded: backends are there, and no context is yet. Programs whose backends are
/// compiled in may load no others.
__attribute__((visibility("default"))) llama_context* llama_init_from_model(llama_model* model, llama_context_params params) {
  put_before_devices_once();
  kvpolicy::ggml::expect_sequences(params.n_seq_max);
  static auto const own = reinterpret_cast<decltype(&llama_init_from_model)>(dlsym(RTLD_NEXT, "llama_init_from_model"));
  return own(model, params);
}
}
