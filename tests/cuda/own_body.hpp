// What a user writes to have a kernel of his own: a body over the block concept.
#pragma once

#include "kvpolicy/gpu/base/block.hpp"

namespace kvpolicy_test {

/// sums(block) = the sum of the block's values.
struct own_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "own_body";
  struct arguments {
    kvpolicy::gpu::buffer<float const> values;
    std::int64_t count = 0;
    kvpolicy::gpu::buffer<float> sums;
  };
  template <class B>
  struct shared {
    typename B::template reduce_storage<float> sums;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const i = static_cast<std::int64_t>(block.x()) * B::threads + block.thread();
    float value = 0;
    if (i < a.count) value = block.global(a.values)[i];
    float const sum = block.reduce(s.sums, value, [](float x, float y) { return x + y; });
    if (block.thread() == 0) block.global(a.sums)[block.x()] = sum;
  }
};

}  // namespace kvpolicy_test
