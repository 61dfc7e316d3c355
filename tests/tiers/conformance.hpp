// What every tier promises, as checks that are templates over how the tier is made.
#pragma once

#include <array>
#include <map>
#include <optional>

#include "tiers/blocks.hpp"

namespace kvpolicy_test {

/// Random operations on a tier and on a std::map, compared after each.
template <class Tier>
class against_a_map {
 public:
  against_a_map(Tier& t, random_source& random, bool may_fail)
      : tier_(&t), random_(&random), may_fail_(may_fail), scratch_(static_cast<std::size_t>(t.block_bytes())) {
    for (pending& p : pending_) p.to.resize(most * scratch_.size());
    sources_.resize(most * scratch_.size());
  }

  void step() {
    std::int64_t const what = random_->between(0, 9);
    if (what < 3) put();
    else if (what < 6) get();
    else if (what < 7) drop();
    else end_one(random_->one_in(4));
    check(adds_up(*tier_), "free, resident and in flight do not add up to the capacity");
  }

  /// Everything in flight ends; then the tier holds what the map does, and nothing else.
  void finish() {
    for (pending& p : pending_) {
      if (p.id != 0) end(p, tier_->wait(p.id, soon()));
    }
    tiers::usage const use = tier_->occupied();
    check(use.in_flight == 0, "something is in flight still");
    check(use.resident == std::ssize(map_), "the tier counts other blocks than were put");
    for (auto const& [key, version] : map_) {
      bool const right = reads_as(*tier_, key, version);
      check(right || may_fail_, "a block that was put is not there");
    }
  }

  std::int64_t blocks_read() const { return blocks_read_; }

 private:
  static constexpr std::size_t most = 6;
  struct pending {
    tiers::ticket id = 0;
    bool complete = false;
    std::vector<tiers::block_read> reads;
    std::vector<std::uint64_t> versions;
    std::vector<std::byte> to;
  };

  tiers::block_key any_key() {
    std::int64_t const n = random_->between(0, 95);
    return {.request = static_cast<std::uint64_t>(n % 3),
            .layer = static_cast<std::int32_t>(n / 3 % 2),
            .head = static_cast<std::int32_t>(n / 6 % 2),
            .position = static_cast<std::int32_t>(n / 12 % 4),
            .generation = static_cast<std::uint32_t>(n / 48)};
  }
  std::byte* source(std::size_t i) { return sources_.data() + i * scratch_.size(); }

  void put() {
    writes_.clear();
    fresh_.clear();
    std::size_t const count = static_cast<std::size_t>(random_->between(random_->one_in(50) ? 0 : 1, most));
    for (std::size_t i = 0; i < count; ++i) {
      tiers::block_key const key = any_key();
      fill_block(key, ++version_, {source(i), scratch_.size()});
      writes_.push_back({key, source(i)});
      fresh_[key] = version_;  // of two with one key, the later
    }
    std::int64_t added = 0;
    for (auto const& [key, version] : fresh_) added += map_.contains(key) ? 0 : 1;
    bool const fits = std::ssize(writes_) <= tier_->occupied().free;
    bool const accepted = tier_->put(writes_);
    std::ranges::fill(sources_, std::byte{0x77});  // sources are free again
    check(accepted || may_fail_ || !fits, "a put was refused though there is room");
    check(!accepted || std::ssize(map_) + added <= tier_->capacity(), "more blocks were accepted than there is room for");
    if (!accepted) return;
    for (auto const& [key, version] : fresh_) map_[key] = version;
  }

