// A model's rotary embedding, kept from the first prompt that brings it, for parts that compare pre-rope keys.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/primitive/pool.hpp"

namespace kvpolicy {

struct rope_table {
  std::vector<float> frequency;  ///< `[pairs]`
  std::vector<float> angles;     ///< `[tokens, 2, pairs]`, what rope_angles reads
  rotation::pairing how = rotation::pairing::halves;
  bool known = false;
  std::int64_t room = 0;  ///< tokens

  /// Angles of so many tokens. O(new tokens x head_dim).
  void reserve(std::int64_t tokens) {
    if (tokens <= room) return;
    room = tokens;
    if (known) write();
  }

  /// Whether this is the embedding that is known.
  bool is(rotation const& rope) const {
    std::span const given(rope.inverse_frequency, static_cast<std::size_t>(rope.pairs));
    return known && how == rope.how && std::ranges::equal(frequency, given);
  }

  /// Takes an embedding, and returns whether it is another one than before. O(tokens x head_dim) then.
  bool take(rotation const& rope) {
    if (is(rope)) return false;
    std::span const given(rope.inverse_frequency, static_cast<std::size_t>(rope.pairs));
    frequency.assign(given.begin(), given.end());
    how = rope.how;
    known = true;
    write();
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

 private:
  void write() {
    angles.resize(static_cast<std::size_t>(2 * std::ssize(frequency) * room));
    write_rope_angles({.inverse_frequency = frequency.data(), .pairs = std::ssize(frequency), .how = how}, angles);
  }
};

}  // namespace kvpolicy
