// An engine's adapter runs a preset only if it feeds every signal that the preset needs and obeys its scope.
#include <kvpolicy/kvpolicy.hpp>

using namespace kvpolicy;

#ifndef PROVIDES
#define PROVIDES                                                                                                            \
  signals::keys | signals::values | signals::queries | signals::observation_queries | signals::rotation | signals::logits | \
      signals::token_ids | signals::repetition
#endif
#ifndef FINEST
#define FINEST scope::head
#endif

struct adapter {
  static constexpr signals provides = PROVIDES;
  static constexpr scope finest_scope = FINEST;
};

template <policy_like Policy>
  requires serves<adapter, parts_t<Policy>>
void attach(Policy const&) {}

int main() { attach(presets::PRESET{}); }