  void get() {
    pending& p = pending_[static_cast<std::size_t>(random_->between(0, std::ssize(pending_) - 1))];
    if (p.id != 0) end(p, tier_->wait(p.id, soon()));
    p.reads.clear();
    p.versions.clear();
    p.complete = true;
    std::ranges::fill(p.to, untouched_byte);
    std::size_t const count = static_cast<std::size_t>(random_->between(1, most));
    bool const only_known = !random_->one_in(3) && !map_.empty();
    for (std::size_t i = 0; i < count; ++i) {
      tiers::block_key key = any_key();
      if (only_known) {
        auto found = map_.lower_bound(key);
        key = found == map_.end() ? map_.begin()->first : found->first;
      }
      auto const known = map_.find(key);
      p.complete = p.complete && known != map_.end();
      p.versions.push_back(known == map_.end() ? 0 : known->second);
      p.reads.push_back({key, p.to.data() + i * scratch_.size()});
    }
    p.id = tier_->get(p.reads);
    check(p.id != 0, "0 is no ticket");
  }

  void drop() {
    tiers::block_key const key = any_key();
    drop_one(*tier_, key);
    map_.erase(key);
  }

  void end_one(bool wait) {
    pending& p = pending_[static_cast<std::size_t>(random_->between(0, std::ssize(pending_) - 1))];
    if (p.id != 0) end(p, wait ? tier_->wait(p.id, soon()) : tier_->poll(p.id));
  }

  void end(pending& p, tiers::status result) {
    if (result == tiers::status::pending) return;
    p.id = 0;
    if (result == tiers::status::missed) {
      check(may_fail_ || !p.complete, "a get missed what is there");
      check(untouched(p.to), "a get that missed wrote to its destinations");
      return;
    }
    check(p.complete, "a get of blocks that are not there is no miss");
    for (std::size_t i = 0; i < p.reads.size(); ++i) {
      check(holds_block(p.reads[i].to, p.reads[i].key, p.versions[i], scratch_), "a block was read that is another one's");
    }
    check(untouched(std::span(p.to).subspan(p.reads.size() * scratch_.size())), "a get wrote behind its destinations");
    blocks_read_ += std::ssize(p.reads);
  }

  Tier* tier_;
  random_source* random_;
  bool may_fail_;
  std::vector<std::byte> scratch_;
  std::vector<std::byte> sources_;
  std::vector<tiers::block_write> writes_;
  std::map<tiers::block_key, std::uint64_t> fresh_;
  std::map<tiers::block_key, std::uint64_t> map_;
  std::array<pending, 5> pending_;
  std::uint64_t version_ = 0;
  std::int64_t blocks_read_ = 0;
};

template <class Made>
std::int64_t behaves_as_a_map(std::uint64_t seeds, std::int64_t operations) {
  std::int64_t read = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    random_source random(seed);
    Made made(random.between(1, 40), random.between(6, 60), seed);
    against_a_map model(made.tier, random, Made::may_fail);
    for (std::int64_t i = 0; i < operations; ++i) model.step();
    model.finish();
    read += model.blocks_read();
  }
  return read;
}

/// 64 tenants take each other's room all the time, and nobody reads what is not his.
template <class Made>
void keeps_tenants_apart(std::int64_t blocks) {
  constexpr std::int64_t capacity = 2048;
  constexpr std::size_t batch = 32;
  random_source random(7);
  Made made(48, capacity, 7);
  std::vector<std::byte> scratch(48);
  std::vector<std::byte> bytes(batch * 48);
  std::vector<tiers::block_key> there;
  std::uint32_t generation = 0;
  std::int64_t read = 0;
  while (read < blocks) {
    while (made.tier.occupied().free < std::ssize(scratch) + capacity / 8) {  // somebody is evicted, or aborts
      auto const i = static_cast<std::size_t>(random.between(0, std::ssize(there) - 1));
      drop_one(made.tier, there[i]);
      check(is_miss(made.tier, there[i]), "what was dropped is there");
      there[i] = there.back();
      there.pop_back();
    }
    ++generation;
    std::vector<tiers::block_write> writes;
    for (std::size_t i = 0; i < batch; ++i) {
      tiers::block_key const key{static_cast<std::uint64_t>(random.between(0, 63)),
                                 static_cast<std::int32_t>(random.between(0, 3)),
                                 static_cast<std::int32_t>(random.between(0, 3)), static_cast<std::int32_t>(i), generation};
      fill_block(key, 0, {bytes.data() + i * 48, 48});
      writes.push_back({key, bytes.data() + i * 48});
    }
    check(made.tier.put(writes), "a put was refused though there is room");
    for (auto const& w : writes) there.push_back(w.key);
    for (int rounds = 0; rounds < 16; ++rounds) {
      std::vector<tiers::block_read> reads;
      for (std::size_t i = 0; i < batch; ++i) {
        reads.push_back({there[static_cast<std::size_t>(random.between(0, std::ssize(there) - 1))], bytes.data() + i * 48});
      }
      check(made.tier.wait(made.tier.get(reads), soon()) == tiers::status::done, "what was put is not there");
      for (auto const& r : reads) check(holds_block(r.to, r.key, 0, scratch), "foreign bytes");
      read += std::ssize(reads);
    }
    check(adds_up(made.tier), "free, resident and in flight do not add up to the capacity");
  }
}

