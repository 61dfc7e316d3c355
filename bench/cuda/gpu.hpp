// What CUDA benchmarks stand on: random data in device memory, the time of captured work that finds its data in memory and not
// in the cache, the streaming ceiling of the same run, and one JSON line for each case.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/gpu/base/stream_device.hpp"
#include "llama_8b.hpp"

namespace kvpolicy::bench {

/// What the command line asks for: --only TEXT (of a name), --batch N, --context N, --layout nhd|hnd, --replays N. --batch and
/// --context can be given more than once.
struct options {
  std::string only;
  std::vector<std::int64_t> batches;
  std::vector<std::int64_t> contexts;
  page_layout layout = page_layout::nhd;
  int replays = 15;
};

/// Throws invalid_value for what it does not know.
options options_of(int count, char const* const* arguments);

struct field {
  std::string name;
  std::string json;  ///< its value
};
field number(std::string name, double value);
field text(std::string name, std::string const& value);
/// A line of JSON.
void print(std::vector<field> const& fields);

/// Of one repetition: the median over replays, and the shortest and longest.
struct timing {
  double us = 0;
  double least = 0;
  double most = 0;
  int repetitions = 0;  ///< in a replay
  int replays = 0;
  /// What was counted where nothing could be timed; `us` is then what its bytes take at floor_speed.
  std::vector<field> counted{};
};

/// What a case came to: the bytes that its floor counts, its time, and what else is to be said.
struct outcome {
  double bytes = 0;
  timing time;
  std::vector<field> more{};
};

/// The current device, one stream on it, and the lines that are printed. Not thread-safe.
class measured_gpu {
 public:
  static constexpr int repetitions = 20;  ///< of a case in a graph, at most

  /// Measures the ceiling. Throws gpu::device_error where there is no device: see there().
  explicit measured_gpu(options const& wanted);
  ~measured_gpu();
  measured_gpu(measured_gpu const&) = delete;
  measured_gpu& operator=(measured_gpu const&) = delete;

  /// Whether this machine has a GPU.
  static bool there() noexcept;

  gpu::stream on() const noexcept { return stream_; }
  options const& wanted() const noexcept { return wanted_; }
  /// What cases' names must hold from here on; what it was.
  std::string only(std::string now) { return std::exchange(wanted_.only, std::move(now)); }
  std::int64_t free_bytes() const;
  /// Whether some case did not run to its end; memory that was refused aside.
  bool failed() const noexcept { return failed_; }
  /// How many cases were wanted so far, apart from the ceiling's.
  int met() const noexcept { return met_; }

  /// Device memory with random content: floats of [-1, 1), bf16 of magnitude 1/8 to 2, and what the host gives.
  gpu::device_buffer<float> floats(std::int64_t count);
  gpu::device_buffer<std::uint16_t> halves(std::int64_t count);
  gpu::device_buffer<std::int32_t> numbers(std::vector<std::int32_t> const& values);

  /// What is in device memory once all that is enqueued is done. Waits.
  std::vector<std::int32_t> on_host(gpu::buffer<std::int32_t const> from);

  /// How many copies of data to take turns with, so that none is found in the cache: a turn touches `touched` bytes of a copy's
  /// `memory`, all of them no more than 40% of what is free.
  int copies(double touched, double memory) const;

  /// Time of enqueue(turn), turn = 0, 1, ..., which enqueues on on() and does not wait: up to `most` turns are captured in a
  /// graph, which is replayed with the cache evicted before each replay. Called before the capture, too.
  timing time(std::function<void(int)> const& enqueue, int most = repetitions);

  /// Runs a case where it is wanted, and prints its line; says so where the device has no memory for it. Whether it ran.
  bool run(std::string const& name, std::int64_t batch, std::int64_t context, std::function<outcome()> const& work);

  /// For each batch and context that is wanted of these.
  static void each(std::vector<std::int64_t> const& wanted, std::vector<std::int64_t> const& all,
                   std::function<void(std::int64_t)> const& work);
  void each_cell(std::vector<std::int64_t> const& batches, std::vector<std::int64_t> const& contexts,
                 std::function<void(std::int64_t, std::int64_t)> const& work) const;

 private:
  void print_requirements();
  void measure_ceiling();
  void evict();

  options wanted_;
  gpu::stream stream_ = nullptr;
  std::int64_t processors_ = 0;
  std::int64_t cache_bytes_ = 0;
  std::uint32_t seed_ = 1;
  double ceiling_ = 0;  ///< bytes per second
  bool failed_ = false;
  int met_ = 0;
  gpu::device_array evicting_;
  gpu::device_array sink_;
};

inline std::vector<std::int64_t> const all_batches{1, 16, 64};
inline std::vector<std::int64_t> const all_contexts{32768, 131072, 262144};

/// `main` of a benchmark: 77 where there is no GPU, 1 where a case failed.
int main_of(int count, char const* const* arguments, std::function<void(measured_gpu&)> const& work);

}  // namespace kvpolicy::bench
