// What a kernel's PTX is decoded to: instructions whose operands are places in a warp's register file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

constexpr int warp_size = 32;
/// A bit for each lane of a warp.
using lane_mask = std::uint32_t;
constexpr lane_mask all_lanes = ~lane_mask{0};

class warp;
struct instruction;
/// Executes an instruction for the lanes of a mask.
using action = void (*)(warp&, instruction const&, lane_mask);

/// Which instruction is next, and who must be there.
enum class flow : std::uint8_t {
  next,
  branch,
  leave,
  block_barrier,  ///< all lanes of all warps of the block
  warp_barrier,   ///< the lanes of a member mask, whose reads and writes of shared memory it orders
  exchange,       ///< the lanes of a member mask
};

struct instruction {
  action run = nullptr;
  flow kind = flow::next;
  bool unless = false;      ///< the guard's lanes are those whose predicate is false
  std::uint8_t parts = 1;   ///< registers of a vector
  std::int32_t guard = -1;  ///< where the guard's predicate is; -1: there is none
  std::int32_t members = -1;
  std::int32_t target = -1;
  std::int32_t line = 0;
  std::int32_t index = 0;
  std::int64_t offset = 0;             ///< of an address
  std::array<std::uint32_t, 14> at{};  ///< where the operands are in the register file, destinations first
};

/// Bytes of a lane in a register; a predicate is one mask for all lanes.
enum class width : std::uint8_t { none = 0, predicate = 1, b16 = 2, b32 = 4, b64 = 8 };
constexpr std::uint32_t bytes_of(width one) {
  return one == width::predicate ? sizeof(lane_mask) : static_cast<std::uint32_t>(one) * warp_size;
}

/// A plain instruction: a destination and up to four sources of fixed widths.
struct operation {
  action run = nullptr;
  std::array<width, 5> widths{};
};
/// The operation of an opcode; nullptr: there is none.
operation const* find_operation(std::string_view opcode);
/// mov of two registers into one of twice their width, or back; nullptr: not of this width.
action find_regrouping(width whole, bool packs);

enum class space : std::uint8_t { global, shared, parameter };
struct access {
  action load = nullptr, store = nullptr;
};
/// Loads and stores of an element `type` (u8 to f64) by registers of a width; nullptr: not in this space.
access find_access(space where, std::string_view type, width of_register);
action find_atomic_add(space where);

/// What lanes give each other: shfl, vote, mma, movmatrix; nullptr: not one of them.
action find_exchange(std::string_view opcode);

/// Registers that a block or a warp begins with.
constexpr std::array<std::string_view, 13> special_registers{"%tid.x",    "%tid.y",    "%tid.z",   "%ntid.x",  "%ntid.y",
                                                             "%ntid.z",   "%ctaid.x",  "%ctaid.y", "%ctaid.z", "%nctaid.x",
                                                             "%nctaid.y", "%nctaid.z", "%laneid"};

struct kernel {
  std::string name;
  std::vector<instruction> code;
  /// The end of a register file: constants, which no instruction writes.
  std::vector<std::byte> constants;
  std::uint32_t constants_at = 0;
  std::array<std::int32_t, special_registers.size()> specials;  ///< where each is; -1: not used
  std::int64_t shared_bytes = 0;
  struct parameter {
    std::int64_t at, bytes;
  };
  std::vector<parameter> parameters;

  std::size_t register_bytes() const { return constants_at + constants.size(); }
};

/// Decodes one kernel.
/// @param module the PTX of a module
/// @param name the entry's name
/// @throws std::invalid_argument where the module has no such entry, or it has an instruction that is not executed here
kernel decode(std::string_view module, std::string_view name);

/// What a kernel did that a GPU does not define.
class fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ptx
