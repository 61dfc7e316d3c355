// Sequences in host memory: the compiled executor, on the calling thread alone.
#pragma once

#include "published.hpp"
#include "tensor.hpp"

namespace kvpolicy::c {

struct host_backend {
  using executor = simd_exec;

  explicit host_backend(cache_shape const& shape) : exec(shape) {}

  void enter() const noexcept {}
  static tensor const& on_host(tensor const& given, std::size_t, std::size_t) noexcept { return given; }

  place rows{};
  place vectors{};
  executor exec;
};

}  // namespace kvpolicy::c
