// A rank on each GPU, on threads of this process: what they choose, and that a rank that stays away ends the others. 77: no
// GPU.
#include "kvpolicy/interop/nccl.hpp"

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "conformance/communicator.hpp"
#include "kvpolicy/exec/ranked.hpp"
#include "kvpolicy/gpu/gpu_exec.hpp"
#include "split_request.hpp"

namespace kvpolicy_test::ranks {
namespace {

/// Calls work(communicator) on a thread for each of the first GPUs; what each threw, or "".
template <class Work>
std::vector<std::string> on_gpus(int size, std::chrono::milliseconds deadline, Work work) {
  ncclUniqueId id{};
  if (ncclGetUniqueId(&id) != ncclSuccess) throw std::runtime_error("NCCL gives no id");
  std::vector<std::string> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        if (cudaSetDevice(rank) != cudaSuccess) throw std::runtime_error("no such device");
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        ncclComm_t made = nullptr;
        ncclResult_t state = ncclCommInitRankConfig(&made, size, id, rank, &config);
        while (state == ncclInProgress) {
          std::this_thread::yield();
          if (ncclCommGetAsyncError(made, &state) != ncclSuccess) break;
        }
        if (state != ncclSuccess) throw std::runtime_error(std::string("NCCL: ") + ncclGetErrorString(state));
        nccl_communicator all(made, deadline);
        work(all);
      } catch (std::exception const& e) {
        thrown[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

/// Device rows on device executors: compiled here, linked where kvpolicy::gpu is.
[[maybe_unused]] inline void on_device_rows(nccl_communicator& all, gpu::stream stream,
                                            strided_view<device_memory> const& view) {
  ranked<gpu_exec, nccl_communicator> exec(all, stream);
  presets::chess const policy{};
  auto state = start(policy, shape_of(view));
  float const frequency = 1;
  state.prefill(view, {0}, {.rope = {&frequency, 1}}, exec);
  state.choose(view, {0}, {}, exec);
}

void require(bool holds, std::string const& what) {
  if (!holds) throw std::logic_error(what);
}

int run_test() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::puts("no GPU here");
    return 77;
  }
  int const size = gpus >= 8 ? 8 : gpus >= 6 ? 6 : std::min(gpus, 4);
  int failed = 0;
  auto const report = [&](std::vector<std::string> const& thrown) {
    for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
      if (thrown[rank].empty()) continue;
      std::printf("rank %zu: %s\n", rank, thrown[rank].c_str());
      ++failed;
    }
  };
  report(on_gpus(size, std::chrono::minutes(2), [](auto& all) {
    check_communicator(all);
    random_source random(20262);
    for (int i = 0; i < 100; ++i) {
      request const r = draw_request(i % 2 == 0 ? keys_are::whole_numbers : keys_are::gaussian, all.size(), random);
      host_exec whole;
      ranked<host_exec, nccl_communicator> exec(all);
      choices const got = run(r, static_cast<std::size_t>(all.rank()), exec);
      require(got == run(r, {}, whole), "case " + std::to_string(i) + ": other pages than one rank's");
    }
  }));
  std::vector<std::string> const lost = on_gpus(size, std::chrono::milliseconds(2000), [&](auto& all) {
    std::vector<float> values(100, 1.0f);
    all.sum(values);
    if (all.rank() == size - 1) {  // its communicator must outlive the others' wait: to end it is theirs to notice, too
      std::this_thread::sleep_for(std::chrono::seconds(size > 1 ? 6 : 0));
      return;
    }
    all.sum(values);
  });
  for (std::size_t rank = 0; rank + 1 < lost.size(); ++rank) {
    if (lost[rank].starts_with("rank " + std::to_string(rank) + " of " + std::to_string(size) + " ")) continue;
    std::printf("rank %zu lost another and said '%s'\n", rank, lost[rank].c_str());
    ++failed;
  }
  if (!lost.back().empty()) ++failed;
  std::printf("%d GPUs: %d failures\n", size, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvpolicy_test::ranks

int main() {
  try {
    return kvpolicy_test::ranks::run_test();
  } catch (std::exception const& e) {
    std::fprintf(stderr, "nccl_test: %s\n", e.what());
    return 1;
  }
}
