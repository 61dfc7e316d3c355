// How layers differ, for a rule that chooses for each layer.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>

#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// A set of layers, by number.
struct layer_set {
  static constexpr std::int64_t most = 256;  ///< layers of a model

  std::array<std::uint64_t, most / 64> bits{};  ///< bit l % 64 of word l / 64: layer l

  /// Makes a set.
  /// @param layers  their numbers, 0 to most - 1
  /// @return the set
  /// @throws invalid_value for another number
  static constexpr layer_set of(auto const& layers) {
    layer_set made;
    for (std::int64_t const l : layers) {
      KVPOLICY_EXPECTS(l >= 0 && l < most,
                       "layer " + std::to_string(l) + "; a set of layers holds 0 to " + std::to_string(most - 1));
      made.bits[static_cast<std::size_t>(l / 64)] |= std::uint64_t{1} << (l % 64);
    }
    return made;
  }
  /// Finds the last layer of the set up to a layer.
  /// @param layer  the layer; beyond the set's most it counts as the last
  /// @return its number; -1 if there is none
  constexpr std::int64_t last_up_to(std::int64_t layer) const noexcept {
    if (layer >= most) layer = most - 1;
    for (std::int64_t word = layer / 64; word >= 0; --word) {
      std::uint64_t found = bits[static_cast<std::size_t>(word)];
      if (word == layer / 64 && layer % 64 < 63) found &= (std::uint64_t{2} << (layer % 64)) - 1;
      if (found != 0) return word * 64 + 63 - std::countl_zero(found);
    }
    return -1;
  }
  constexpr bool empty() const noexcept { return last_up_to(most - 1) < 0; }
  bool operator==(layer_set const&) const = default;
};

/// How layers differ, for a rule that chooses for each layer.
struct layering {
  std::int32_t dense_first = 0;  ///< the first layers keep everything
  std::int32_t reuse = 1;        ///< layers in a group, which shares the choice of its first layer (ChunkKV)
  /// In place of `reuse`: each of these layers begins a group (OmniKV). Layers before all of them keep everything.
  layer_set leaders{};
  std::int32_t whole = 0;  ///< of a retrieve: first layers of each group that read everything, its leader included

  /// Says whether a layer keeps everything, and chooses nothing.
  /// @param layer  the layer
  /// @return whether it is one of the dense layers
  constexpr bool dense(layer_id layer) const noexcept {
    return layer.value < dense_first || (!leaders.empty() && leaders.last_up_to(layer.value) < dense_first);
  }
  /// Finds the layer whose choice a layer uses.
  /// @param layer  the layer
  /// @return the first layer of its group; a dense layer itself
  constexpr layer_id leader(layer_id layer) const noexcept {
    if (dense(layer)) return layer;
    if (!leaders.empty()) return {leaders.last_up_to(layer.value)};
    return {layer.value - (layer.value - dense_first) % reuse};
  }
  /// Says whether a layer's steps read everything: it is dense, or one of the first `whole` of its group.
  /// @param layer  the layer
  /// @return false where the layer reads its group's choice
  constexpr bool reads_all(layer_id layer) const noexcept { return dense(layer) || layer.value - leader(layer).value < whole; }
  /// Says whether layers share choices.
  /// @return true if a group may have several layers
  constexpr bool shares() const noexcept { return reuse > 1 || !leaders.empty(); }
};

}  // namespace kvpolicy
