// The device's memory. Kernels reach it; the host does not, unless it is managed or the host's own and registered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace ptx {

enum class owner : std::uint8_t { device, managed, host };

/// A run of addresses that kernels may use.
struct range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::ptrdiff_t to_host = 0;  ///< add it to an address to reach the bytes
  owner of = owner::host;

  bool holds(std::uint64_t first, std::uint64_t past) const { return begin <= first && past <= end; }
};

/// One for the process. Addresses are never given out twice, so that a use after free is seen.
class memory {
 public:
  static memory& device();

  /// @param bytes 0 gives an address of its own too
  /// @return nullptr where the arena is used up
  void* allocate(std::size_t bytes, owner of);
  /// @return false: nothing was allocated at this address
  bool release(void* at);
  bool add_host(void* at, std::size_t bytes);
  bool remove_host(void* at);

  /// @return the range that an address lies in; an empty one if there is none
  range find(std::uint64_t address) const;
  /// What the host may read and write for `bytes` at `address`; nullptr where a device range ends before.
  void* host_address(void const* address, std::size_t bytes) const;

  /// Two numbers for each 32 bytes of the arena, with which launches count what they read and write; nullptr outside the arena.
  std::uint32_t* sector_stamps(std::uint64_t address) const;
  bool is_device_only(void const* address) const;

  /// Remembers which bytes of the device's were written, as KVPOLICY_PTX_INITCHECK asks.
  void note_write(range const& in, std::uint64_t address, std::size_t bytes);
  /// @return false where a byte of the device's was never written
  bool is_written(range const& in, std::uint64_t address, std::size_t bytes) const;

 private:
  memory();

  static constexpr std::size_t arena_bytes = std::size_t{1} << 40;
  static constexpr std::size_t page = 4096;

  int file_ = -1;
  std::byte* seen_by_host_ = nullptr;    // the arena, readable
  std::byte* seen_by_device_ = nullptr;  // the same, and an access of the host's traps
  std::uint32_t* stamps_ = nullptr;
  std::uint8_t* written_ = nullptr;  // a byte for each, if asked for
  std::size_t used_ = 0;
  std::map<std::uint64_t, range> ranges_;  // by their ends
};

}  // namespace ptx
