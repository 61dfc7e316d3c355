#include "kvpolicy/detail/element.hpp"

#include <array>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstring>

#include "conformance/executors.hpp"
#include "conformance/random_cache.hpp"
#include "conformance/rounds.hpp"
#include "kvpolicy/concepts.hpp"

namespace kvpolicy_test {
namespace {

constexpr std::array block_types{element_type::q8_0, element_type::q4_0, element_type::q4_1,
                                 element_type::q5_0, element_type::q5_1, element_type::iq4_nl};

/// A block's bytes from what its elements shall be, written down from the formats' descriptions.
class block_writer {
 public:
  block_writer(element_type type, random_source& random, content kind) : type_(type) {
    scale_ = kind == content::plain ? .02f * random.real() : static_cast<float>(random.between(0, 2));
    if (kind == content::nan && random.one_in(4)) scale_ = std::numeric_limits<float>::quiet_NaN();
    if (kind == content::infinite && random.one_in(4)) scale_ = std::numeric_limits<float>::infinity();
    if (kind == content::denormal) scale_ = 3e-7f;
    scale_ = half_to_float(float_to_half(scale_));
    minimum_ = half_to_float(float_to_half(random.real()));
    for (int& code : codes_) code = static_cast<int>(random.between(0, type == element_type::q8_0 ? 255 : five() ? 31 : 15));
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> made;
    auto const put_half = [&](float value) {
      std::uint16_t const bits = float_to_half(value);
      made.push_back(static_cast<std::byte>(bits & 0xff));
      made.push_back(static_cast<std::byte>(bits >> 8));
    };
    put_half(scale_);
    if (has_minimum()) put_half(minimum_);
    if (five()) {
      std::uint32_t fifths = 0;
      for (std::uint32_t i = 0; i < 32; ++i) fifths |= static_cast<std::uint32_t>(codes_[i] / 16) << i;
      for (int b = 0; b < 4; ++b) made.push_back(static_cast<std::byte>(fifths >> (8 * b) & 0xff));
    }
    if (type_ == element_type::q8_0) {
      for (int const code : codes_) made.push_back(static_cast<std::byte>(code));
    } else {
      for (std::size_t i = 0; i < 16; ++i) made.push_back(static_cast<std::byte>(codes_[i] % 16 + codes_[i + 16] % 16 * 16));
    }
    return made;
  }

  float element(std::size_t i) const {
    int const code = codes_[i];
    if (type_ == element_type::q8_0) return scale_ * static_cast<float>(code < 128 ? code : code - 256);
    if (type_ == element_type::iq4_nl) return scale_ * static_cast<float>(iq4_nl_values[static_cast<std::size_t>(code)]);
    if (has_minimum()) return scale_ * static_cast<float>(code) + minimum_;
    return scale_ * static_cast<float>(code - (five() ? 16 : 8));
  }

 private:
  bool five() const { return type_ == element_type::q5_0 || type_ == element_type::q5_1; }
  bool has_minimum() const { return type_ == element_type::q4_1 || type_ == element_type::q5_1; }

