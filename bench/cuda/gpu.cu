#include "gpu.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "graph.hpp"
#include "streaming.hpp"

namespace kvpolicy::bench {

bool measured_gpu::there() noexcept {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

measured_gpu::measured_gpu(options const& wanted) : wanted_(wanted), sink_(256) {
  int device = 0;
  int processors = 0;
  int cache = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "asking for the device's size");
  check(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device), "asking for the device's cache");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  processors_ = processors;
  cache_bytes_ = std::max(cache, 32 << 20);
  evicting_ = gpu::device_array(4 * cache_bytes_);
  fill(stream_, 8 * processors_, {reinterpret_cast<std::uint32_t*>(evicting_.data()), evicting_.bytes() / 4}, seed_++, false);
  print_requirements();
  measure_ceiling();
}

measured_gpu::~measured_gpu() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void measured_gpu::print_requirements() {
  int device = 0;
  int driver = 0;
  int runtime = 0;
  cudaDeviceProp facts{};
  check(cudaGetDevice(&device), "asking for the current device");
  check(cudaGetDeviceProperties(&facts, device), "asking for the device's properties");
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  print({text("device", facts.name), number("processors", static_cast<double>(processors_)),
         number("cache_bytes", static_cast<double>(cache_bytes_)),
         number("memory_bytes", static_cast<double>(facts.totalGlobalMem)), number("driver", driver),
         number("runtime", runtime), text("shape", "Llama-3.1-8B: 32 layers, 32/8 heads x 128, bf16"),
         number("floor_gbps", llama_8b::floor_speed / 1e9),
         text("layout", wanted_.layout == page_layout::nhd ? "nhd" : "hnd")});
}

/// The fastest of a few ways to read, and to copy.
void measured_gpu::measure_ceiling() {
  std::int64_t const bytes = std::min<std::int64_t>(std::int64_t{4} << 30, free_bytes() / 4) / 64 * 64;
  gpu::device_buffer<float> const memory = floats(bytes / 4);
  auto* const from = reinterpret_cast<std::byte*>(memory.get().data);
  timing read{};
  timing copy{};
  auto const tried = [&](timing& best, auto launch) {
    timing const found = time([&](int) { launch(); }, 4);
    if (best.replays == 0 || found.us < best.us) best = found;
  };
  for (std::int64_t const blocks : {2, 4, 8, 16}) {
    for (int const loads : {4, 8}) {
      streaming const how{blocks * processors_, loads};
      tried(read, [&] { read_all(stream_, how, from, bytes, sink_.data()); });
      tried(copy, [&] { copy_all(stream_, how, from, bytes / 2, from + bytes / 2); });
    }
  }
  ceiling_ = static_cast<double>(bytes) / read.us * 1e6;
  std::string const before = only({});  // all shares hang on it
  run("ceiling read", 1, 0, [&] { return outcome{static_cast<double>(bytes), read}; });
  run("ceiling copy", 1, 0, [&] { return outcome{static_cast<double>(bytes), copy}; });
  static_cast<void>(only(before));
  met_ = 0;
}

std::int64_t measured_gpu::free_bytes() const {
  std::size_t free = 0;
  std::size_t all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for free memory");
  return static_cast<std::int64_t>(free);
}

gpu::device_buffer<float> measured_gpu::floats(std::int64_t count) {
  gpu::device_buffer<float> made(count);
  fill(stream_, 8 * processors_, {reinterpret_cast<std::uint32_t*>(made.get().data), count}, seed_++, false);
  return made;
}

gpu::device_buffer<std::uint16_t> measured_gpu::halves(std::int64_t count) {
  gpu::device_buffer<std::uint16_t> made((count + 1) / 2 * 2);
  fill(stream_, 8 * processors_, {reinterpret_cast<std::uint32_t*>(made.get().data), made.get().size / 2}, seed_++, true);
  return made;
}

gpu::device_buffer<std::int32_t> measured_gpu::numbers(std::vector<std::int32_t> const& values) {
  gpu::device_buffer<std::int32_t> made(std::ssize(values));
  check(cudaMemcpyAsync(made.get().data, values.data(), values.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice, stream_),
        "copying numbers to the device");
  check(cudaStreamSynchronize(stream_), "waiting for the device");
  return made;
}

std::vector<std::int32_t> measured_gpu::on_host(gpu::buffer<std::int32_t const> from) {
  std::vector<std::int32_t> made(static_cast<std::size_t>(from.size));
  check(cudaMemcpyAsync(made.data(), from.data, made.size() * sizeof(std::int32_t), cudaMemcpyDeviceToHost, stream_),
        "copying numbers from the device");
  check(cudaStreamSynchronize(stream_), "waiting for the device");
  return made;
}

int measured_gpu::copies(double touched, double memory) const {
  double const wanted = 8.0 * static_cast<double>(cache_bytes_) / std::max(touched, 1.0);
  double const room = .4 * static_cast<double>(free_bytes()) / std::max(memory, 1.0);
  return static_cast<int>(std::clamp(std::min(std::ceil(wanted), std::floor(room)), 1.0, static_cast<double>(repetitions)));
}

/// Reads, so that nothing is left to be written back while something is timed; long enough to launch a graph meanwhile.
void measured_gpu::evict() {
  for (int pass = 0; pass < 8; ++pass) {
    read_all(stream_, {.blocks = 8 * processors_}, evicting_.data(), evicting_.bytes(), sink_.data());
  }
}

timing measured_gpu::time(std::function<void(int)> const& enqueue, int most) {
  event begin;
  event end;
  enqueue(0);  // loads its kernels, which a capture can't
  check(cudaStreamSynchronize(stream_), "running a case");
  begin.record(stream_);
  enqueue(1);
  end.record(stream_);
  double const about = std::max(end.us_since(begin), 1.0);
  timing made;
  made.repetitions = static_cast<int>(std::clamp(1e5 / about, 1.0, static_cast<double>(most)));
  double const replays = 2e6 / (about * made.repetitions);
  made.replays =
      static_cast<int>(std::clamp(replays, std::min(3.0, double(wanted_.replays)), static_cast<double>(wanted_.replays)));
  captured_graph graph(stream_, [&] {
    for (int turn = 0; turn < made.repetitions; ++turn) enqueue(turn);
  });
  graph.launch(stream_);
  check(cudaStreamSynchronize(stream_), "running a graph");
  std::vector<double> found;
  for (int i = 0; i < made.replays; ++i) {
    evict();
    begin.record(stream_);
    graph.launch(stream_);
    end.record(stream_);
    found.push_back(end.us_since(begin) / made.repetitions);
  }
  std::ranges::sort(found);
  made.us = found[found.size() / 2];
  made.least = found.front();
  made.most = found.back();
  return made;
}

}  // namespace kvpolicy::bench
