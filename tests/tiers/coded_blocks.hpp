// A tier with a codec for the suites: blocks of any bytes as numbers that the codec keeps as they are.
#pragma once

#include "kvpolicy/tiers/coded.hpp"
#include "tiers/blocks.hpp"

namespace kvpolicy_test {

/// Each byte is two numbers -8 to 7; and of every 32 numbers one, -8 or 127, makes the scale 1.
class numbers_tier {
 public:
  numbers_tier(std::int64_t bytes, kvpolicy::element_type as, auto make_inner)
      : bytes_(bytes),
        as_(as),
        elements_((2 * bytes + 30) / 31 * 32),
        tier_(make_inner(tiers::coded::stored_bytes(elements_, as)), elements_, kvpolicy::element_type::f32, as) {}

  std::int64_t block_bytes() const { return bytes_; }
  std::int64_t capacity() const { return tier_.capacity(); }
  bool put(std::span<tiers::block_write const> writes) {
    std::vector<float> numbers(writes.size() * static_cast<std::size_t>(elements_));
    std::vector<tiers::block_write> coded;
    for (std::size_t w = 0; w < writes.size(); ++w) {
      float* const to = numbers.data() + w * static_cast<std::size_t>(elements_);
      for (std::int64_t i = 0; i < elements_; ++i) to[i] = i % 32 == 31 ? top() : 0;
      for (std::int64_t n = 0; n < 2 * bytes_; ++n) to[place(n)] = static_cast<float>(nibble(writes[w].from, n)) - 8;
      coded.push_back({writes[w].key, reinterpret_cast<std::byte const*>(to)});
    }
    return tier_.put(coded);
  }
  tiers::ticket get(std::span<tiers::block_read const> reads) {
    flight one{.id = 0, .numbers = std::vector<float>(reads.size() * static_cast<std::size_t>(elements_)), .to = {}};
    std::vector<tiers::block_read> coded;
    for (tiers::block_read const& r : reads) {
      float* const to = one.numbers.data() + one.to.size() * static_cast<std::size_t>(elements_);
      coded.push_back({r.key, reinterpret_cast<std::byte*>(to)});
      one.to.push_back(r.to);
    }
    one.id = tier_.get(coded);
    flights_.push_back(std::move(one));
    return flights_.back().id;
  }
  tiers::status poll(tiers::ticket id) { return ended(id, tier_.poll(id)); }
  tiers::status wait(tiers::ticket id, tiers::clock::time_point deadline) { return ended(id, tier_.wait(id, deadline)); }
  void drop(std::span<tiers::block_key const> keys) { tier_.drop(keys); }
  tiers::usage occupied() { return tier_.occupied(); }

 private:
  struct flight {
    tiers::ticket id;
    std::vector<float> numbers;
    std::vector<std::byte*> to;
  };

  float top() const { return as_ == kvpolicy::element_type::q8_0 ? 127.0f : -8.0f; }
  static std::int64_t place(std::int64_t n) { return n / 31 * 32 + n % 31; }
  static unsigned nibble(std::byte const* from, std::int64_t n) {
    return static_cast<unsigned>(from[n / 2]) >> (n % 2 * 4) & 15;
  }
  tiers::status ended(tiers::ticket id, tiers::status how) {
    auto const at = std::ranges::find(flights_, id, &flight::id);
    if (how == tiers::status::pending || at == flights_.end()) return how;
    for (std::size_t r = 0; r < at->to.size() && how == tiers::status::done; ++r) {
      float const* const from = at->numbers.data() + r * static_cast<std::size_t>(elements_);
      for (std::int64_t b = 0; b < bytes_; ++b) {
        auto const low = static_cast<unsigned>(from[place(2 * b)] + 8);
        auto const high = static_cast<unsigned>(from[place(2 * b + 1)] + 8);
        at->to[r][b] = static_cast<std::byte>(low | high << 4);
      }
    }
    flights_.erase(at);
    return how;
  }

  std::int64_t bytes_;
  kvpolicy::element_type as_;
  std::int64_t elements_;
  std::vector<flight> flights_;
  tiers::coded tier_;
};

/// On host memory, and on a tier whose gets end in any order.
template <kvpolicy::element_type As>
struct of_coded_host {
  static constexpr bool may_fail = false;
  static constexpr std::int64_t weight = 10;
  numbers_tier tier;
  of_coded_host(std::int64_t bytes, std::int64_t capacity, std::uint64_t seed)
      : tier(bytes, As, [&](std::int64_t stored) {
          return tiers::any_tier::of<tiers::host>(stored, capacity, seed % 4 == 0 ? 256 << 10 : 0);
        }) {}
};
using of_host_q8_0 = of_coded_host<kvpolicy::element_type::q8_0>;
using of_host_q4_0 = of_coded_host<kvpolicy::element_type::q4_0>;
struct of_fake_q8_0 {
  static constexpr bool may_fail = true;
  static constexpr std::int64_t weight = 10;
  numbers_tier tier;
  of_fake_q8_0(std::int64_t bytes, std::int64_t capacity, std::uint64_t seed)
      : tier(bytes, kvpolicy::element_type::q8_0, [&](std::int64_t stored) {
          return tiers::any_tier::of<fake_tier>(stored, capacity,
                                                fake_options{.seed = seed,
                                                             .most_polls = static_cast<std::int64_t>(seed % 9),
                                                             .puts_fail_one_in = 8,
                                                             .gets_missed_one_in = 8});
        }) {}
};

}  // namespace kvpolicy_test
