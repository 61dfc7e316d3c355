#include "kvpolicy/tiers/redis.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kvpolicy/error.hpp"
#include "kvpolicy/tiers/get_worker.hpp"
#include "names.hpp"
#include "nodes.hpp"

namespace kvpolicy::tiers {
namespace {

/// Before a block's bytes.
struct block_header {
  std::uint64_t magic = 0x6b7670726f773031u;  // "kvprow01"
  block_key key{};
  std::uint64_t write = 0;     ///< 0 in a space that is shared
  std::uint64_t checksum = 0;  ///< XXH3 of the bytes, seeded by that of what is before it
};
static_assert(sizeof(block_header) == 48 && sizeof(block_key) == 24);

std::uint64_t checksum_of(block_header const& header, std::byte const* bytes, std::int64_t count) noexcept {
  return XXH3_64bits_withSeed(bytes, static_cast<std::size_t>(count), XXH3_64bits(&header, offsetof(block_header, checksum)));
}

std::string unique_name() {
  std::random_device random;
  std::string made;
  for (int i = 0; i < 4; ++i) {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", random());
    made += text;
  }
  return made;
}

}  // namespace

class redis::store {
 public:
  store(redis_options options, std::int64_t bytes, std::int64_t capacity)
      : options_(checked(std::move(options), bytes, capacity)),
        bytes_(bytes),
        capacity_(capacity),
        shared_(!options_.space.empty()),
        space_(shared_ ? options_.space : unique_name()),
        writers_(options_),
        readers_(options_) {
    worker_.emplace([this](job const& j) { return fetch(j) ? status::done : status::missed; }, [](job const&) {});
  }
  ~store() {
    worker_.reset();
    if (shared_) return;
    for (auto const& [key, write] : index_) old_.push_back({key, write});
    erase_old();
  }

  std::int64_t bytes() const noexcept { return bytes_; }
  std::int64_t capacity() const noexcept { return capacity_; }
  std::string describe() const { return "the remote tier '" + options_.nodes.front() + "'"; }

  bool put(std::span<block_write const> writes) {
    erase_old();
    std::map<block_key, std::byte const*> last;  // of a key that is there twice
    for (block_write const& w : writes) last.insert_or_assign(w.key, w.from);
    std::int64_t const fresh = std::ranges::count_if(last, [&](auto const& w) { return !index_.contains(w.first); });
    if (std::ssize(index_) + fresh > capacity_) return false;
    if (last.empty()) return true;

    std::unordered_map<block_key, std::uint64_t, hash> made;  // whatever could throw comes before the servers know
    index_.reserve(index_.size() + last.size());
    std::uint64_t const write = shared_ ? 0 : ++writes_;
    for (auto const& w : last) made.emplace(w.first, write);
    old_.reserve(old_.size() + last.size());
    if (!send(last, write)) {
      // Whether a transaction was carried out whose reply was lost is not known: its blocks have names that nobody reads.
      for (auto const& w : made) {
        if (!shared_) old_.push_back(w);
      }
      return false;
    }
    for (auto const& [key, number] : made) {
      auto const found = index_.find(key);
      if (found == index_.end()) continue;
      if (!shared_) old_.push_back({key, found->second});
      found->second = number;
    }
    if (shared_) std::erase_if(old_, [&](named_block const& block) { return made.contains(block.first); });  // one name
    index_.merge(made);
    erase_old();
    return true;
  }

  ticket get(std::span<block_read const> reads) {
    job j;
    for (block_read const& r : reads) {
      auto const found = index_.find(r.key);
      if (found == index_.end() && !shared_) break;
      j.blocks.push_back({r, shared_ ? 0 : found->second});
    }
    std::scoped_lock const lock(worker_->mutex());
    if (j.blocks.size() != reads.size()) return worker_->ended(status::missed);
    return worker_->begin(std::move(j), [](job const&) {});
  }
  status poll(ticket id) { return worker_->poll(id); }
  status wait(ticket id, clock::time_point deadline) { return worker_->wait(id, deadline); }

  void drop(std::span<block_key const> keys) {
    for (block_key const& key : keys) {
      auto const found = index_.find(key);
      if (found == index_.end()) continue;
      old_.push_back({key, found->second});
      index_.erase(found);
    }
    erase_old();
  }

  usage occupied() { return usage_of(*worker_, index_, capacity_); }

 private:
  /// A block as a server has it: another write of its key has another name.
  using named_block = std::pair<block_key, std::uint64_t>;
  static constexpr std::size_t at_once = 512;  ///< blocks that one command removes
  struct hash {
    std::size_t operator()(block_key const& key) const noexcept { return XXH3_64bits(&key, sizeof key); }
  };
  struct wanted {
    block_read read;
    std::uint64_t write;
  };
  struct job {
    std::vector<wanted> blocks;
  };

