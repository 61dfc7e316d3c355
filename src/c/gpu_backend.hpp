// Sequences on a CUDA device: the four verbs' executor on the caller's stream. Each primitive waits for its result.
#pragma once

#include <vector>

#include "kvpolicy/gpu/gpu_exec.hpp"
#include "published.hpp"
#include "tensor.hpp"

namespace kvpolicy::c {

using cuda_policy_list = policy_list<basic_layer_table_view<device_memory>, gpu_exec>;

/// The published policies, on a device; plugins' know the host alone. In a file of its own: it instantiates every policy.
cuda_policy_list const& gpu_policies();

struct gpu_backend {
  using executor = gpu_exec;

  /// Throws invalid_value where `device` is not the calling thread's, device_error where there is none.
  gpu_backend(cache_shape const&, std::int32_t device, gpu::stream stream, std::int64_t workspace = 0);

  void enter() const { check_current(rows.cuda_id); }
  /// Some scorers read queries on the host, so all are copied there; waits for the stream. `size`: bytes of an element.
  tensor on_host(tensor const& given, std::size_t axes, std::size_t size);

  place rows;
  place vectors;
  executor exec;

 private:
  static std::int32_t check_current(std::int32_t device);

  std::vector<std::byte> copied_;
};

}  // namespace kvpolicy::c
