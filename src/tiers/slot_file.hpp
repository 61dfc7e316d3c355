// A file of slots: blocks of equal size, each with a header that says whose it is and checks both. Read and written, never
// mapped, so that whatever happens to the file is an error or a block less, not a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy::tiers {

/// Layout: a page with the file's identity, two pages with a commit each (the one of the higher count holds), slots. A slot
/// belongs to the write whose number its header has, and counts if that is not above the committed one.
class slot_file {
 public:
  struct slot_header {
    std::uint64_t magic = 0;
    block_key key{};
    std::uint64_t write = 0;    ///< number of the write that it belongs to
    std::uint64_t payload = 0;  ///< XXH3 of key and bytes
    std::uint64_t reserved = 0;
    std::uint64_t checksum = 0;  ///< XXH3 of all before it, seeded by file and slot
  };
  static constexpr std::int64_t page = 4096;
  static constexpr std::int64_t first_slot = 3 * page;

  /// Opens or makes it, and locks it. Throws error with the file's name: it can't be opened, another process has it open, it is
  /// damaged, it is no tier's; invalid_value for another block size.
  slot_file(std::string path, std::int64_t block_bytes, bool sync);
  slot_file(slot_file const&) = delete;
  slot_file& operator=(slot_file const&) = delete;
  ~slot_file();

  std::string const& path() const noexcept { return path_; }
  /// Slots that the file has room for.
  std::int64_t slots() const;
  /// False where there is nothing that counts: it is empty, damaged, or of a write that was not committed.
  bool read_header(std::int64_t slot, slot_header& header) const noexcept;
  /// False where the bytes are not those that the checksum is of.
  bool read_block(std::int64_t slot, block_key const& key, std::uint64_t payload, std::byte* to) const noexcept;

  /// Number of the next write.
  std::uint64_t next() noexcept { return ++last_; }
  /// The block's checksum, or nothing written that counts; false where the medium fails.
  bool write_block(std::int64_t slot, block_key const& key, std::byte const* from, std::uint64_t write, std::uint64_t& payload);
  /// All blocks of this write count now. False: they may or may not until settle().
  bool commit(std::uint64_t write) noexcept;
  /// What a commit that failed was of does not count; false where the medium fails.
  bool settle() noexcept { return settled_ || put_commit(committed_); }
  /// The slot holds nothing any more. Not before settle(): blocks of a write go together.
  bool erase(std::int64_t slot) noexcept;
  bool flush() noexcept;

 private:
  void make();
  bool put_commit(std::uint64_t write) noexcept;
  void open_existing(std::int64_t size);
  std::int64_t at(std::int64_t slot) const noexcept { return first_slot + slot * stride_; }
  std::uint64_t checksum(std::int64_t slot, slot_header const& header) const noexcept;

  std::string path_;
  std::int64_t bytes_;
  std::int64_t stride_;  ///< of a slot: header and block
  bool sync_;
  int file_ = -1;
  std::uint64_t identity_ = 0;   ///< drawn when the file was made
  std::uint64_t commits_ = 0;    ///< the last one's count
  std::uint64_t committed_ = 0;  ///< number of the last write that was
  std::uint64_t last_ = 0;       ///< number of any write
  bool settled_ = true;
  std::vector<std::byte> slot_;  ///< scratch
};

static_assert(sizeof(slot_file::slot_header) == 64);

}  // namespace kvpolicy::tiers
