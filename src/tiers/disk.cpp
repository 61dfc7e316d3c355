#include "kvpolicy/tiers/disk.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kvpolicy/error.hpp"
#include "kvpolicy/tiers/get_worker.hpp"
#include "slot_file.hpp"

namespace kvpolicy::tiers {

class disk::store {
 public:
  store(std::string const& path, std::int64_t bytes, std::int64_t capacity, disk_options const& options)
      : bytes_(checked(bytes, capacity)), capacity_(capacity), file_(path, bytes, options.sync) {
    load(options.fresh);
    worker_.emplace([this](job const& j) { return fetch(j) ? status::done : status::missed; },
                    [this](job const& j) {
                      for (wanted const& w : j.blocks) --holds_[static_cast<std::size_t>(w.from.slot)];
                    });
  }

  std::int64_t bytes() const noexcept { return bytes_; }
  std::int64_t capacity() const noexcept { return capacity_; }
  std::string describe() const { return "the disk tier '" + file_.path() + "'"; }

  bool put(std::span<block_write const> writes) {
    if (!erase_old()) return false;
    std::map<block_key, block_write> last;  // of a key that is there twice
    for (block_write const& w : writes) last.insert_or_assign(w.key, w);
    std::int64_t const fresh = std::ranges::count_if(last, [&](auto const& w) { return !index_.contains(w.first); });
    if (std::ssize(index_) + fresh > capacity_) return false;
    make_room(std::ssize(last));

    // Whatever could throw comes before the commit.
    std::map<block_key, entry> made;
    for (auto const& [key, w] : last) made.emplace(key, entry{});
    old_.reserve(old_.size() + last.size());
    std::vector<std::int64_t> const slots = take(std::ssize(last));
    std::uint64_t const number = file_.next();
    bool written = true;
    auto slot = slots.begin();
    for (auto& [key, e] : made) {
      e.slot = *slot++;
      written = written && file_.write_block(e.slot, key, last.find(key)->second.from, number, e.payload);
    }
    if (!written || !file_.commit(number)) {
      old_.insert(old_.end(), slots.begin(), slots.end());
      erase_old();
      return false;
    }
    for (auto const& [key, e] : made) {
      auto const found = index_.find(key);
      if (found == index_.end()) continue;
      old_.push_back(found->second.slot);
      found->second = e;
    }
    index_.merge(made);
    erase_old();
    return true;
  }

  ticket get(std::span<block_read const> reads) {
    job j;
    for (block_read const& r : reads) {
      auto const found = index_.find(r.key);
      if (found == index_.end()) break;
      j.blocks.push_back({r, found->second});
    }
    std::scoped_lock const lock(worker_->mutex());
    if (j.blocks.size() != reads.size()) return worker_->ended(status::missed);
    return worker_->begin(std::move(j), [this](job const& begun) {
      for (wanted const& w : begun.blocks) ++holds_[static_cast<std::size_t>(w.from.slot)];
    });
  }
  status poll(ticket id) { return worker_->poll(id); }
  status wait(ticket id, clock::time_point deadline) { return worker_->wait(id, deadline); }

  void drop(std::span<block_key const> blocks) {
    auto const erase = [this] {
      if (!erase_old() || !file_.flush()) throw error(describe() + " can't be changed: its medium fails");
    };
    erase();  // what these blocks replaced must not come back in their place
    for (block_key const& block : blocks) {
      auto const found = index_.find(block);
      if (found == index_.end()) continue;
      old_.push_back(found->second.slot);
      index_.erase(found);
    }
    erase();
  }

  usage occupied() { return usage_of(*worker_, index_, capacity_); }

 private:
  struct entry {
    std::int64_t slot = 0;
    std::uint64_t payload = 0;  ///< checksum
  };
  struct wanted {
    block_read read;
    entry from;
  };
  struct job {
    std::vector<wanted> blocks;
  };

  static std::int64_t checked(std::int64_t bytes, std::int64_t capacity) {
    KVPOLICY_EXPECTS(bytes > 0 && bytes <= INT32_MAX && capacity > 0 && capacity <= (std::int64_t{1} << 46) / (bytes + 64),
                     "a disk tier of " + std::to_string(capacity) + " blocks of " + std::to_string(bytes) +
                         " bytes; both must be above 0, and 64 TiB at most");
    return bytes;
  }

