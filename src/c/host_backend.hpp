// Sequences in host memory: the compiled executor, on the calling thread alone.
#pragma once

#include "kvpolicy/exec/simd.hpp"
#include "kvpolicy/interop/policy_runner.hpp"
#include "policy_text.hpp"
#include "tensor.hpp"

namespace kvpolicy::c {

struct host_backend {
  using executor = simd_exec;

  explicit host_backend(cache_shape const& shape) : exec(shape) {}

  /// In a file of its own: it instantiates every policy.
  static policy_runner runner_of(any_policy const& policy);

  void enter() const noexcept {}
  static tensor const& on_host(tensor const& given, std::size_t) noexcept { return given; }

  place rows{};
  place vectors{};
  executor exec;
};

}  // namespace kvpolicy::c
