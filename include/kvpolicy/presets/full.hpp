// Preset full: reads every token. The baseline, and the proof that the adapter changes nothing.
#pragma once

#include "kvpolicy/policy.hpp"

namespace kvpolicy::presets {

struct full {
  static constexpr auto parts() noexcept { return policy{keep_all{}, keep_all{}}; }
};

static_assert(policy_like<full> && preset<full>);

}  // namespace kvpolicy::presets
