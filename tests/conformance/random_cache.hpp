// A cache of random rows in any layout, which knows what it holds independently of how the library reads it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kvpolicy/view.hpp"

namespace kvpolicy_test {

using namespace kvpolicy;

/// Seeded numbers; no std distributions, so that every standard library draws the same.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : bits_(seed) {}

  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  /// In [-1, 1).
  float real() { return static_cast<float>(static_cast<double>(bits_() >> 11) * 0x1p-52 - 1.0); }
  template <class T, std::size_t N>
  T pick(std::array<T, N> const& of) {
    return of[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(N) - 1))];
  }
  std::vector<float> reals(std::int64_t count, float size = 1) {
    std::vector<float> made(static_cast<std::size_t>(count));
    for (float& x : made) x = size * real();
    return made;
  }

 private:
  std::mt19937_64 bits_;
};

enum class layout { head_major, token_major, transposed, paged_nhd, paged_hnd };
inline constexpr std::array layouts{layout::head_major, layout::token_major, layout::transposed, layout::paged_nhd,
                                    layout::paged_hnd};
inline constexpr std::array types{element_type::f32, element_type::f16, element_type::bf16};

/// What elements look like.
enum class content { plain, tied, equal, negative, nan, infinite, denormal };
inline constexpr std::array contents{content::plain, content::tied,     content::equal,   content::negative,
                                     content::nan,   content::infinite, content::denormal};

inline float draw(content kind, random_source& random) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  switch (kind) {
    case content::plain:
      return random.real();
    case content::tied:
      return static_cast<float>(random.between(-1, 1));
    case content::equal:
      return .5f;
    case content::negative:
      return -.75f + .25f * random.real();
    case content::nan:
      return random.one_in(40) ? std::numeric_limits<float>::quiet_NaN() : random.real();
    case content::infinite:
      return random.one_in(40) ? (random.one_in(2) ? inf : -inf) : random.real();
    case content::denormal:
      return random.one_in(2) ? 1e-40f * random.real() : -0.0f;
  }
  return 0;
}

class random_cache {
 public:
  random_cache(cache_shape const& shape, layout how, std::int64_t page_size, random_source& random,
               content kind = content::plain)
      : shape_(shape), how_(how), page_size_(page_size) {
    std::int64_t const used = (shape.max_tokens + page_size - 1) / page_size;
    physical_ = used + 3;
    std::vector<std::int32_t> all(static_cast<std::size_t>(physical_));
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t i = all.size(); i > 1; --i) {
      std::swap(all[i - 1], all[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
    }
    pages_.assign(all.begin(), all.begin() + used);
    std::int64_t const tokens = paged() ? physical_ * page_size : shape.max_tokens;
    auto const elements = static_cast<std::size_t>(shape.layers * shape.kv_heads * tokens * shape.head_dim);
    for (half& h : halves_) {
      // What nobody should read is NaN in every type.
      h.bytes.assign(elements * static_cast<std::size_t>(size_of(shape.type)), std::byte{0xff});
      h.content.resize(static_cast<std::size_t>(shape.layers * shape.kv_heads * shape.max_tokens * shape.head_dim));
    }
    fill(0, shape.max_tokens, random, kind);
  }

  cache_shape const& shape() const { return shape_; }
  bool paged() const { return how_ == layout::paged_nhd || how_ == layout::paged_hnd; }

  /// New rows for tokens [first, last).
  void fill(std::int64_t first, std::int64_t last, random_source& random, content kind = content::plain) {
    for (std::size_t which = 0; which < 2; ++which) {
      for (std::int64_t l = 0; l < shape_.layers; ++l) {
        for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
          for (std::int64_t t = first; t < last; ++t) {
            for (std::int64_t d = 0; d < shape_.head_dim; ++d) set(which, l, h, t, d, draw(kind, random));
          }
        }
      }
    }
  }

  void set_key(std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t d, float value) { set(0, l, h, t, d, value); }
  void set_value(std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t d, float value) { set(1, l, h, t, d, value); }
  float key(std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t d) const {
    return halves_[0].content[place(l, h, t, d)];
  }
  float value(std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t d) const {
    return halves_[1].content[place(l, h, t, d)];
  }

  rows keys(std::int64_t layer, std::int64_t tokens) const { return rows_of(halves_[0], layer, tokens); }
  rows values(std::int64_t layer, std::int64_t tokens) const { return rows_of(halves_[1], layer, tokens); }

  strided_view<> strided(std::int64_t tokens) const {
    byte_strides const s = strides();
    return {shape_, tokens, halves_[0].bytes.data(), halves_[1].bytes.data(), s, s};
  }
  paged_view<> in_pages(std::int64_t tokens) const {
    std::int64_t const page = shape_.kv_heads * page_size_ * shape_.head_dim * size_of(shape_.type);
    byte_strides const strides =
        strides_of(how_ == layout::paged_nhd ? page_layout::nhd : page_layout::hnd, shape_, page_size_, physical_ * page);
    return {.cache = shape_,
            .token_count = tokens,
            .key_base = halves_[0].bytes.data(),
            .value_base = halves_[1].bytes.data(),
            .key_strides = strides,
            .value_strides = strides,
            .page_size = page_size_,
            .pages = pages_.data()};
  }

