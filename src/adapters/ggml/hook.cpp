#include "hook.hpp"

#include <ggml-backend-impl.h>

#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "sequence.hpp"

namespace kvpolicy::ggml {
namespace {

struct taken {
  std::unique_ptr<device_sequence> sequence;
  void (*free)(ggml_backend_t);
  std::string said{};  ///< the last refusal
};

struct {
  std::mutex changing;
  std::string policy;
  std::function<void(std::string const&)> say;
  std::map<ggml_backend_dev_t, ggml_backend_t (*)(ggml_backend_dev_t, char const*)> devices;
  std::map<ggml_backend_t, taken> backends;
} table;

ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
  taken* mine = nullptr;
  {
    std::lock_guard const lock(table.changing);
    mine = &table.backends.at(backend);
  }
  try {
    return mine->sequence->compute(graph);
  } catch (std::exception const& why) {
    if (mine->said != why.what()) table.say("refused: " + (mine->said = why.what()));
    return GGML_STATUS_FAILED;
  }
}

void free_backend(ggml_backend_t backend) {
  taken mine;
  {
    std::lock_guard const lock(table.changing);
    mine = std::move(table.backends.extract(backend).mapped());
  }
  mine.sequence.reset();
  mine.free(backend);
}

ggml_backend_t make_backend(ggml_backend_dev_t device, char const* parameters) {
  std::lock_guard const lock(table.changing);
  ggml_backend_t const made = table.devices.at(device)(device, parameters);
  if (made == nullptr || table.policy.empty()) return made;
  table.backends[made] = {std::make_unique<device_sequence>(table.policy, made, made->iface.graph_compute, table.say),
                          made->iface.free};
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
  if (!policy.empty()) check_policy(policy);
  std::lock_guard const lock(table.changing);
  table.policy = policy;
  table.say = std::move(say);
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t const device = ggml_backend_dev_get(i);
    ggml_backend_reg_t const of = ggml_backend_dev_backend_reg(device);
    if (std::string_view(ggml_backend_reg_name(of)) != "CUDA" || of->api_version != GGML_BACKEND_API_VERSION) continue;
    if (table.devices.contains(device)) continue;
    table.devices[device] = device->iface.init_backend;
    device->iface.init_backend = make_backend;
  }
  if (table.devices.empty())
    throw unsupported("no CUDA device that ggml knows; libggml-cuda.so lies beside llama.cpp's programs");
}

}  // namespace kvpolicy::ggml
