#include "cuda/emulator/gpu_emulator.hpp"

namespace kvpolicy_test {
namespace {

/// Of a thread, for all devices: a thousand stacks take milliseconds to set up.
fibers& scheduler() {
  static thread_local fibers all;
  return all;
}

}  // namespace

gpu_emulator::gpu_emulator(std::uint64_t seed) : random_(seed), block_(std::make_unique<block_state>(scheduler())) {}

void gpu_emulator::run(char const* name, unsigned threads, kvpolicy::gpu::grid_size grid,
                       std::function<void()> const& start_block, std::function<void(thread_state&)> const& body) {
  auto const refuse = [&](std::string const& what) { throw emulator_error(std::string(name) + ": launch: " + what); };
  if (threads == 0 || threads > 1024 || threads % 32 != 0) refuse(std::to_string(threads) + " threads");
  auto const within = [](std::int64_t n, std::int64_t most) { return n >= 1 && n <= most; };
  if (!within(grid.x, 0x7fffffff) || !within(grid.y, 65535) || !within(grid.z, 65535)) {
    refuse("a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " + std::to_string(grid.z));
  }
  block_->kernel = name;
  block_->threads = threads;
  block_->memory.start_launch();
  std::vector<std::int64_t> order(static_cast<std::size_t>(grid.x * grid.y * grid.z));
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::size_t const j = random_.below(i + 1);
    order[i] = order[j];
    order[j] = static_cast<std::int64_t>(i);
  }
  for (std::int64_t const i : order) {
    block_->at = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                  static_cast<unsigned>(i / grid.x / grid.y)};
    start_block();
    block_->run(random_, [&](unsigned t) { body(block_->each[t]); });
  }
  std::string const left = block_->memory.end_launch();
  if (!left.empty()) refuse(left);
}

}  // namespace kvpolicy_test
