// Preset full: reads every token.
#pragma once

#include "kvpolicy/policy.hpp"

namespace kvpolicy::presets {

/// Reads every token: the baseline, and the proof that an adapter changes nothing.
struct full {
  static constexpr char const* name = "full";
  static constexpr char const* source = "reads every token";

  template <class Self, class Visit>
  static constexpr void parameters(Self&, Visit) noexcept {}

  static constexpr auto parts() noexcept { return policy{keep_all{}, keep_all{}}; }
};

static_assert(policy_like<full> && preset<full>);

}  // namespace kvpolicy::presets
