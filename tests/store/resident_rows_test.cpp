// Rows between a store and a tier: whatever is put away, fetched, cut and copied, what a step reads is what was appended.
#include "kvpolicy/store/resident_rows.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "kvpolicy/testing/random_cache.hpp"
#include "kvpolicy/tiers/resident_options.hpp"
#include "tiers/blocks.hpp"

using namespace kvpolicy_test;

namespace {

constexpr std::int64_t longest = 160;
constexpr std::int64_t wanted_at_most = 8;

cache_shape shape_of(random_source& random) {
  return {.layers = random.between(1, 3),
          .q_heads = 2,
          .kv_heads = 2,
          .head_dim = random.between(1, 9),
          .max_tokens = longest,
          .type = random.pick(std::array{element_type::f32, element_type::f16, element_type::bf16})};
}

/// One sequence: its rows, and what they should be.
class sequence {
 public:
  sequence(tiers::any_tier& tier, block_arena& arena, cache_shape const& shape, tiers::resident_options options,
           std::int64_t open, random_source& random)
      : random_(&random),
        shape_(shape),
        options_(options),
        open_(open),
        store_(arena, shape),
        resident_(std::in_place, tier, store_, options),
        heads_(static_cast<std::size_t>(shape.layers * shape.kv_heads)),
        lists_(static_cast<std::size_t>(shape.kv_heads)) {}

  std::int64_t tokens() const { return tokens_; }
  std::int64_t in_tier() const {
    std::int64_t count = 0;
    for (head const& h : heads_) count += std::ssize(h.away);
    return count;
  }
  tiers::resident_statistics const& statistics() const { return resident_->statistics(); }
  row_store const& store() const { return store_; }
  resident_rows& rows() { return *resident_; }