/// A key that differs in one field only, in any of them, is another block.
template <class Made>
void tells_every_field(std::int64_t keys) {
  random_source random(3);
  Made made(24, keys, 3);
  auto const word = [&] { return static_cast<std::int32_t>(random.between(INT32_MIN, INT32_MAX)); };
  for (std::int64_t i = 0; i < keys; ++i) {
    tiers::block_key const key{static_cast<std::uint64_t>(random.between(0, INT64_MAX - 1)), word(), word(), word(),
                               static_cast<std::uint32_t>(word())};
    check(put_one(made.tier, key, 5), "a put was refused though there is room");
    for (int bit : {0, 1, 7, 16, 31}) {
      auto const flip = std::int32_t{1} << (bit % 31);
      tiers::block_key k = key;
      k.request ^= std::uint64_t{1} << bit;
      check(is_miss(made.tier, k), "another request's block is no miss");
      k = key;
      k.request ^= std::uint64_t{1} << (63 - bit);
      check(is_miss(made.tier, k), "another request's block is no miss");
      k = key;
      k.layer ^= flip;
      check(is_miss(made.tier, k), "another layer's block is no miss");
      k = key;
      k.head ^= flip;
      check(is_miss(made.tier, k), "another head's block is no miss");
      k = key;
      k.position ^= flip;
      check(is_miss(made.tier, k), "another position's block is no miss");
      k = key;
      k.generation ^= std::uint32_t{1} << bit;
      check(is_miss(made.tier, k), "another generation's block is no miss");
    }
    check(is_miss(made.tier, {key.request, key.head, key.layer, key.position, key.generation}) || key.head == key.layer,
          "layer and head are mixed up");
    check(reads_as(made.tier, key, 5), "a block that was put is not there");
  }
}

/// What a get has begun to read stays as it was for that get, whatever happens to its keys.
template <class Made>
void holds_what_is_read() {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    constexpr std::int64_t bytes = 1 << 18;
    Made made(bytes, 4, seed);
    tiers::block_key const a{1, 0, 0, 0, 1};
    tiers::block_key const b{2, 0, 0, 0, 1};
    REQUIRE((put_one(made.tier, a, 1) && put_one(made.tier, b, 1)));
    std::vector<std::byte> to(2 * bytes, untouched_byte);
    std::array const reads{tiers::block_read{a, to.data()}, tiers::block_read{b, to.data() + bytes}};
    tiers::ticket const id = made.tier.get(reads);
    drop_one(made.tier, a);
    CHECK(adds_up(made.tier));
    CHECK(put_one(made.tier, b, 2));
    CHECK(adds_up(made.tier));
    // Room for one more at least; where the get is under way, not for two.
    std::int64_t accepted = 0;
    for (std::uint64_t i = 3; i < 9; ++i) accepted += put_one(made.tier, {i, 0, 0, 0, 1}, 1) ? 1 : 0;
    CHECK(accepted >= 1);
    CHECK(accepted <= 3);
    CHECK(adds_up(made.tier));
    REQUIRE(made.tier.wait(id, soon()) == tiers::status::done);
    CHECK((std::equal(to.begin(), to.begin() + bytes, block_of(a, 1, bytes).begin()) &&
           std::equal(to.begin() + bytes, to.end(), block_of(b, 1, bytes).begin())));
    CHECK(adds_up(made.tier));
    CHECK(made.tier.occupied().in_flight == 0);
    CHECK(is_miss(made.tier, a));
    CHECK(reads_as(made.tier, b, 2));
  }
}

