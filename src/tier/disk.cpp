#include "kvpolicy/tier/disk.hpp"

#include <lmdb.h>
#include <xxhash.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kvpolicy/error.hpp"
#include "kvpolicy/tier/get_worker.hpp"

namespace kvpolicy::tier {
namespace {

constexpr std::uint32_t magic = 0x31544b4bu;  // "KKT1"
constexpr std::size_t key_bytes = 24;
constexpr unsigned most_readers = 16384;  // gets that have not ended: one for each KV head of any model

/// In front of every block's bytes.
struct header {
  std::uint32_t magic = 0;
  std::uint32_t length = 0;
  std::uint64_t checksum = 0;  ///< of key and bytes
};

using key_image = std::array<unsigned char, key_bytes>;

key_image image_of(block_key const& key) {
  key_image image;
  std::memcpy(image.data(), &key.request, 8);
  std::memcpy(image.data() + 8, &key.layer, 4);
  std::memcpy(image.data() + 12, &key.head, 4);
  std::memcpy(image.data() + 16, &key.position, 4);
  std::memcpy(image.data() + 20, &key.generation, 4);
  return image;
}

std::uint64_t checksum(key_image const& key, void const* bytes, std::size_t length) {
  return XXH3_64bits_withSeed(bytes, length, XXH3_64bits(key.data(), key.size()));
}

[[noreturn]] void fail(std::string const& what, int code) { throw error(what + ": " + mdb_strerror(code)); }

/// A transaction that is undone unless committed.
class transaction {
 public:
  transaction(MDB_env* env, unsigned flags) : code_(mdb_txn_begin(env, nullptr, flags, &txn_)) {}
  transaction(transaction const&) = delete;
  transaction& operator=(transaction const&) = delete;
  ~transaction() {
    if (txn_ != nullptr) mdb_txn_abort(txn_);
  }
  int begun() const noexcept { return code_; }
  MDB_txn* get() const noexcept { return txn_; }
  int commit() noexcept { return mdb_txn_commit(std::exchange(txn_, nullptr)); }

 private:
  MDB_txn* txn_ = nullptr;
  int code_;
};

}  // namespace

class disk::store {
 public:
  store(std::string const& path, std::int64_t bytes, std::int64_t capacity, disk_options const& options)
      : path_(path), bytes_(bytes), capacity_(capacity) {
    KVPOLICY_EXPECTS(bytes > 0 && bytes <= INT32_MAX && capacity > 0 && capacity <= (std::int64_t{1} << 46) / (bytes + 4096),
                     "a disk tier of " + std::to_string(capacity) + " blocks of " + std::to_string(bytes) +
                         " bytes; both must be above 0, and 64 TiB at most");
    if (int const code = mdb_env_create(&env_); code != 0) fail("LMDB can't be started", code);
    try {
      open(options);
      worker_.emplace([this](job const& j) { return fetch(j) ? status::done : status::missed; }, [](job const&) {});
    } catch (...) {
      mdb_env_close(env_);
      throw;
    }
  }
  ~store() {
    worker_.reset();
    mdb_env_close(env_);
  }

  std::int64_t bytes() const noexcept { return bytes_; }
  std::int64_t capacity() const noexcept { return capacity_; }

  bool put(std::span<block_write const> writes) {
    if (put_once(writes)) return true;
    int dead = 0;
    mdb_reader_check(env_, &dead);
    return dead > 0 && put_once(writes);
  }
  bool put_once(std::span<block_write const> writes) {
    transaction txn(env_, 0);
    if (txn.begun() != 0) return false;
    for (block_write const& w : writes) {
      key_image image = image_of(w.key);
      header const head{magic, static_cast<std::uint32_t>(bytes_), checksum(image, w.from, static_cast<std::size_t>(bytes_))};
      MDB_val key{image.size(), image.data()};
      MDB_val value{sizeof head + static_cast<std::size_t>(bytes_), nullptr};
      if (mdb_put(txn.get(), blocks_, &key, &value, MDB_RESERVE) != 0) return false;
      std::memcpy(value.mv_data, &head, sizeof head);
      std::memcpy(static_cast<std::byte*>(value.mv_data) + sizeof head, w.from, static_cast<std::size_t>(bytes_));
    }
    if (count_in(txn.get()) > capacity_) return false;
    return txn.commit() == 0;
  }