  static redis_options checked(redis_options options, std::int64_t bytes, std::int64_t capacity) {
    KVPOLICY_EXPECTS(bytes > 0 && bytes <= (std::int64_t{512} << 20) - 48 && capacity >= 0,
                     "a remote tier of " + std::to_string(capacity) + " blocks of " + std::to_string(bytes) +
                         " bytes; a block has 1 byte to 512 MiB, and there can't be fewer than none");
    KVPOLICY_EXPECTS(!options.nodes.empty(), "a remote tier needs a node: redis_options::nodes is empty");
    KVPOLICY_EXPECTS(
        options.deadline.count() > 0 && options.attempt.count() > 0 && options.lifetime.count() > 0 && options.replicas >= 0,
        "redis_options: deadline, attempt and lifetime must be above 0, replicas not negative");
    KVPOLICY_EXPECTS(options.space.find_first_of("{}") == std::string::npos,
                     "the space '" + options.space + "' has a brace; those say where a block lies");
    return options;
  }

  clock::time_point in_time() const { return clock::now() + options_.deadline; }

  /// One transaction for each tag. False where one of them was refused, or it is not known.
  bool send(std::map<block_key, std::byte const*> const& blocks, std::uint64_t write) {
    std::vector<redis_order> orders;
    block_names name(space_);
    std::string const seconds = std::to_string(options_.lifetime.count());
    std::string value(sizeof(block_header) + static_cast<std::size_t>(bytes_), '\0');
    for (auto block = blocks.begin(); block != blocks.end();) {
      block_key const first = block->first;
      redis_order order{.slot = name.slot_of(first), .commands = redis_command({"MULTI"}), .replies = 2};
      for (; block != blocks.end() && block->first.request == first.request && block->first.layer == first.layer; ++block) {
        block_header header{.key = block->first, .write = write};
        header.checksum = checksum_of(header, block->second, bytes_);
        std::memcpy(value.data(), &header, sizeof header);
        std::memcpy(value.data() + sizeof header, block->second, static_cast<std::size_t>(bytes_));
        append_command(order.commands, {"SET", name.of(block->first, write), value, "EX", seconds});
        ++order.replies;
      }
      order.commands += redis_command({"EXEC"});
      if (options_.replicas > 0) {
        ++order.replies;
        order.commands += redis_command(
            {"WAIT", std::to_string(options_.replicas), std::to_string(std::max<long long>(options_.attempt.count() / 2, 1))});
      }
      orders.push_back(std::move(order));
    }
    writers_.run(orders, in_time());
    return std::ranges::all_of(orders, [this](redis_order const& order) { return carried_out(order); });
  }

  bool carried_out(redis_order const& order) const {
    if (!order.done) return false;
    redisReply const& exec = *order.got[order.got.size() - (options_.replicas > 0 ? 2 : 1)];
    if (exec.type != REDIS_REPLY_ARRAY) return false;
    for (std::size_t i = 0; i < exec.elements; ++i) {
      if (exec.element[i]->type != REDIS_REPLY_STATUS) return false;
    }
    redisReply const& copies = *order.got.back();
    return options_.replicas == 0 || (copies.type == REDIS_REPLY_INTEGER && copies.integer >= options_.replicas);
  }

  /// What was replaced, dropped or never acknowledged, but for what a get still reads. Where a server does not answer, it is
  /// told with the next call.
  void erase_old() noexcept {
    try {
      if (old_.empty()) return;
      std::set<named_block> read;
      {
        std::scoped_lock const lock(worker_mutex());
        if (worker_) {
          worker_->each_waiting([&](job const& j) {
            for (wanted const& w : j.blocks) read.insert({w.read.key, w.write});
          });
        }
      }
      auto const end = std::ranges::partition(old_, [&](named_block const& block) { return !read.contains(block); }).begin();
      std::sort(old_.begin(), end);
      std::vector<redis_order> orders;
      std::vector<std::ptrdiff_t> ends;
      block_names name(space_);
      for (auto block = old_.begin(); block != end;) {
        redis_order order{.slot = name.slot_of(block->first)};
        std::vector<std::string> words{"UNLINK"};
        for (; block != end && words.size() <= at_once && name.slot_of(block->first) == order.slot; ++block) {
          words.emplace_back(name.of(block->first, block->second));
        }
        append_command(order.commands, words);
        orders.push_back(std::move(order));
        ends.push_back(block - old_.begin());
      }
      if (orders.empty()) return;
      writers_.run(orders, clock::now() + std::min(options_.deadline, options_.attempt));
      std::vector<named_block> left(end, old_.end());
      for (std::size_t i = 0; i < orders.size(); ++i) {
        if (!orders[i].done) left.insert(left.end(), old_.begin() + (i == 0 ? 0 : ends[i - 1]), old_.begin() + ends[i]);
      }
      old_ = std::move(left);
    } catch (...) {
    }
  }
  std::mutex& worker_mutex() { return worker_ ? worker_->mutex() : no_worker_; }

