// The kernels' bodies behind the four verbs on a CPU: rows, tables and scratch are host memory, launches are checked.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda/model/emulated_kernels.hpp"
#include "kvpolicy/cuda/basic_exec.hpp"

namespace kvpolicy_test {

using namespace kvpolicy;

/// Models cuda::staging_device on the checked model of a GPU.
class emulated_device {
 public:
  using memory = host_memory;

  explicit emulated_device(std::uint64_t seed = 1) : device_(seed) {}

  template <class Body>
  void launch(cuda::grid_size grid, typename Body::arguments const& a) {
    if (grid.x > 0 && grid.y > 0 && grid.z > 0) launch_emulated<Body>(device_, grid, a);
  }
  template <class Body>
  std::int64_t blocks_wanted() const {
    return 24;
  }

  /// Each piece is an allocation of its own, of bytes that are NaN in every type: ends are where they are.
  template <class T>
  cuda::buffer<T> scratch(std::int64_t count) {
    pieces_.push_back(std::make_unique<std::vector<cuda::pack>>(static_cast<std::size_t>(count) * sizeof(T) / 16 + 1));
    std::memset(pieces_.back()->data(), 0xff, pieces_.back()->size() * 16);
    return {reinterpret_cast<T*>(pieces_.back()->data()), count};
  }
  cuda::buffer<std::int32_t> counters() { return {counters_.data(), std::ssize(counters_)}; }
  std::int64_t scratch_used() const { return std::ssize(pieces_); }
  void release_scratch(std::int64_t used) { pieces_.resize(static_cast<std::size_t>(used)); }

  template <class T>
  struct owned {
    std::vector<cuda::pack> storage;
    std::int64_t count = 0;
    cuda::buffer<T> get() const { return {reinterpret_cast<T*>(const_cast<cuda::pack*>(storage.data())), count}; }
  };
  template <class T>
  owned<T> allocate(std::int64_t count) {
    owned<T> made{std::vector<cuda::pack>(static_cast<std::size_t>(count) * sizeof(T) / 16 + 1), count};
    std::memset(made.storage.data(), 0xff, made.storage.size() * 16);
    return made;
  }
  template <class T>
  void upload(cuda::buffer<T> to, T const* from, std::int64_t count) {
    if (count > to.size) throw std::out_of_range("an upload past the end");
    std::copy_n(from, count, to.data);
  }

  int on() const { return 0; }
  void wait() const {}

  void begin() {}
  template <class T>
  cuda::buffer<T const> in(T const* from, std::int64_t count) {
    return {from, count};
  }
  template <class T>
  cuda::buffer<T> out(T* to, std::int64_t rows, std::int64_t columns, std::int64_t stride, bool) {
    return {to, rows == 0 ? 0 : (rows - 1) * stride + columns};
  }
  void finish() {}

 private:
  checked_device device_;
  std::vector<std::unique_ptr<std::vector<cuda::pack>>> pieces_;
  std::vector<std::int32_t> counters_ = std::vector<std::int32_t>(64);
};

using emulated_exec = cuda::basic_exec<emulated_device>;

static_assert(executor<emulated_exec>);

/// For suites that are instantiated for every executor.
struct on_cuda_model {
  explicit on_cuda_model(cache_shape const&) {}
  template <class Work>
  void run(Work work) {
    work(exec);
  }
  emulated_exec exec;
};

}  // namespace kvpolicy_test
