// Tier coded: keeps rows in another tier in fewer bits, and decodes them as they come back.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/rows.hpp"
#include "kvpolicy/tiers/any_tier.hpp"

namespace kvpolicy::tiers {

/// Keeps rows in another tier as q8_0 or q4_0. Models tier_like, but a block comes back rounded. Each 32 elements have one
/// step, the largest size among them divided by 127 (q8_0) or 8 (q4_0), as f16. An element comes back within about half a step,
/// and within the rounding of its own type; with q4_0 within a whole step where its sign is not that of the largest one. A NaN
/// comes back as 0, and where a step is beyond 65504 all its elements as NaN. The other tier's checks are of what
/// is stored.
class coded {
 public:
  static constexpr std::int64_t of_scale = 32;  ///< elements that share a scale

  /// Computes the bytes of a block in the other tier.
  /// @param elements  of a block, a multiple of 32
  /// @param as  q8_0 or q4_0
  /// @return bytes, a quarter to a half of the elements' as f16
  /// @throws invalid_value for another type, or elements that are no multiple
  static std::int64_t stored_bytes(std::int64_t elements, element_type as) {
    KVPOLICY_EXPECTS(as == element_type::q8_0 || as == element_type::q4_0,
                     "a tier codes rows as q8_0 or q4_0, not as " + std::string(name_of(as)));
    KVPOLICY_EXPECTS(
        elements > 0 && elements % of_scale == 0,
        "a block of " + std::to_string(elements) + " elements; a coded one has a multiple of " + std::to_string(of_scale));
    return elements / of_scale * size_of(as);
  }

  /// Takes over a tier.
  /// @param inner  whose blocks have stored_bytes() bytes
  /// @param elements  of a block
  /// @param from  the type of a block's elements: f32, f16 or bf16
  /// @param as  how they are stored: q8_0 or q4_0
  /// @throws invalid_value for other types, or if the tier's blocks have another size
  coded(any_tier inner, std::int64_t elements, element_type from, element_type as)
      : elements_(elements), from_(from), as_(as), inner_(std::move(inner)) {
    KVPOLICY_EXPECTS(elements_of_block(from) == 1,
                     "rows of " + std::string(name_of(from)) + " are coded already; give the tier without a codec");
    KVPOLICY_EXPECTS(inner_.block_bytes() == stored_bytes(elements, as),
                     "a tier of blocks of " + std::to_string(inner_.block_bytes()) + " bytes for coded ones of " +
                         std::to_string(stored_bytes(elements, as)));
  }

  std::int64_t block_bytes() const noexcept { return elements_ * size_of(from_); }
  std::int64_t capacity() const { return inner_.capacity(); }
  std::optional<element_type> element() const noexcept { return from_; }
  std::string describe() const { return inner_.describe() + ", as " + name_of(as_); }

  bool put(std::span<block_write const> writes) {
    auto const bytes = static_cast<std::size_t>(inner_.block_bytes());
    writes_.clear();
    stored_.resize(writes.size() * bytes);
    for (std::size_t i = 0; i < writes.size(); ++i) {
      std::byte* const to = stored_.data() + i * bytes;
      for (std::int64_t s = 0; s < elements_ / of_scale; ++s)
        encode(writes[i].from + s * of_scale * size_of(from_), to + s * size_of(as_));
      writes_.push_back({writes[i].key, to});
    }
    return inner_.put(writes_);
  }

  ticket get(std::span<block_read const> reads, bool waits = true) {
    auto const bytes = static_cast<std::size_t>(inner_.block_bytes());
    auto one = std::make_unique<flight>();
    one->stored.resize(reads.size() * bytes);
    one->to.reserve(reads.size());
    reads_.clear();
    for (block_read const& r : reads) {
      reads_.push_back({r.key, one->stored.data() + one->to.size() * bytes});
      one->to.push_back(r.to);
    }
    flights_.reserve(flights_.size() + 1);  // so that nothing can fail once the get has begun
    one->id = inner_.get(reads_, waits);
    flights_.push_back(std::move(one));
    return flights_.back()->id;
  }
  status poll(ticket id) { return ended(id, inner_.poll(id)); }
  status wait(ticket id, clock::time_point deadline) { return ended(id, inner_.wait(id, deadline)); }

  void drop(std::span<block_key const> keys) { inner_.drop(keys); }
  usage occupied() { return inner_.occupied(); }

 private:
  /// A get that has not ended.
  struct flight {
    ticket id = 0;
    std::vector<std::byte> stored;
    std::vector<std::byte*> to;
  };

  status ended(ticket id, status how) {
    if (how == status::pending) return how;
    auto const at = std::ranges::find(flights_, id, [](auto const& one) { return one->id; });
    if (at == flights_.end()) return how;
    std::unique_ptr<flight> const one = std::move(*at);
    flights_.erase(at);
    if (how == status::missed) return how;
    auto const bytes = static_cast<std::size_t>(inner_.block_bytes());
    for (std::size_t i = 0; i < one->to.size(); ++i) {
      for (std::int64_t s = 0; s < elements_ / of_scale; ++s)
        decode(one->stored.data() + i * bytes + s * size_of(as_), one->to[i] + s * of_scale * size_of(from_));
    }
    return how;
  }

  using floats = std::array<float, of_scale>;

  void encode(std::byte const* from, std::byte* to) const noexcept {
    floats x;
    float largest = 0;  // by its size, with its sign
    for (std::int64_t i = 0; i < of_scale; ++i) {
      float& one = x[static_cast<std::size_t>(i)];
      one = element_at(from, i, from_);
      if (!std::isfinite(one)) one = std::isnan(one) ? 0 : std::copysign(3e38f, one);
      if (std::abs(one) > std::abs(largest)) largest = one;
    }
    std::uint16_t const half = float_to_half(as_ == element_type::q8_0 ? std::abs(largest) / 127 : largest / -8);
    std::memcpy(to, &half, sizeof half);
    float const scale = half_to_float(half);
    float const by = scale == 0 ? 0 : 1 / scale;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (as_ == element_type::q8_0) {
        to[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(std::round(x[i] * by), -127.0f, 127.0f)));
      } else if (i < x.size() / 2) {
        to[2 + i] = static_cast<std::byte>(nibble(x[i] * by) | nibble(x[i + x.size() / 2] * by) << 4);
      }
    }
  }
  static unsigned nibble(float steps) noexcept { return static_cast<unsigned>(std::clamp(steps + 8.5f, 0.0f, 15.0f)); }

  void decode(std::byte const* from, std::byte* to) const noexcept {
    for (std::int64_t i = 0; i < of_scale; ++i) put_element(to, i, from_, block_element(as_, from, i));
  }

  std::int64_t elements_;
  element_type from_;
  element_type as_;
  std::vector<block_write> writes_;
  std::vector<block_read> reads_;
  std::vector<std::byte> stored_;                 ///< what a put writes
  std::vector<std::unique_ptr<flight>> flights_;  ///< a tier may write to them until it is gone
  any_tier inner_;
};

static_assert(tier_like<coded>);

}  // namespace kvpolicy::tiers
