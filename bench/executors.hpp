// What a benchmark runs on: the oracle, and the SIMD executor alone and on a team of two threads.
#pragma once

#include <benchmark/benchmark.h>

#include <atomic>
#include <string>
#include <thread>

#include <kvpolicy/exec/host.hpp>
#include <kvpolicy/exec/simd.hpp>

#include "smollm2.hpp"

namespace kvpolicy::bench {

/// A team whose followers are there as long as it is.
class crew {
 public:
  explicit crew(int threads) : team_(threads) {
    if (threads == 2) {
      follower_ = std::thread([this] {
        while (!done_.load(std::memory_order_relaxed)) team_.follow();
      });
    }
  }
  ~crew() {
    team_.lead([this] { done_.store(true, std::memory_order_relaxed); });
    if (follower_.joinable()) follower_.join();
  }
  crew(crew const&) = delete;
  crew& operator=(crew const&) = delete;

  team& threads() noexcept { return team_; }

 private:
  team team_;
  std::atomic<bool> done_ = false;
  std::thread follower_;
};

struct on_host {
  host_exec exec;

  template <class Call>
  void operator()(Call call) {
    call(exec);
  }
};

/// One engine call for each call: threads meet, work, part.
struct on_simd {
  crew members;
  simd_exec exec;

  explicit on_simd(int threads) : members(threads), exec(smollm2::shape, &members.threads()) {}

  template <class Call>
  void operator()(Call call) {
    members.threads().lead([&] { call(exec); });
  }
};

/// Times call(exec, turn) for turn = 0, 1, ..., each of which must read `bytes`, on every executor.
template <class Call>
bool register_on_each(std::string const& name, std::int64_t bytes, Call call) {
  auto const time = [=](benchmark::State& state, auto& run) {
    std::size_t turn = 0;
    for (auto _ : state) {
      run([&](auto& exec) { call(exec, turn); });
      benchmark::ClobberMemory();
      ++turn;
    }
    state.SetBytesProcessed(state.iterations() * bytes);
  };
  benchmark::RegisterBenchmark((name + "/host").c_str(), [=](benchmark::State& state) {
    on_host run;
    time(state, run);
  })->UseRealTime();
  for (int const threads : {1, 2}) {
    benchmark::RegisterBenchmark((name + "/simd x" + std::to_string(threads)).c_str(), [=](benchmark::State& state) {
      on_simd run(threads);
      time(state, run);
    })->UseRealTime();
  }
  return true;
}

}  // namespace kvpolicy::bench
