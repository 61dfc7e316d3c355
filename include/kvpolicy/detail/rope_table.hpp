// A model's rotary embedding, kept from the first prompt that brings it, for parts that compare pre-rope keys.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/primitive/pool.hpp"

namespace kvpolicy {

struct rope_table {
  std::vector<float> frequency;  ///< `[pairs]`
  std::vector<float> angles;     ///< `[max_tokens, 2, pairs]`, what rope_angles reads
  rotation::pairing how = rotation::pairing::halves;
  bool known = false;

  /// Room for a cache's tokens; nothing where keys stay as they are.
  void reserve(cache_shape const& shape, bool wanted) {
    if (!wanted) return;
    frequency.reserve(static_cast<std::size_t>(shape.head_dim / 2));
    angles.resize(static_cast<std::size_t>(shape.max_tokens * shape.head_dim));
  }

  /// Whether this is the embedding that is known.
  bool is(rotation const& rope) const {
    std::span const given(rope.inverse_frequency, static_cast<std::size_t>(rope.pairs));
    return known && how == rope.how && std::ranges::equal(frequency, given);
  }

  /// Takes an embedding, and returns whether it is another one than before. O(max_tokens x head_dim) then.
  bool take(rotation const& rope) {
    if (is(rope)) return false;
    std::span const given(rope.inverse_frequency, static_cast<std::size_t>(rope.pairs));
    std::int64_t const tokens = std::ssize(angles) / std::max<std::int64_t>(1, 2 * rope.pairs);
    frequency.assign(given.begin(), given.end());
    how = rope.how;
    known = true;
    write_rope_angles(rope, std::span(angles).first(static_cast<std::size_t>(2 * rope.pairs * tokens)));
    return true;
  }

  template <class Archive>
  void archive(Archive& a) {
    a(frequency, how, known);
    if (!Archive::reads || !known) return;
    std::vector<float> const given = frequency;
    known = false;
    take({.inverse_frequency = given.data(), .pairs = std::ssize(given), .how = how});
  }

  rope_angles get() const noexcept {
    if (frequency.empty()) return {};
    return {angles.data(), std::ssize(frequency), how};
  }
};

}  // namespace kvpolicy
