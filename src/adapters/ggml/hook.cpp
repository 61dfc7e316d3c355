#include "hook.hpp"

#include <ggml-backend-impl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "context.hpp"

namespace kvpolicy::ggml {
namespace {

struct taken {
  std::unique_ptr<device_context> context;  ///< none on a CPU
  device_context::engine engine;
  void (*free)(ggml_backend_t);
  std::string said{};  ///< the last refusal
};

struct hooks {
  std::mutex changing;
  std::string policy;
  std::int64_t sequences = 4;  // as llama-server makes them, if nobody says otherwise
  std::function<void(std::string const&)> say;
  std::map<ggml_backend_dev_t, ggml_backend_t (*)(ggml_backend_dev_t, char const*)> devices;
  std::map<ggml_backend_t, taken> backends;
};
hooks& table = *new hooks;  // backends may end after static objects, and CUDA before them

ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
  taken* mine = nullptr;
  {
    std::lock_guard const lock(table.changing);
    mine = &table.backends.at(backend);
  }
  try {
    if (mine->context == nullptr) refuse_attention(graph);
    ggml_status const status = mine->context != nullptr ? mine->context->compute(graph) : mine->engine(backend, graph);
    mine->said.clear();
    return status;
  } catch (std::exception const& why) {
    if (mine->said != why.what()) {
      mine->said = why.what();
      std::lock_guard const lock(table.changing);
      table.say("refused: " + mine->said);
    }
    return GGML_STATUS_FAILED;
  }
}

void free_backend(ggml_backend_t backend) {
  taken mine;
  {
    std::lock_guard const lock(table.changing);
    mine = std::move(table.backends.extract(backend).mapped());
  }
  mine.context.reset();
  mine.free(backend);
}

ggml_backend_t make_backend(ggml_backend_dev_t device, char const* parameters) {
  std::lock_guard const lock(table.changing);
  ggml_backend_t const made = table.devices.at(device)(device, parameters);
  if (made == nullptr || table.policy.empty()) return made;
  device_context::engine const engine = made->iface.graph_compute;
  bool const on_cpu = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
  auto context = on_cpu ? nullptr : std::make_unique<device_context>(table.policy, table.sequences, made, engine, table.say);
  table.backends[made] = {std::move(context), engine, made->iface.free};
  made->iface.graph_compute = compute;
  made->iface.free = free_backend;
  return made;
}

}  // namespace

void put_before_devices(std::string const& policy, std::function<void(std::string const&)> say) {
  if (std::string_view(ggml_version()) != KVPOLICY_GGML_VERSION)
    throw unsupported(
        std::string("this libkvpolicy-ggml.so was built for ggml " KVPOLICY_GGML_VERSION ", and the program has ") +
        ggml_version() + "; build it against the program's llama.cpp");
  if (!policy.empty()) static_cast<void>(device_policy(policy));
  std::lock_guard const lock(table.changing);
  table.policy = policy;
  table.say = std::move(say);
  bool found = false;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t const device = ggml_backend_dev_get(i);
    ggml_backend_reg_t const of = ggml_backend_dev_backend_reg(device);
    bool const cuda = std::string_view(ggml_backend_reg_name(of)) == "CUDA";
    if ((!cuda && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU) || of->api_version != GGML_BACKEND_API_VERSION)
      continue;
    found = found || cuda;
    if (table.devices.contains(device)) continue;
    table.devices[device] = device->iface.init_backend;
    device->iface.init_backend = make_backend;
  }
  if (!found)
    throw unsupported(
        "no CUDA device: this llama.cpp was built without CUDA, or libggml-cuda.so does not lie beside the program");
}

void expect_sequences(std::int64_t sequences) {
  std::lock_guard const lock(table.changing);
  table.sequences = sequences;
}

}  // namespace kvpolicy::ggml
