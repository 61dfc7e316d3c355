// The stand-in and what is put before it, as one library that GGML_BACKEND_PATH names: for llama-server, unmodified.
#include <ggml-backend-impl.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "device.hpp"
#include "hook.hpp"

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  static ggml_backend_reg none{};
  none.api_version = GGML_BACKEND_API_VERSION;
  none.iface.get_name = [](ggml_backend_reg_t) { return "STANDIN"; };
  none.iface.get_device_count = [](ggml_backend_reg_t) { return std::size_t{0}; };
  try {
    kvpolicy::llama::testing::register_standin();
    char const* const policy = std::getenv("KVPOLICY");
    kvpolicy::ggml::put_before_devices(policy != nullptr ? policy : "",
                                       [](std::string const& line) { std::fprintf(stderr, "kvpolicy: %s\n", line.c_str()); });
  } catch (std::exception const& why) {
    std::fprintf(stderr, "kvpolicy: %s\n", why.what());
    std::exit(2);
  }
  return &none;
}
