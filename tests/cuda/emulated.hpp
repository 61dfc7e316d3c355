// The kernels' bodies behind the four verbs on a CPU: rows, tables and scratch are host memory, launches are checked.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cuda/emulator/emulated_kernels.hpp"
#include "kvpolicy/gpu/exec/basic_exec.hpp"

namespace kvpolicy_test {

using namespace kvpolicy;

/// Models gpu::detail::staging_device on the GPU emulator.
class emulated_device {
 public:
  using memory = host_memory;

  explicit emulated_device(std::uint64_t seed = 1) : device_(seed) {}

  template <class Body>
  void launch(gpu::grid_size grid, typename Body::arguments const& a) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    if (capturing_ != nullptr) capturing_->launches.push_back([this, grid, a] { launch_emulated<Body>(device_, grid, a); });
    else launch_emulated<Body>(device_, grid, a);
  }
  template <class Body>
  std::int64_t blocks_wanted() const {
    return 24;
  }

  /// Each piece is an allocation of its own, of bytes that are NaN in every type: ends are where they are.
  template <class T>
  gpu::buffer<T> scratch(std::int64_t count) {
    pieces_.push_back(std::make_unique<std::vector<gpu::pack>>(static_cast<std::size_t>(count) * sizeof(T) / 16 + 1));
    std::memset(pieces_.back()->data(), 0xff, pieces_.back()->size() * 16);
    return {reinterpret_cast<T*>(pieces_.back()->data()), count};
  }
  gpu::buffer<std::int32_t> counters() { return {counters_.data(), std::ssize(counters_)}; }
  std::int64_t scratch_used() const { return std::ssize(pieces_); }
  void release_scratch(std::int64_t used) {
    for (auto piece = pieces_.begin() + used; capturing_ != nullptr && piece != pieces_.end(); ++piece)
      capturing_->scratch.push_back(std::move(*piece));
    pieces_.resize(static_cast<std::size_t>(used));
  }

  template <class T>
  struct owned {
    std::vector<gpu::pack> storage;
    std::int64_t count = 0;
    gpu::buffer<T> get() const { return {reinterpret_cast<T*>(const_cast<gpu::pack*>(storage.data())), count}; }
  };
  template <class T>
  owned<T> allocate(std::int64_t count) {
    owned<T> made{std::vector<gpu::pack>(static_cast<std::size_t>(count) * sizeof(T) / 16 + 1), count};
    std::memset(made.storage.data(), 0xff, made.storage.size() * 16);
    return made;
  }
  template <class T>
  void upload(gpu::buffer<T> to, T const* from, std::int64_t count) {
    if (capturing_ != nullptr) throw std::logic_error("an upload in a captured step: replays would not repeat it");
    if (count > to.size) throw std::out_of_range("an upload past the end");
    std::copy_n(from, count, to.data);
  }

  template <class T>
  void download(T* to, gpu::buffer<T const> from) const {
    std::copy_n(from.data, from.size, to);
  }

  emulated_device& on() noexcept { return *this; }
  /// Launches are done, or captured, in the order in which they come.
  template <class Work>
  void beside(int, Work work) {
    work();
  }
  void join(int) {}
  void send() const {}
  void wait() const {}
  template <class T>
  std::vector<std::remove_const_t<T>> read(gpu::buffer<T> from, std::int64_t first, std::int64_t count) const {
    return {from.data + first, from.data + first + count};
  }

  struct graph {
    std::vector<std::function<void()>> launches;
    std::vector<std::unique_ptr<std::vector<gpu::pack>>> scratch;
  };
  /// Keeps the launches of `enqueue`, with their arguments as they are now, for replay().
  template <class Enqueue>
  graph capture(Enqueue enqueue) {
    struct ends {
      graph*& capturing;
      ~ends() { capturing = nullptr; }
    };
    graph made;
    capturing_ = &made;
    ends const capture{capturing_};
    enqueue();
    return made;
  }
  void replay(graph const& captured) {
    for (auto const& piece : captured.scratch) std::memset(piece->data(), 0xff, piece->size() * 16);
    for (auto const& launch : captured.launches) launch();
  }

  void begin() {}
  template <class T>
  gpu::buffer<T const> in(T const* from, std::int64_t count) {
    return {from, count};
  }
  template <class T>
  gpu::buffer<T> out(T* to, std::int64_t rows, std::int64_t columns, std::int64_t stride, bool) {
    return {to, rows == 0 ? 0 : (rows - 1) * stride + columns};
  }
  void finish() {}

 private:
  gpu_emulator device_;
  std::vector<std::unique_ptr<std::vector<gpu::pack>>> pieces_;
  graph* capturing_ = nullptr;
  std::vector<std::int32_t> counters_ = std::vector<std::int32_t>(64);
};

using emulated_exec = gpu::basic_exec<emulated_device>;

static_assert(executor<emulated_exec>);

/// For suites that are instantiated for every executor.
struct on_gpu_emulator {
  explicit on_gpu_emulator(cache_shape const&) {}
  template <class Work>
  void run(Work work) {
    work(exec);
  }
  emulated_exec exec;
};

}  // namespace kvpolicy_test