  /// The worker's: everything is looked at before a destination is written. A layer's blocks are asked for together; what of
  /// them did not come, because their slot is on its way to another node, one by one.
  bool fetch(job const& j) noexcept {
    try {
      replies_.assign(j.blocks.size(), nullptr);
      clock::time_point const deadline = in_time();
      std::vector<redis_order> const all = ask(j, true, deadline);
      std::vector<redis_order> const some = ask(j, false, deadline);
      for (std::size_t i = 0; i < j.blocks.size(); ++i) {
        if (replies_[i] == nullptr || !holds(*replies_[i], j.blocks[i])) return false;
      }
      for (std::size_t i = 0; i < j.blocks.size(); ++i) {
        std::memcpy(j.blocks[i].read.to, replies_[i]->str + sizeof(block_header), static_cast<std::size_t>(bytes_));
      }
      return true;
    } catch (...) {
      return false;
    }
  }

  /// Asks for blocks that have no reply yet; replies_ are the orders'.
  std::vector<redis_order> ask(job const& j, bool together, clock::time_point deadline) {
    std::vector<redis_order> orders;
    std::vector<std::vector<std::size_t>> blocks_of;
    std::map<int, std::size_t> order_of;
    block_names name(space_);
    for (std::size_t i = 0; i < j.blocks.size(); ++i) {
      if (replies_[i] != nullptr) continue;
      wanted const& w = j.blocks[i];
      int const slot = name.slot_of(w.read.key);
      auto const place = together ? order_of.try_emplace(slot, orders.size()).first->second : orders.size();
      if (place == orders.size()) {
        orders.push_back({.slot = slot, .replies = 0, .reads = true});
        blocks_of.emplace_back();
      }
      append_command(orders[place].commands, {"GET", name.of(w.read.key, w.write)});
      ++orders[place].replies;
      blocks_of[place].push_back(i);
    }
    readers_.run(orders, deadline);
    for (std::size_t o = 0; o < orders.size(); ++o) {
      for (std::size_t i = 0; i < blocks_of[o].size() && orders[o].done; ++i) {
        if (redisReply* const reply = orders[o].got[i].get(); reply->type != REDIS_REPLY_ERROR)
          replies_[blocks_of[o][i]] = reply;
      }
    }
    return orders;
  }

  /// Whether it is that write of that block, whole.
  bool holds(redisReply const& reply, wanted const& w) const noexcept {
    if (reply.type != REDIS_REPLY_STRING ||
        std::cmp_not_equal(reply.len, sizeof(block_header) + static_cast<std::size_t>(bytes_)))
      return false;
    block_header header;
    std::memcpy(&header, reply.str, sizeof header);
    auto const* const bytes = reinterpret_cast<std::byte const*>(reply.str) + sizeof header;
    return header.magic == block_header{}.magic && header.key == w.read.key && header.write == w.write &&
           header.checksum == checksum_of(header, bytes, bytes_);
  }

  redis_options options_;
  std::int64_t bytes_;
  std::int64_t capacity_;
  bool shared_;
  std::string space_;
  redis_nodes writers_;
  redis_nodes readers_;               ///< the worker's
  std::vector<redisReply*> replies_;  ///< the worker's, of a job's blocks
  std::uint64_t writes_ = 0;
  std::unordered_map<block_key, std::uint64_t, hash> index_;  ///< what was acknowledged, by which write
  std::vector<named_block> old_;                              ///< blocks that must go
  std::mutex no_worker_;
  std::optional<get_worker<job>> worker_;
};

redis::redis(redis_options options, std::int64_t block_bytes, std::int64_t capacity)
    : store_(std::make_unique<store>(std::move(options), block_bytes, capacity)) {}
redis::~redis() = default;

std::int64_t redis::block_bytes() const noexcept { return store_->bytes(); }
std::int64_t redis::capacity() const noexcept { return store_->capacity(); }
std::string redis::describe() const { return store_->describe(); }
bool redis::put(std::span<block_write const> writes) { return store_->put(writes); }
ticket redis::get(std::span<block_read const> reads) { return store_->get(reads); }
status redis::poll(ticket id) { return store_->poll(id); }
status redis::wait(ticket id, clock::time_point deadline) { return store_->wait(id, deadline); }
void redis::drop(std::span<block_key const> keys) { store_->drop(keys); }
usage redis::occupied() { return store_->occupied(); }

}  // namespace kvpolicy::tiers
