// Preset full: reads every token. The baseline, and the proof that the adapter changes nothing.
#pragma once

#include "kvpolicy/policy.hpp"

namespace kvpolicy::presets {

struct full {
  static constexpr char const* name = "full";
  static constexpr char const* source = "reads every token";

  template <class Self, class Visit>
  static constexpr void parameters(Self&, Visit) noexcept {}

  static constexpr auto parts() noexcept { return policy{keep_all{}, keep_all{}}; }
};

static_assert(policy_like<full> && preset<full>);

}  // namespace kvpolicy::presets
