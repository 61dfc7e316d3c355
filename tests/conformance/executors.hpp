// Every executor as a type that suites are instantiated for.
#pragma once

#include <thread>
#include <utility>

#include "cuda/test_device.hpp"
#include "kvpolicy/exec/host.hpp"

#if defined(KVPOLICY_TEST_GPU)
#define KVPOLICY_TEST_EXECUTORS kvpolicy_test::on_gpu
#else
#include "kvpolicy/exec/simd.hpp"

#if defined(KVPOLICY_TEST_CUDA_MODEL)
#define KVPOLICY_TEST_EXECUTORS \
  kvpolicy_test::on_host, kvpolicy_test::on_simd, kvpolicy_test::on_team, kvpolicy_test::on_cuda_model
#else
#define KVPOLICY_TEST_EXECUTORS kvpolicy_test::on_host, kvpolicy_test::on_simd, kvpolicy_test::on_team
#endif
#endif

namespace kvpolicy_test {

using namespace kvpolicy;

struct on_host {
  explicit on_host(cache_shape const&) {}
  template <class Work>
  void run(Work work) {
    work(exec);
  }
  host_exec exec;
};

#if !defined(KVPOLICY_TEST_GPU)
struct on_simd {
  explicit on_simd(cache_shape const& shape) : exec(shape) {}
  template <class Work>
  void run(Work work) {
    work(exec);
  }
  simd_exec exec;
};

/// Two real threads; the follower is joined before an exception of the work goes on.
struct on_team {
  explicit on_team(cache_shape const& shape) : exec(shape, &threads) {}
  template <class Work>
  void run(Work work) {
    struct joined {
      std::thread thread;
      ~joined() { thread.join(); }
    } const follower{std::thread([this] { threads.follow(); })};
    threads.lead([&] { work(exec); });
  }
  team threads{2};
  simd_exec exec;
};
#endif

}  // namespace kvpolicy_test
