// Sequences on a CUDA device: the four verbs' executor on the caller's stream. Each primitive waits for its result.
#pragma once

#include <vector>

#include "kvpolicy/cuda/exec.hpp"
#include "kvpolicy/interop/policy_runner.hpp"
#include "policy_text.hpp"
#include "tensor.hpp"

namespace kvpolicy::c {

using cuda_policy_runner = basic_policy_runner<cuda_exec, basic_layer_table_view<device_memory>>;

struct cuda_backend {
  using executor = cuda_exec;

  /// Throws invalid_value where `device` is not the calling thread's, device_error where there is none.
  cuda_backend(cache_shape const&, std::int32_t device, cuda::stream stream);

  /// In a file of its own: it instantiates every policy.
  static cuda_policy_runner runner_of(any_policy const& policy);

  void enter() const { check_current(rows.cuda_id); }
  /// Some scorers read queries on the host, so all are copied there; waits for the stream.
  tensor on_host(tensor const& given, std::size_t axes);

  place rows;
  place vectors;
  executor exec;

 private:
  static std::int32_t check_current(std::int32_t device);

  std::vector<float> copied_;
};

}  // namespace kvpolicy::c
