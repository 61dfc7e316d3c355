#include "slot_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <utility>

#include "kvpolicy/error.hpp"

namespace kvpolicy::tiers {
namespace {

constexpr std::uint64_t file_magic = 0x3272656974766b00u;  // "\0kvtier2"
constexpr std::uint64_t slot_magic = 0x746f6c737265696bu;

struct identity_page {
  std::uint64_t magic = file_magic;
  std::int64_t block_bytes = 0;
  std::uint64_t identity = 0;
  std::uint64_t checksum = 0;  ///< of what is before it
};
struct commit_page {
  std::uint64_t count = 0;
  std::uint64_t write = 0;
  std::uint64_t checksum = 0;  ///< of what is before it, seeded by the file's identity
};

template <class Page>
std::uint64_t sum_of(Page const& p, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(&p, offsetof(Page, checksum), seed);
}

/// Whatever a call gets done at once; false where it fails, or the file ends.
bool read_all(int file, void* to, std::int64_t count, std::int64_t at) noexcept {
  for (auto* next = static_cast<char*>(to); count > 0;) {
    ssize_t const n = pread(file, next, static_cast<std::size_t>(count), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    next += n, count -= n, at += n;
  }
  return true;
}
bool write_all(int file, void const* from, std::int64_t count, std::int64_t at) noexcept {
  for (auto const* next = static_cast<char const*>(from); count > 0;) {
    ssize_t const n = pwrite(file, next, static_cast<std::size_t>(count), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    next += n, count -= n, at += n;
  }
  return true;
}

[[noreturn]] void fail(std::string const& path, std::string const& what) { throw error("'" + path + "' " + what); }
[[noreturn]] void fail_by_system(std::string const& path, std::string const& what) {
  fail(path, what + ": " + std::strerror(errno));
}

std::uint64_t checksum_of(block_key const& key, std::byte const* bytes, std::int64_t count) noexcept {
  return XXH3_64bits_withSeed(bytes, static_cast<std::size_t>(count), XXH3_64bits(&key, sizeof key));
}

}  // namespace

slot_file::slot_file(std::string path, std::int64_t block_bytes, bool sync)
    : path_(std::move(path)),
      bytes_(block_bytes),
      stride_((static_cast<std::int64_t>(sizeof(slot_header)) + block_bytes + 63) / 64 * 64),
      sync_(sync),
      slot_(static_cast<std::size_t>(stride_)) {
  static_assert(sizeof(block_key) == 24, "a key has no padding: its bytes are hashed");
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) fail_by_system(path_, "can't be opened");
  try {
    if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) fail(path_, "is open elsewhere; give each process a file of its own");
      fail_by_system(path_, "can't be locked");
    }
    struct stat about {};
    if (fstat(file_, &about) != 0) fail_by_system(path_, "can't be read");
    if (!S_ISREG(about.st_mode)) fail(path_, "is not a file");
    if (about.st_size == 0) make();
    else open_existing(about.st_size);
  } catch (...) {
    close(file_);
    throw;
  }
}

slot_file::~slot_file() { close(file_); }

/// Its identity comes first: without a commit, a file of that length is one of which nobody wrote more.
void slot_file::make() {
  std::random_device random;
  identity_ = std::uint64_t{random()} << 32 | random();
  identity_page about{.block_bytes = bytes_, .identity = identity_};
  about.checksum = sum_of(about, 0);
  std::array<std::byte, page> image{};
  std::memcpy(image.data(), &about, sizeof about);
  if (!write_all(file_, image.data(), page, 0) || !flush()) {
    std::string const why = std::strerror(errno);
    static_cast<void>(!ftruncate(file_, 0));
    fail(path_, "can't be written: " + why);
  }
}

void slot_file::open_existing(std::int64_t size) {
  identity_page about;
  bool const whole =
      read_all(file_, &about, sizeof about, 0) && about.magic == file_magic && about.checksum == sum_of(about, 0);
  if (!whole) fail(path_, "is not a disk tier's file, or its beginning is damaged; use another file, or remove it");
  KVPOLICY_EXPECTS(about.block_bytes == bytes_, "'" + path_ + "' holds blocks of " + std::to_string(about.block_bytes) +
                                                    " bytes, not of " + std::to_string(bytes_) + "; use another file");
  identity_ = about.identity;
  bool found = size <= page;
  for (std::int64_t i = 1; i <= 2; ++i) {
    commit_page c;
    if (!read_all(file_, &c, sizeof c, i * page) || c.checksum != sum_of(c, identity_)) continue;
    found = true;
    if (c.count > commits_) commits_ = c.count, committed_ = c.write;
  }
  if (!found) {  // a first write may have put its slots there, and not come to its commit
    std::array<std::byte, 2 * page> pages{};
    read_all(file_, pages.data(), 2 * page, page);
    if (pages != decltype(pages){}) fail(path_, "is damaged: neither of its commits is whole; remove it");
  }
  last_ = committed_;
}

std::int64_t slot_file::slots() const {
  struct stat about {};
  if (fstat(file_, &about) != 0) fail_by_system(path_, "can't be read");
  return std::max<std::int64_t>(0, (about.st_size - first_slot + stride_ - 1) / stride_);
}

std::uint64_t slot_file::checksum(std::int64_t slot, slot_header const& header) const noexcept {
  return sum_of(header, identity_ + static_cast<std::uint64_t>(slot));
}

bool slot_file::read_header(std::int64_t slot, slot_header& header) const noexcept {
  return read_all(file_, &header, sizeof header, at(slot)) && header.magic == slot_magic &&
         header.checksum == checksum(slot, header) && header.write <= committed_;
}

bool slot_file::read_block(std::int64_t slot, block_key const& key, std::uint64_t payload, std::byte* to) const noexcept {
  return read_all(file_, to, bytes_, at(slot) + static_cast<std::int64_t>(sizeof(slot_header))) &&
         checksum_of(key, to, bytes_) == payload;
}

bool slot_file::write_block(std::int64_t slot, block_key const& key, std::byte const* from, std::uint64_t write,
                            std::uint64_t& payload) {
  payload = checksum_of(key, from, bytes_);
  slot_header header{.magic = slot_magic, .key = key, .write = write, .payload = payload};
  header.checksum = checksum(slot, header);
  std::memcpy(slot_.data(), &header, sizeof header);
  std::memcpy(slot_.data() + sizeof header, from, static_cast<std::size_t>(bytes_));
  return write_all(file_, slot_.data(), static_cast<std::int64_t>(sizeof header) + bytes_, at(slot));
}

bool slot_file::commit(std::uint64_t write) noexcept { return flush() && put_commit(write); }

/// Where it fails, the next one goes to the same page, and the other page keeps the commit before.
bool slot_file::put_commit(std::uint64_t write) noexcept {
  commit_page made{.count = commits_ + 1, .write = write};
  made.checksum = sum_of(made, identity_);
  settled_ = write_all(file_, &made, sizeof made, (1 + static_cast<std::int64_t>(made.count % 2)) * page) && flush();
  if (settled_) commits_ = made.count, committed_ = write;
  return settled_;
}

bool slot_file::erase(std::int64_t slot) noexcept {
  slot_header const none{};
  return write_all(file_, &none, sizeof none, at(slot));
}

bool slot_file::flush() noexcept { return !sync_ || fdatasync(file_) == 0; }

}  // namespace kvpolicy::tiers