  /// What the file holds. A write that was cut off left slots that no later one may make valid: they are erased.
  void load(bool fresh) {
    std::int64_t const slots = file_.slots();
    std::map<block_key, std::uint64_t> number_of;
    holds_.resize(static_cast<std::size_t>(slots));
    free_.reserve(holds_.size());
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      slot_file::slot_header header;
      if (!file_.read_header(slot, header)) {
        (header.magic != 0 ? old_ : free_).push_back(slot);
        continue;
      }
      if (fresh) {
        old_.push_back(slot);
        continue;
      }
      std::uint64_t& newest = number_of[header.key];
      if (newest >= header.write) {
        old_.push_back(slot);
        continue;
      }
      if (newest != 0) old_.push_back(index_.at(header.key).slot);
      newest = header.write;
      index_.insert_or_assign(header.key, entry{slot, header.payload});
    }
    KVPOLICY_EXPECTS(std::ssize(index_) <= capacity_, describe() + " holds " + std::to_string(index_.size()) +
                                                          " blocks, more than " + std::to_string(capacity_) +
                                                          "; raise the capacity");
    if (!erase_old()) throw error(describe() + " can't be written: its medium fails");
  }

  /// Slots whose blocks were replaced, dropped or never committed. As long as one has its header, nothing else is written.
  bool erase_old() noexcept {
    if (!file_.settle()) return false;
    auto done = old_.begin();
    while (done != old_.end() && file_.erase(*done)) free_.push_back(*done++);  // there is room for all slots
    old_.erase(old_.begin(), done);
    return old_.empty();
  }

  /// So many slots behind in free_ that no get reads.
  void make_room(std::int64_t count) {
    std::scoped_lock const lock(worker_->mutex());
    auto const held =
        std::ranges::partition(free_, [this](std::int64_t slot) { return holds_[static_cast<std::size_t>(slot)] > 0; });
    std::int64_t const missing = count - std::ssize(held);
    if (missing <= 0) return;
    auto const slots = std::ssize(holds_);
    free_.reserve(static_cast<std::size_t>(slots + missing));
    holds_.resize(static_cast<std::size_t>(slots + missing));
    for (std::int64_t slot = slots + missing; slot-- > slots;) free_.push_back(slot);
  }
  std::vector<std::int64_t> take(std::int64_t count) {
    std::vector<std::int64_t> const taken(free_.end() - count, free_.end());
    free_.resize(free_.size() - static_cast<std::size_t>(count));
    return taken;
  }

  /// Everything into staging first; destinations are written when all of it is right.
  bool fetch(job const& j) noexcept {
    auto const size = static_cast<std::size_t>(bytes_);
    try {
      staging_.resize(j.blocks.size() * size);
    } catch (...) {
      return false;
    }
    for (std::size_t i = 0; i < j.blocks.size(); ++i) {
      wanted const& w = j.blocks[i];
      if (!file_.read_block(w.from.slot, w.read.key, w.from.payload, staging_.data() + i * size)) return false;
    }
    for (std::size_t i = 0; i < j.blocks.size(); ++i) std::memcpy(j.blocks[i].read.to, staging_.data() + i * size, size);
    return true;
  }

  std::int64_t bytes_;
  std::int64_t capacity_;
  slot_file file_;
  std::map<block_key, entry> index_;
  std::vector<std::int64_t> free_;    ///< slots without a header; a get may still read some
  std::vector<std::int64_t> old_;     ///< slots with a header that must go
  std::vector<std::uint32_t> holds_;  ///< gets that read each slot; guarded by the worker's mutex
  std::vector<std::byte> staging_;    ///< the worker's
  std::optional<get_worker<job>> worker_;
};

disk::disk(std::string const& path, std::int64_t block_bytes, std::int64_t capacity, disk_options options)
    : store_(std::make_unique<store>(path, block_bytes, capacity, options)) {}
disk::~disk() = default;

std::int64_t disk::block_bytes() const noexcept { return store_->bytes(); }
std::int64_t disk::capacity() const noexcept { return store_->capacity(); }
std::string disk::describe() const { return store_->describe(); }
bool disk::put(std::span<block_write const> writes) { return store_->put(writes); }
ticket disk::get(std::span<block_read const> reads) { return store_->get(reads); }
status disk::poll(ticket id) { return store_->poll(id); }
status disk::wait(ticket id, clock::time_point deadline) { return store_->wait(id, deadline); }
void disk::drop(std::span<block_key const> keys) { store_->drop(keys); }
usage disk::occupied() { return store_->occupied(); }

}  // namespace kvpolicy::tiers
