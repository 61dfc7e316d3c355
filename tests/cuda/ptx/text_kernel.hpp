// A kernel that a test writes as text.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "cuda/ptx/block.hpp"
#include "cuda/ptx/memory.hpp"

namespace ptx {

/// Memory that kernels and the test use, given back at the end.
template <class T>
class test_array {
 public:
  explicit test_array(std::size_t size)
      : data_(static_cast<T*>(memory::device().allocate(size * sizeof(T), owner::managed))), size_(size) {}
  ~test_array() { memory::device().release(data_); }
  test_array(test_array const&) = delete;
  test_array& operator=(test_array const&) = delete;

  T& operator[](std::size_t i) { return data_[i]; }
  std::size_t size() const { return size_; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(data_); }

 private:
  T* data_;
  std::size_t size_;
};

/// Runs `body` in one block. %rd0 is `argument`, %r0 the thread, %rd1 4 times the thread; there are registers %p, %h (16 bits),
/// %r and %rd, and 256 bytes of shared memory, `shared`.
inline counts run_text(std::string const& body, std::uint64_t argument, std::uint32_t threads = 32,
                       std::optional<std::uint64_t> seed = {}) {
  kernel const code = decode(
      ".version 9.0\n.target sm_90\n.visible .entry test(.param .u64 .ptr .align 1 test_param_0)\n{\n.reg .pred %p<9>;\n.reg "
      ".b16 %h<9>;\n"
      ".reg .b32 %r<40>;\n.reg .b64 %rd<9>;\n.shared .align 16 .b8 shared[256];\nld.param.u64 %rd0, [test_param_0];\n"
      "mov.u32 %r0, %tid.x;\nmul.wide.u32 %rd1, %r0, 4;\n" +
          body + "\nret;\n}\n",
      "test");
  launch what{&code, {1, 1, 1}, {threads, 1, 1}, std::vector<std::byte>(sizeof argument)};
  std::memcpy(what.parameters.data(), &argument, sizeof argument);
  counts sum;
  processor(seed, true).execute(what, sum);
  return sum;
}

}  // namespace ptx