  /// All that is there is read, as attention of a prompt does; then it ends, and some of it is retained.
  void prompt(std::int64_t count) {
    ahead_.clear();
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      append(layer, count);
      resident_->bring(layer);
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        for (auto const& [token, bytes] : at(layer, h).rows)
          check(is_right(layer, h, token), "a layer that was brought lacks a row");
      }
      resident_->shed(layer);
    }
    tokens_ += count;
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      resident_->bring(layer);
      std::array<std::int64_t, 2> stay{};
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        stay[static_cast<std::size_t>(h)] = random_->one_in(6) ? all_tokens : random_->between(0, 5);
        retain_some(layer, h);
      }
      resident_->put_away(layer, {scope::head, lists_, shape_.kv_heads}, tokens_, stay);
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        head& own = at(layer, h);
        own.away.clear();
        for (auto const& [token, bytes] : own.rows) own.away.insert(token);
        for (std::int64_t i = stay[static_cast<std::size_t>(h)]; i > 0 && !own.away.empty(); --i) {
          own.away.erase(std::prev(own.away.end()));
        }
      }
      kept_.push_back(lists_);
    }
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      store_.retain(layer, {scope::head, kept_[static_cast<std::size_t>(layer.value)], shape_.kv_heads}, tokens_);
    }
    kept_.clear();
  }

  /// One token more, and what is chosen is read. Returns how many heads read something else than was chosen.
  std::int64_t step() {
    if (resident_->was_cut()) {
      for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) resident_->bring(layer);
      resident_->mend_cut(open_);
      for (head& h : heads_) {
        for (std::int64_t i = 0; i < open_ && !h.away.empty(); ++i) h.away.erase(std::prev(h.away.end()));
      }
      for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
        for (std::int64_t h = 0; h < shape_.kv_heads; ++h)
          check(last_are_here(layer, h), "behind a cut one of a head's last rows is not in memory");
      }
    }
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) append(layer, 1);
    ++tokens_;
    std::int64_t late = 0;
    std::vector<std::vector<range_list>> const told = std::exchange(ahead_, {});
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      if (!told.empty() && random_->one_in(2)) lists_ = told[static_cast<std::size_t>(layer.value)];
      else wanted(layer);
      late += read(layer, {scope::head, lists_, shape_.kv_heads});
    }
    if (!random_->one_in(3)) return late;
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      resident_->prefetch(layer, wanted(layer));
      ahead_.push_back(lists_);
      prefetched_ = true;
    }
    return late;
  }

  std::int64_t read(layer_id layer, selection const& kept) {
    std::int64_t late = 0;
    auto const before = resident_->statistics();
    selection const reads = resident_->ready(layer, kept);
    std::int64_t named = 0;
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      late += reads.of({h}) == kept.of({h}) ? 0 : 1;
      for (token_range const& range : reads.of({h})) {
        for (std::int32_t t = range.begin; t < range.end; ++t)
          check(is_right(layer, h, t), "a row that is read is not the one");
      }
      for (token_range const& range : kept.of({h})) {
        for (std::int32_t t = range.begin; t < range.end; ++t) named += at(layer, h).away.contains(t) ? 1 : 0;
      }
      check(open_is_here(layer, h), "a row of a unit that is open is not in memory");
      if (options_.slots > 0)
        check(away_and_here(layer, h) <= options_.slots, "more rows of the tier are in memory than slots");
    }
    auto const now = resident_->statistics() - before;
    check(now.wanted == named, "the rows that were wanted are miscounted");
    if (options_.wait) {
      check(late == 0, "a step that waits does not read what was chosen");
      if (!prefetched_) check(now.bytes_fetched == (now.wanted - now.hits) * row_bytes(), "bytes are miscounted");
    }
    return late;
  }

  /// Up to `wanted_at_most` tokens of what a head has in the tier, and any of the others.
  selection wanted(layer_id layer) {
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      range_list& list = lists_[static_cast<std::size_t>(h)];
      list.clear();
      std::int64_t left = random_->between(0, wanted_at_most);
      for (auto const& [token, bytes] : at(layer, h).rows) {
        bool const away = at(layer, h).away.contains(token);
        if (!random_->one_in(3) || (away && left-- <= 0)) continue;
        kvpolicy::append(list, token, token + 1, random_->one_in(4) ? reason::sink : reason::scored);
      }
    }
    return {scope::head, lists_, shape_.kv_heads};
  }

  void cut(std::int64_t tokens) {
    ahead_.clear();
    resident_->truncate(tokens);
    store_.truncate(tokens);
    for (head& h : heads_) {
      h.rows.erase(h.rows.lower_bound(static_cast<std::int32_t>(tokens)), h.rows.end());
      h.away.erase(h.away.lower_bound(static_cast<std::int32_t>(tokens)), h.away.end());
    }
    tokens_ = std::min(tokens_, tokens);
  }

  void become(sequence const& other, std::int64_t tokens) {
    cut(0);
    store_ = other.store_.fork(tokens);
    resident_->take_over(*other.resident_, tokens);
    heads_ = other.heads_;
    tokens_ = other.tokens_;
    cut(tokens);
  }

 private:
  struct head {
    std::map<std::int32_t, std::vector<std::byte>> rows;  ///< all that was not dropped
    std::set<std::int32_t> away;                          ///< of them, those that the tier should have
  };
  std::int64_t row_bytes() const { return row_store::row_bytes(shape_, shape_.type); }
  head& at(layer_id layer, std::int64_t h) { return heads_[static_cast<std::size_t>(layer.value * shape_.kv_heads + h)]; }

  void append(layer_id layer, std::int64_t count) {
    std::int64_t const row = row_bytes() / 2;
    std::vector<std::byte> bytes(static_cast<std::size_t>(2 * count * shape_.kv_heads * row));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random_->between(0, 255));
    kvpolicy::rows keys{.base = bytes.data(),
                        .type = shape_.type,
                        .heads = shape_.kv_heads,
                        .tokens = count,
                        .head_dim = shape_.head_dim,
                        .head_stride = count * row,
                        .token_stride = row,
                        .dim_stride = size_of(shape_.type)};
    kvpolicy::rows values = keys;
    values.base += count * shape_.kv_heads * row;
    std::int64_t const before = store_.tokens(layer);
    store_.append(layer, keys, values);
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      for (std::int64_t t = 0; t < count; ++t) {
        std::vector<std::byte>& both = at(layer, h).rows[static_cast<std::int32_t>(before + t)];
        both.assign(keys.address({h}, {t}), keys.address({h}, {t}) + row);
        both.insert(both.end(), values.address({h}, {t}), values.address({h}, {t}) + row);
      }
    }
  }

  void retain_some(layer_id layer, std::int64_t h) {
    head& own = at(layer, h);
    if (!random_->one_in(3)) {
      std::erase_if(own.rows, [&](auto const&) { return random_->one_in(7); });
    }
    range_list& list = lists_[static_cast<std::size_t>(h)];
    list.clear();
    for (auto const& [token, bytes] : own.rows) kvpolicy::append(list, token, token + 1, reason::scored);
  }

  bool is_right(layer_id layer, std::int64_t h, std::int32_t token) {
    auto const expected = at(layer, h).rows.find(token);
    std::byte const* const row = store_.row(layer, h, token);
    return expected != at(layer, h).rows.end() && row != nullptr &&
           std::memcmp(row, expected->second.data(), expected->second.size()) == 0 &&
           store_.view(tokens_).keys(layer).address({h}, {token}) == row;
  }
  bool open_is_here(layer_id layer, std::int64_t h) {
    return std::ranges::all_of(at(layer, h).rows, [&](auto const& row) {
      return at(layer, h).away.contains(row.first) || store_.row(layer, h, row.first) != nullptr;
    });
  }
  /// The last `open_` rows, which steps look at whatever is chosen.
  bool last_are_here(layer_id layer, std::int64_t h) {
    auto const last = std::views::take(std::views::reverse(at(layer, h).rows), open_);
    return std::ranges::all_of(last, [&](auto const& row) { return store_.row(layer, h, row.first) != nullptr; });
  }
  std::int64_t away_and_here(layer_id layer, std::int64_t h) {
    return std::ranges::count_if(at(layer, h).away, [&](std::int32_t t) { return store_.row(layer, h, t) != nullptr; });
  }

  random_source* random_;
  cache_shape shape_;
  tiers::resident_options options_;
  std::int64_t open_;
  row_store store_;
  std::optional<resident_rows> resident_;
  std::vector<head> heads_;
  std::vector<range_list> lists_;
  std::vector<std::vector<range_list>> kept_;
  std::vector<std::vector<range_list>> ahead_;  ///< `[layers]` what the next step may read, by prefetch(); or none
  bool prefetched_ = false;
  std::int64_t tokens_ = 0;
};

