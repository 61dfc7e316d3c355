// Runs kernel bodies on the GPU emulator.
#pragma once

#include <memory>
#include <optional>

#include "cuda/emulator/emulated_block.hpp"

namespace kvpolicy_test {

/// Launches are complete when they return. Blocks run one after the other, they and their threads in an order that the seed
/// fixes.
class gpu_emulator {
 public:
  explicit gpu_emulator(std::uint64_t seed = 1);
  gpu_emulator(gpu_emulator const&) = delete;

  /// Throws emulator_error for the first thing that is wrong, and may be used again after that.
  template <class Body>
  void launch(kvpolicy::gpu::grid_size grid, typename Body::arguments const& a) {
    static_assert(std::is_trivially_copyable_v<typename Body::arguments>);
    using block = emulated_block<Body::threads>;
    auto const arguments = a;
    auto const shared = std::make_unique<std::optional<typename Body::template shared<block>>>();
    run(
        Body::name, Body::threads, grid, [&] { shared->emplace(); },
        [&](thread_state& me) {
          block b(me);
          Body::run(b, **shared, arguments);
        });
  }

 private:
  void run(char const* name, unsigned threads, kvpolicy::gpu::grid_size grid, std::function<void()> const& start_block,
           std::function<void(thread_state&)> const& body);

  random_bits random_;
  std::unique_ptr<block_state> block_;
};

}  // namespace kvpolicy_test
