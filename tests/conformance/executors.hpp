// Every executor as a type that suites are instantiated for.
#pragma once

#include <thread>
#include <utility>

#include "kvpolicy/exec/host.hpp"

#if defined(KVPOLICY_TEST_SIMD)
#include "kvpolicy/exec/simd.hpp"
#endif
#if defined(KVPOLICY_TEST_GPU) || defined(KVPOLICY_TEST_GPU_EMULATOR)
#include "cuda/test_device.hpp"
#endif

#if defined(KVPOLICY_TEST_SIMD)
#define KVPOLICY_TEST_CPU_EXECUTORS kvpolicy_test::on_host, kvpolicy_test::on_simd, kvpolicy_test::on_team
#else
#define KVPOLICY_TEST_CPU_EXECUTORS kvpolicy_test::on_host
#endif
#if defined(KVPOLICY_TEST_GPU)
#define KVPOLICY_TEST_EXECUTORS kvpolicy_test::on_gpu
#elif defined(KVPOLICY_TEST_GPU_EMULATOR)
#define KVPOLICY_TEST_EXECUTORS KVPOLICY_TEST_CPU_EXECUTORS, kvpolicy_test::on_gpu_emulator
#else
#define KVPOLICY_TEST_EXECUTORS KVPOLICY_TEST_CPU_EXECUTORS
#endif

namespace kvpolicy_test {

using namespace kvpolicy;

// Declared in every build, so that tests can compare with them; each is defined where its executor is built.
struct on_simd;
struct on_team;
struct on_gpu_emulator;

struct on_host {
  explicit on_host(cache_shape const& shape) : exec(shape) {}
  template <class Work>
  void run(Work work) {
    work(exec);
  }
  host_exec exec;
};

#if defined(KVPOLICY_TEST_SIMD)
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