 private:
  struct half {
    std::vector<std::byte> bytes;
    std::vector<float> content;  ///< `[layers, heads, tokens, dims]`
  };

  std::size_t place(std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t d) const {
    return static_cast<std::size_t>(((l * shape_.kv_heads + h) * shape_.max_tokens + t) * shape_.head_dim + d);
  }

  byte_strides strides() const {
    std::int64_t const size = size_of(shape_.type);
    std::int64_t const heads = shape_.kv_heads;
    std::int64_t const tokens = shape_.max_tokens;
    std::int64_t const dims = shape_.head_dim;
    std::int64_t const layer = heads * tokens * dims * size;
    if (how_ == layout::token_major) return {layer, dims * size, heads * dims * size, size};
    if (how_ == layout::transposed) return {layer, dims * tokens * size, size, tokens * size};
    return {layer, tokens * dims * size, dims * size, size};
  }

  rows rows_of(half const& h, std::int64_t layer, std::int64_t tokens) const {
    bool const keys = &h == &halves_[0];
    if (paged()) return keys ? in_pages(tokens).keys({layer}) : in_pages(tokens).values({layer});
    return keys ? strided(tokens).keys({layer}) : strided(tokens).values({layer});
  }

  void set(std::size_t which, std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t d, float value) {
    std::int64_t element = 0;
    std::int64_t const dims = shape_.head_dim;
    std::int64_t const heads = shape_.kv_heads;
    std::int64_t const page = l * physical_ + pages_[static_cast<std::size_t>(t / page_size_)];
    std::int64_t const slot = t % page_size_;
    switch (how_) {
      case layout::head_major:
        element = ((l * heads + h) * shape_.max_tokens + t) * dims + d;
        break;
      case layout::token_major:
        element = ((l * shape_.max_tokens + t) * heads + h) * dims + d;
        break;
      case layout::transposed:
        element = ((l * heads + h) * dims + d) * shape_.max_tokens + t;
        break;
      case layout::paged_nhd:
        element = ((page * page_size_ + slot) * heads + h) * dims + d;
        break;
      case layout::paged_hnd:
        element = ((page * heads + h) * page_size_ + slot) * dims + d;
        break;
    }
    std::byte* const at = halves_[which].bytes.data() + element * size_of(shape_.type);
    float stored = value;
    if (shape_.type == element_type::f32) {
      std::memcpy(at, &value, sizeof value);
    } else {
      bool const f16 = shape_.type == element_type::f16;
      std::uint16_t const bits = f16 ? float_to_half(value) : float_to_bfloat(value);
      std::memcpy(at, &bits, sizeof bits);
      stored = f16 ? half_to_float(bits) : bfloat_to_float(bits);
    }
    halves_[which].content[place(l, h, t, d)] = stored;
  }

  cache_shape shape_;
  layout how_;
  std::int64_t page_size_;
  std::int64_t physical_ = 0;
  std::vector<std::int32_t> pages_;
  std::array<half, 2> halves_;
};

/// A view as a user would write one: a pointer to what he has, and how far it reaches.
struct own_view {
  using memory = host_memory;

  random_cache const* cache = nullptr;
  std::int64_t count = 0;

  cache_shape shape() const { return cache->shape(); }
  std::int64_t tokens() const { return count; }
  rows keys(layer_id layer) const { return cache->keys(layer.value, count); }
  rows values(layer_id layer) const { return cache->values(layer.value, count); }
};

static_assert(kv_cache_view<own_view>);

/// A shape that finds the edges of vector loops: head sizes 1..130, groups 1..8 and 16.
inline cache_shape random_shape(random_source& random, std::int64_t most_tokens, std::int64_t layers = 1) {
  constexpr std::array<std::int64_t, 4> usual{64, 80, 128, 16};
  constexpr std::array<std::int64_t, 9> groups{1, 2, 3, 4, 5, 6, 7, 8, 16};
  std::int64_t const heads = random.between(1, 4);
  return {.layers = layers,
          .q_heads = heads * random.pick(groups),
          .kv_heads = heads,
          .head_dim = random.one_in(3) ? random.pick(usual) : random.between(1, 130),
          .max_tokens = random.between(1, most_tokens),
          .type = random.pick(types)};
}

inline random_cache random_cache_of(cache_shape const& shape, random_source& random, content kind = content::plain) {
  std::int64_t const page_size = random.between(1, 128);
  return random_cache(shape, random.pick(layouts), page_size, random, kind);
}

}  // namespace kvpolicy_test