  ticket get(std::span<block_read const> reads) {
    std::scoped_lock const lock(worker_->mutex());
    // The transaction is begun here, so that the read sees what was put before it, and nothing that comes later.
    auto view = std::make_unique<transaction>(env_, MDB_RDONLY);
    if (view->begun() == MDB_READERS_FULL) {
      throw error("'" + path_ + "' has " + std::to_string(most_readers) + " gets that have not ended; wait for some first");
    }
    return worker_->begin({.reads = {reads.begin(), reads.end()}, .view = std::move(view)}, [](job const&) {});
  }
  status poll(ticket id) { return worker_->poll(id); }
  status wait(ticket id, clock::time_point deadline) { return worker_->wait(id, deadline); }

  void drop(std::span<block_key const> blocks) {
    transaction txn(env_, 0);
    if (txn.begun() != 0) fail("'" + path_ + "' can't be changed", txn.begun());
    for (block_key const& block : blocks) {
      key_image image = image_of(block);
      MDB_val key{image.size(), image.data()};
      int const code = mdb_del(txn.get(), blocks_, &key, nullptr);
      if (code != 0 && code != MDB_NOTFOUND) fail("'" + path_ + "' can't be changed", code);
    }
    if (int const ended = txn.commit(); ended != 0) fail("'" + path_ + "' can't be changed", ended);
  }

  usage occupied() {
    std::set<block_key> named;
    {
      std::scoped_lock const lock(worker_->mutex());
      worker_->each_waiting([&](job const& j) {
        for (block_read const& r : j.reads) named.insert(r.key);
      });
    }
    transaction txn(env_, MDB_RDONLY);
    if (txn.begun() != 0) fail("'" + path_ + "' can't be read", txn.begun());
    std::int64_t held = 0;
    for (block_key const& block : named) {
      key_image image = image_of(block);
      MDB_val key{image.size(), image.data()};
      MDB_val value{};
      held += mdb_get(txn.get(), blocks_, &key, &value) == 0 ? 1 : 0;
    }
    std::int64_t const stored = count_in(txn.get());
    return {capacity_ - stored, stored - held, held};
  }

 private:
  struct job {
    std::vector<block_read> reads;
    std::unique_ptr<transaction> view;
  };

  void open(disk_options const& options) {
    auto const check = [&](int code) {
      if (code != 0) fail("'" + path_ + "' can't be opened", code);
    };
    // Twice the blocks, each in pages of its own, and room for what a transaction leaves behind.
    auto const page = std::int64_t{4096};
    std::int64_t const per_block =
        (bytes_ + static_cast<std::int64_t>(sizeof(header) + key_bytes) + 2 * page - 1) / page * page;
    check(mdb_env_set_mapsize(env_, static_cast<std::size_t>(2 * capacity_ * per_block + 1024 * page)));
    check(mdb_env_set_maxdbs(env_, 2));
    check(mdb_env_set_maxreaders(env_, most_readers));
    unsigned const flags = MDB_NOSUBDIR | MDB_NOTLS | MDB_NORDAHEAD | (options.sync ? 0u : static_cast<unsigned>(MDB_NOSYNC));
    check(mdb_env_open(env_, path_.c_str(), flags, 0644));
    int dead = 0;
    mdb_reader_check(env_, &dead);
    MDB_envinfo info{};
    MDB_stat stat{};
    check(mdb_env_info(env_, &info));
    check(mdb_env_stat(env_, &stat));
    if (auto const size = std::filesystem::file_size(path_);
        info.me_last_pgno > 1 && size < (info.me_last_pgno + 1) * stat.ms_psize)
      throw error("'" + path_ + "' is cut: it has " + std::to_string(size) + " bytes");
    transaction txn(env_, 0);
    check(txn.begun());
    MDB_dbi about = 0;
    check(mdb_dbi_open(txn.get(), "about", MDB_CREATE, &about));
    check(mdb_dbi_open(txn.get(), "blocks", MDB_CREATE, &blocks_));
    std::string name = "block_bytes";
    MDB_val key{name.size(), name.data()};
    MDB_val value{};
    if (int const code = mdb_get(txn.get(), about, &key, &value); code == 0) {
      std::int64_t found = 0;
      if (value.mv_size == sizeof found) std::memcpy(&found, value.mv_data, sizeof found);
      KVPOLICY_EXPECTS(found == bytes_, "'" + path_ + "' holds blocks of " + std::to_string(found) + " bytes, not of " +
                                            std::to_string(bytes_) + "; use another file");
    } else {
      if (code != MDB_NOTFOUND) check(code);
      std::int64_t size = bytes_;
      value = {sizeof size, &size};
      check(mdb_put(txn.get(), about, &key, &value, 0));
    }
    KVPOLICY_EXPECTS(count_in(txn.get()) <= capacity_, "'" + path_ + "' holds " + std::to_string(count_in(txn.get())) +
                                                           " blocks, more than " + std::to_string(capacity_) +
                                                           "; raise the capacity");
    check(txn.commit());
  }