/// What all of a case's sequences share.
template <class Made>
struct workplace {
  random_source random;
  cache_shape shape = shape_of(random);
  Made made;
  tiers::any_tier tier = lend(made.tier);
  block_arena arena;

  explicit workplace(std::uint64_t seed)
      : random(seed),
        made(row_store::row_bytes(shape, shape.type), 3 * shape.layers * shape.kv_heads * longest, seed),
        arena(row_store::block_bytes(shape), 4 * shape.layers * shape.kv_heads * (longest / row_store::rows_of_block + 1)) {}
  std::unique_ptr<sequence> start(tiers::resident_options options, std::int64_t open) {
    return std::make_unique<sequence>(tier, arena, shape, options, open, random);
  }
};

/// Random calls on two sequences. Returns how many heads read late.
template <class Made>
std::int64_t random_calls(std::uint64_t seed, bool wait) {
  CAPTURE(seed, wait);
  workplace<Made> here(seed);
  random_source& random = here.random;
  std::int64_t late = 0;
  {
    std::int64_t const slots = random.one_in(2) ? 0 : (wait ? 1 : 3) * wanted_at_most + random.between(0, 8);
    std::int64_t const open = random.between(0, 5);
    std::array<std::unique_ptr<sequence>, 2> all;
    std::uint64_t id = 7;
    for (auto& s : all) s = here.start({.request = id++, .slots = slots, .wait = wait}, open);
    for (int calls = 0; calls < 40; ++calls) {
      sequence& s = *all[static_cast<std::size_t>(random.between(0, 1))];
      switch (random.between(0, 11)) {
        case 0:
        case 1:
          if (s.tokens() < longest - 40) s.prompt(random.between(1, 40));
          break;
        case 2:
          s.cut(random.between(0, s.tokens()));
          break;
        case 3: {
          sequence& other = *all[&s == all[0].get() ? 1 : 0];
          s.become(other, random.between(0, other.tokens()));
          break;
        }
        default:
          if (s.tokens() > 0 && s.tokens() < longest) late += s.step();
          break;
      }
      check(adds_up(here.made.tier), "free, resident and in flight do not add up to the capacity");
      if (here.made.tier.occupied().in_flight == 0) {
        check(here.made.tier.occupied().resident == all[0]->in_tier() + all[1]->in_tier(),
              "the tier has other rows than it should");
      }
    }
  }
  check(here.made.tier.occupied().resident == 0, "blocks stay in the tier after their sequence");
  check(here.arena.held() == 0, "blocks stay in the arena after their sequence");
  return late;
}

constexpr std::uint64_t seeds = quick_build ? 300 : 40;

}  // namespace

TEMPLATE_TEST_CASE("what a step reads is what was appended, wherever it was in between", "", of_fake, of_same_memory, of_host) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) random_calls<TestType>(seed, true);
}

TEMPLATE_TEST_CASE("a step that does not wait reads what is there, and that is right", "", of_fake, of_host) {
  std::int64_t late = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) late += random_calls<TestType>(seed, false);
  if (std::is_same_v<TestType, of_fake>) CHECK(late > 100);
}