  element_type type_;
  float scale_ = 0;
  float minimum_ = 0;
  std::array<int, 32> codes_{};
};

/// Rows in blocks, `[tokens, heads, head_dim]` as in llama.cpp's cells, perhaps in shuffled pages, and the same as floats.
class block_rows {
 public:
  block_rows(element_type type, cache_shape const& shape, random_source& random, content kind)
      : type_(type), shape_(shape), pages_(static_cast<std::size_t>(shape.max_tokens)) {
    std::iota(pages_.begin(), pages_.end(), 0);
    if (random.one_in(2)) {
      for (std::size_t i = pages_.size(); i > 1; --i)
        std::swap(pages_[i - 1], pages_[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
    }
    bytes_.resize(static_cast<std::size_t>(shape.max_tokens * token_bytes()));
    for (std::int64_t t = 0; t < shape.max_tokens; ++t) {
      for (std::int64_t b = 0; b < shape.kv_heads * shape.head_dim / 32; ++b) {
        block_writer const block(type, random, kind);
        std::vector<std::byte> const coded = block.bytes();
        REQUIRE(std::ssize(coded) == size_of(type));
        std::ranges::copy(coded, bytes_.begin() + pages_[static_cast<std::size_t>(t)] * token_bytes() + b * size_of(type));
        for (std::size_t i = 0; i < 32; ++i) floats_.push_back(block.element(i));
      }
    }
  }

  rows coded() const {
    return {.base = bytes_.data(),
            .type = type_,
            .heads = shape_.kv_heads,
            .tokens = shape_.max_tokens,
            .head_dim = shape_.head_dim,
            .head_stride = bytes_of(type_, shape_.head_dim),
            .token_stride = 0,
            .dim_stride = size_of(type_),
            .pages = pages_.data(),
            .page_size = 1,
            .page_stride = token_bytes()};
  }
  rows plain() const {
    return {.base = reinterpret_cast<std::byte const*>(floats_.data()),
            .type = element_type::f32,
            .heads = shape_.kv_heads,
            .tokens = shape_.max_tokens,
            .head_dim = shape_.head_dim,
            .head_stride = shape_.head_dim * 4,
            .token_stride = shape_.kv_heads * shape_.head_dim * 4,
            .dim_stride = 4};
  }

 private:
  std::int64_t token_bytes() const { return bytes_of(type_, shape_.kv_heads * shape_.head_dim); }

  element_type type_;
  cache_shape shape_;
  std::vector<std::int32_t> pages_;
  std::vector<std::byte> bytes_;
  std::vector<float> floats_;
};

cache_shape some_shape(random_source& random, std::int64_t most) {
  cache_shape shape{.layers = 1, .kv_heads = random.between(1, 3), .head_dim = 32 * random.between(1, 4)};
  shape.q_heads = shape.kv_heads * random.between(1, 5);
  shape.max_tokens = random.between(1, most);
  return shape;
}

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b)); }

TEST_CASE("an element of a block is what was written into it", "[rows]") {
  random_source random(301);
  for (element_type const type : block_types) {
    for (content const kind : contents) {
      cache_shape const shape = some_shape(random, 9);
      block_rows const made(type, shape, random, kind);
      std::vector<float> coded(static_cast<std::size_t>(shape.head_dim));
      std::vector<float> plain(coded.size());
      bool equal = true;
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        for (std::int64_t t = 0; t < shape.max_tokens; ++t) {
          made.coded().load({h}, {t}, coded);
          made.plain().load({h}, {t}, plain);
          for (std::size_t i = 0; i < coded.size(); ++i) equal = equal && same(coded[i], plain[i]);
        }
      }
      INFO(name_of(type));
      REQUIRE(equal);
    }
  }
}

/// Numbers that a primitive computed: each close to the other's, and NaN where that is.
void require_close(std::vector<float> const& got, std::vector<float> const& want, double tolerance, char const* what) {
  INFO(what);
  REQUIRE(got.size() == want.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (same(got[i], want[i])) continue;
    double const error =
        std::abs(static_cast<double>(got[i]) - want[i]) / std::max(1.0, static_cast<double>(std::abs(want[i])));
    worst = std::isnan(error) ? 1e9 : std::max(worst, error);
  }
  REQUIRE(worst <= tolerance);
}

/// What every primitive that reads rows makes of them, by name.
template <class Exec>
std::vector<std::pair<char const*, std::vector<float>>> all_of(rows const& keys, rows const& values, cache_shape const& shape,
                                                               std::vector<float> const& vectors, Exec& exec) {
  std::int64_t const n = shape.max_tokens;
  std::int64_t const dim = shape.head_dim;
  std::vector<std::pair<char const*, std::vector<float>>> made;
  auto const room = [&](char const* name, std::int64_t rows, std::int64_t columns) {
    made.emplace_back(name, std::vector<float>(static_cast<std::size_t>(rows * columns)));
    return table<float>{made.back().second.data(), rows, columns, columns};
  };
  query_heads const heads{vectors.data(), shape.q_heads, dim, .2f};
  std::int64_t const window_tokens = std::min<std::int64_t>(n, 3);
  query_window const window{vectors.data(), window_tokens, shape.q_heads, shape.q_heads * dim, dim, .2f};
  std::int64_t const unit = 5;
  std::int64_t const units = (n + unit - 1) / unit;
  std::vector<range_list> lists{{}};
  for (std::int32_t t = 0; t < n; t += 3) append(lists[0], t, std::min<std::int64_t>(n, t + 2), reason::open);
  selection const kept(scope::layer, lists, shape.kv_heads);

  exec.pool_mean(keys, {unit, 0, n / 2}, room("pool_mean", units, shape.kv_heads * dim), 0);
  exec.pool_mean(keys, {unit, n / 2, n}, {made.back().second.data(), units, shape.kv_heads * dim, shape.kv_heads * dim}, 0);
  std::vector<std::byte> storage(static_cast<std::size_t>(shape.kv_heads * units * 2 * dim * 2));
  bounds_table const bounds{storage.data(), element_type::f16, shape.kv_heads, units, dim};
  auto const read_bounds = [&](char const* name) {
    table<float> const to = room(name, shape.kv_heads * units * 2, dim);
    for (std::int64_t i = 0; i < to.rows * dim; ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, storage.data() + i * 2, sizeof half);
      to.data[i] = half_to_float(half);
    }
  };
  exec.pool_bounds(keys, {unit, 0, n / 2}, bounds);
  exec.pool_bounds(keys, {unit, n / 2, n}, bounds);
  read_bounds("pool_bounds");
  table<float> const moments = room("moments", shape.kv_heads * units * 2, dim);
  exec.pool_mean_deviation(keys, {unit, 0, n}, moments.data, bounds);
  if (n > window_tokens) {
    exec.window_attention(window, keys, {}, room("window_attention", shape.kv_heads, n - window_tokens));
    following_queries(window, n - window_tokens, keys, 0, n, 4, nullptr, room("following_queries", shape.kv_heads, n), exec);
  }
  seen_attention(window, keys, room("seen_attention", shape.kv_heads, n), exec);
  exec.list_attention(heads, keys, lists, group_merge::mean, room("list_attention", shape.kv_heads, token_count(lists[0])));
  row_norms(keys, room("row_norms", shape.kv_heads, n), exec);
  key_similarity(keys, room("key_similarity", shape.kv_heads, n), exec);
  table<float const> const mean{vectors.data(), shape.q_heads, dim, dim};
  gaussian_attention(keys, {.mean = mean, .covariance = {}, .scale = .2f}, 0, room("gaussian_attention", shape.kv_heads, n),
                     exec);
  if (n >= 4) partition_deviation(values, {0, 1, n / 2}, room("partition_deviation", shape.kv_heads, n / 2), exec);
  exec.attend(window, keys, values, kept, {}, room("attend", window_tokens * shape.q_heads, dim), {});
  exec.attend_block(window, keys, values, kept, {}, room("attend_block", window_tokens * shape.q_heads, dim));
  return made;
}