  std::int64_t count_in(MDB_txn* txn) const {
    MDB_stat stat{};
    int const code = mdb_stat(txn, blocks_, &stat);
    if (code != 0) fail("'" + path_ + "' can't be read", code);
    return static_cast<std::int64_t>(stat.ms_entries);
  }

  /// Everything into staging first; destinations are written when all of it is right.
  bool fetch(job const& j) noexcept {
    try {
      staging_.resize(j.reads.size() * static_cast<std::size_t>(bytes_));
      if (j.view->begun() != 0) return false;
      for (std::size_t i = 0; i < j.reads.size(); ++i) {
        key_image image = image_of(j.reads[i].key);
        MDB_val key{image.size(), image.data()};
        MDB_val value{};
        header head;
        if (mdb_get(j.view->get(), blocks_, &key, &value) != 0) return false;
        if (value.mv_size != sizeof head + static_cast<std::size_t>(bytes_)) return false;
        std::memcpy(&head, value.mv_data, sizeof head);
        std::byte* const to = staging_.data() + i * static_cast<std::size_t>(bytes_);
        std::memcpy(to, static_cast<std::byte const*>(value.mv_data) + sizeof head, static_cast<std::size_t>(bytes_));
        if (head.magic != magic || head.length != static_cast<std::uint32_t>(bytes_)) return false;
        if (head.checksum != checksum(image, to, static_cast<std::size_t>(bytes_))) return false;
      }
    } catch (...) {
      return false;
    }
    for (std::size_t i = 0; i < j.reads.size(); ++i) {
      std::memcpy(j.reads[i].to, staging_.data() + i * static_cast<std::size_t>(bytes_), static_cast<std::size_t>(bytes_));
    }
    return true;
  }

  std::string path_;
  std::int64_t bytes_;
  std::int64_t capacity_;
  MDB_env* env_ = nullptr;
  MDB_dbi blocks_ = 0;
  std::vector<std::byte> staging_;  ///< the worker's
  std::optional<get_worker<job>> worker_;
};

disk::disk(std::string const& path, std::int64_t block_bytes, std::int64_t capacity, disk_options options)
    : store_(std::make_unique<store>(path, block_bytes, capacity, options)) {}
disk::~disk() = default;

std::int64_t disk::block_bytes() const noexcept { return store_->bytes(); }
std::int64_t disk::capacity() const noexcept { return store_->capacity(); }
bool disk::put(std::span<block_write const> writes) { return store_->put(writes); }
ticket disk::get(std::span<block_read const> reads) { return store_->get(reads); }
status disk::poll(ticket id) { return store_->poll(id); }
status disk::wait(ticket id, clock::time_point deadline) { return store_->wait(id, deadline); }
void disk::drop(std::span<block_key const> keys) { store_->drop(keys); }
usage disk::occupied() { return store_->occupied(); }

}  // namespace kvpolicy::tier