/// One block that is not there makes the whole batch a miss, wherever in it that block is.
template <class Made>
void takes_all_or_nothing() {
  for (std::int64_t size : {1, 2, 3, 16}) {
    Made made(100, 64, 1);
    for (std::int32_t i = 0; i < size; ++i) REQUIRE(put_one(made.tier, {1, 0, 0, i, 1}, 1));
    for (std::int32_t absent = 0; absent < size; ++absent) {
      std::vector<std::byte> to(static_cast<std::size_t>(size * 100), untouched_byte);
      std::vector<tiers::block_read> reads;
      for (std::int32_t i = 0; i < size; ++i) {
        reads.push_back({{1, 0, 0, i == absent ? 1000 : i, 1}, to.data() + std::int64_t{i} * 100});
      }
      CHECK(made.tier.wait(made.tier.get(reads), soon()) == tiers::status::missed);
      CHECK(untouched(to));
      CHECK(made.tier.occupied().in_flight == 0);
    }
    // A batch that is too large changes nothing, not even the keys of it that were there.
    std::vector<std::byte> const bytes(100, std::byte{1});
    std::vector<tiers::block_write> writes;
    for (std::int32_t i = 0; i < 65; ++i) writes.push_back({{1, 0, 0, i, 1}, bytes.data()});
    CHECK_FALSE(made.tier.put(writes));
    CHECK(made.tier.occupied().resident == size);
    CHECK(made.tier.occupied().free == 64 - size);
    for (std::int32_t i = 0; i < 65; ++i) {
      CHECK((i < size ? reads_as(made.tier, {1, 0, 0, i, 1}, 1) : is_miss(made.tier, {1, 0, 0, i, 1})));
    }
  }
}

/// Tickets: told once, in any order; a deadline that has passed is no reason to hang.
template <class Made>
void tells_every_ticket_once() {
  Made made(64, 8, 5);
  tiers::block_key const key{1, 2, 3, 4, 5};
  REQUIRE(put_one(made.tier, key, 1));
  std::vector<std::byte> to(20 * 64, untouched_byte);
  std::vector<tiers::ticket> ids;
  for (std::size_t i = 0; i < 20; ++i) {
    tiers::block_read const read{i % 3 == 2 ? tiers::block_key{} : key, to.data() + i * 64};
    ids.push_back(made.tier.get({&read, 1}));
  }
  for (std::size_t i = 20; i-- > 0;) {
    tiers::status result = made.tier.wait(ids[i], tiers::clock::now() - std::chrono::seconds(1));
    while (result == tiers::status::pending) result = made.tier.poll(ids[i]);
    CHECK(result == (i % 3 == 2 ? tiers::status::missed : tiers::status::done));
    CHECK_THROWS_AS(made.tier.poll(ids[i]), kvpolicy::invalid_value);
    CHECK_THROWS_AS(made.tier.wait(ids[i], soon()), kvpolicy::invalid_value);
  }
  CHECK_THROWS_AS(made.tier.poll(0), kvpolicy::invalid_value);
  tiers::ticket const empty = made.tier.get({});
  CHECK(made.tier.wait(empty, soon()) == tiers::status::done);
  CHECK(made.tier.put({}));
  CHECK(made.tier.occupied().resident == 1);
}

}  // namespace kvpolicy_test