// Bounds are exact; products are sums of fp32; the block's tiles round to 16 bits.
TEMPLATE_TEST_CASE("every primitive reads rows of blocks as if they were floats", "[primitive]", KVPOLICY_TEST_CPU_EXECUTORS) {
  random_source random(302);
  for (int round = 0; round < rounds_of(60); ++round) {
    element_type const type = random.pick(block_types);
    cache_shape const shape = some_shape(random, round % 10 == 0 ? 400 : 60);
    block_rows const keys(type, shape, random, content::plain);
    block_rows const values(type, shape, random, content::plain);
    std::vector<float> const vectors = random.reals(3 * shape.q_heads * shape.head_dim);
    TestType on(shape);
    host_exec oracle;
    decltype(all_of(keys.coded(), values.coded(), shape, vectors, oracle)) got;
    on.run([&](auto& exec) { got = all_of(keys.coded(), values.coded(), shape, vectors, exec); });
    auto const want = all_of(keys.plain(), values.plain(), shape, vectors, oracle);
    INFO("round " << round << ", " << name_of(type) << ", " << text_of(shape));
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      std::string const name = got[i].first;
      double const tolerance = name == "pool_bounds" ? 0 : name == "attend_block" ? 4e-3 : 2e-5;
      require_close(got[i].second, want[i].second, tolerance, got[i].first);
    }
  }
}

#if defined(KVPOLICY_TEST_SIMD)
TEST_CASE("bounds of blocks with a scale that is not finite are finite, on SIMD as on the host", "[primitive]") {
  random_source random(303);
  for (int round = 0; round < 40; ++round) {
    element_type const type = random.pick(block_types);
    cache_shape const shape = some_shape(random, 40);
    block_rows const keys(type, shape, random, round % 2 == 0 ? content::nan : content::infinite);
    std::array<std::vector<std::byte>, 2> storage;
    simd_exec simd(shape);
    host_exec oracle;
    auto const pool = [&](auto& exec, rows const& from, std::vector<std::byte>& into) {
      into.resize(static_cast<std::size_t>(shape.kv_heads * 9 * 2 * shape.head_dim * 2));
      exec.pool_bounds(from, {5, 0, shape.max_tokens}, {into.data(), element_type::f16, shape.kv_heads, 9, shape.head_dim});
    };
    pool(simd, keys.coded(), storage[0]);
    pool(oracle, keys.plain(), storage[1]);
    INFO("round " << round << ", " << name_of(type));
    REQUIRE(storage[0] == storage[1]);
  }
}
#endif

TEST_CASE("a head size that is no whole number of blocks is refused", "[rows]") {
  cache_shape const shape{1, 2, 1, 80, 100, element_type::q8_0};
  REQUIRE_THROWS_WITH(check(shape), Catch::Matchers::ContainsSubstring(
                                        "q8_0 rows are blocks of 32 elements; a head size of 80 is no multiple"));
  REQUIRE_NOTHROW(check(cache_shape{1, 2, 1, 96, 100, element_type::q8_0}));
}

}  // namespace
}  // namespace kvpolicy_test
