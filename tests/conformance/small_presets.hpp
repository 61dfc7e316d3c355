// Every preset at a size that has to choose among 100 tokens of 3 layers with 2 KV heads.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>

#include "kvpolicy/presets/all.hpp"

namespace kvpolicy_test {

template <class Preset>
Preset small(Preset p) {
  using kvpolicy::head_role;
  static constexpr std::array<std::uint8_t, 10> boundary{0, 0, 0, 0, 1};
  static constexpr std::array<kvpolicy::head_profile, 6> heads{{{},
                                                                {.role = head_role::shifting, .stability = .2f},
                                                                {.role = head_role::pivot, .stability = .3f},
                                                                {.role = head_role::satellite, .pivot = 0, .stability = .3f},
                                                                {},
                                                                {}}};
  if constexpr (requires { p.tokens; }) p.tokens = 40;
  if constexpr (requires { p.kept; }) p.kept = 60, p.channels = 5;
  if constexpr (requires { p.fractions.tokens; }) p.fractions.tokens = 64;
  if constexpr (requires { p.lag; }) p.lag = 8;
  if constexpr (requires { p.block; }) p.block = 8;
  if constexpr (requires { p.sentences; }) p.sentences = {.boundary = boundary, .longest = 20, .shortest = 2};
  if constexpr (requires { p.heads; }) p.heads = heads;
  static constexpr std::array<float, 6> retrieval{.1f, .9f, .2f, .3f, .7f, .4f};
  if constexpr (requires { p.retrieval; }) p.retrieval = retrieval, p.sinks = 2, p.recent = 8;
  if constexpr (requires { p.after; }) p.after = 0;
  static constexpr auto moments = [] {  // of 3 layers, 4 query heads, 8 pairs
    std::array<kvpolicy::query_moment, 96> made{};
    for (std::size_t i = 0; i < made.size(); ++i) {
      auto const x = static_cast<float>(i * 7 % 11) - 5;
      made[i] = {x, static_cast<float>(i * 5 % 7) - 3, 9 + x};
    }
    return made;
  }();
  if constexpr (requires { p.moments; }) p.moments = moments, p.recent = 4;
  if constexpr (requires { p.keep_prompt; p.every; }) p.every = 6;
  if constexpr (std::same_as<Preset, kvpolicy::presets::omnikv>) p.layers = {.reuse = 3, .whole = 1};
  if constexpr (requires { p.entropy; }) p.entropy = 1.8f, p.rest = 0;
  return p;
}

}  // namespace kvpolicy_test
