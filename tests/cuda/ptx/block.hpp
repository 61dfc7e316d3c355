// A launch executed block by block, and a block warp by warp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "cuda/ptx/instruction.hpp"
#include "cuda/ptx/memory.hpp"
#include "cuda/ptx/shared_memory.hpp"

namespace ptx {

struct launch {
  kernel const* code = nullptr;
  std::array<std::uint32_t, 3> grid{1, 1, 1};
  std::array<std::uint32_t, 3> block{1, 1, 1};
  std::vector<std::byte> parameters;
};

/// What launches did. A sector is 32 bytes that a launch reads (writes) once or more.
struct counts {
  std::int64_t launches = 0;
  std::int64_t instructions = 0;  ///< of warps
  std::int64_t sectors_read = 0;
  std::int64_t sectors_written = 0;
};

/// A kernel's name for people: the body's, without namespaces.
std::string readable(std::string const& mangled);

class processor;

/// Lanes that are at the same instruction.
struct group {
  std::int32_t next = 0;
  lane_mask lanes = 0;
  bool waits = false;  ///< for lanes of other groups
};

class warp {
 public:
  template <class T>
  T* values(std::uint32_t at) {
    return reinterpret_cast<T*>(registers + at);
  }
  lane_mask& predicate(std::uint32_t at) { return *values<lane_mask>(at); }
  shared_memory::user user(int lane) const;

  processor* on = nullptr;
  std::byte* registers = nullptr;
  std::uint32_t first_thread = 0;
  lane_mask threads = 0;      ///< those that the block has
  std::vector<group> groups;  ///< by `next`
  std::uint32_t time = 0;     ///< how often its lanes met
  bool at_barrier = false;
};

/// Executes launches one after another.
class processor {
 public:
  /// @param seed of the order of blocks and warps; none: ascending
  /// @param count_sectors sums what is read and written, at the price of a look into a table at each access
  explicit processor(std::optional<std::uint64_t> seed = {}, bool count_sectors = false);

  /// @throws fault with the kernel, the line of its PTX, the block and what is wrong
  void execute(launch const& what, counts& sum);

  /// Where the bytes of each lane's address are.
  /// @throws fault where an address lies in no allocation, or is no multiple of the access
  std::array<std::byte*, warp_size> reach(warp& by, instruction const& what, std::uint32_t address_at, lane_mask lanes,
                                          std::uint32_t bytes, bool writes);
  /// The address of a lane in shared memory.
  std::uint32_t shared_address(warp& by, instruction const& what, std::uint32_t address_at, int lane,
                               std::uint32_t bytes) const {
    std::uint32_t const address = by.values<std::uint32_t>(address_at)[lane] + static_cast<std::uint32_t>(what.offset);
    if ((address & (bytes - 1)) != 0 || std::int64_t{address} + bytes > shared_.bytes()) refuse_shared(address, bytes, by);
    return address;
  }
  std::byte const* parameters(std::int64_t offset, std::uint32_t bytes) const;

  std::uint32_t block_time() const { return block_time_; }
  shared_memory& shared() { return shared_; }

 private:
  [[noreturn]] void refuse_shared(std::uint32_t address, std::uint32_t bytes, warp const& by) const;
  struct alignas(64) line {
    std::byte bytes[64];
  };

  void begin_block(std::array<std::uint32_t, 3> const& index);
  void run_block();
  void run(warp& one);
  bool step(warp& one, std::size_t at, std::int32_t until);
  bool may_go(warp& one, instruction const& what, group& here, lane_mask lanes);
  void count_sector(std::uint64_t address, bool writes);

  std::optional<std::mt19937_64> order_;
  bool counts_sectors_;
  bool checks_writes_;
  launch const* what_ = nullptr;
  counts* sum_ = nullptr;
  std::vector<line> registers_;
  std::vector<warp> warps_;
  std::vector<range> last_range_;  // that each instruction used
  shared_memory shared_;
  std::uint32_t block_time_ = 0;
  std::uint32_t launch_number_ = 0;
};

inline shared_memory::user warp::user(int lane) const {
  return {static_cast<std::uint16_t>(first_thread + static_cast<std::uint32_t>(lane)), on->block_time(), time};
}

}  // namespace ptx
