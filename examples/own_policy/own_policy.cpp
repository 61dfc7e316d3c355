// A policy of one's own, with a name: values that are large and recent stay; a step reads their pages as quest does.
#include <kvpolicy/compose.hpp>
#include <kvpolicy/presets/quest.hpp>
#include <kvpolicy/text/plugin.hpp>

namespace kv = kvpolicy;

constexpr auto value_recency =
    kv::score_tokens([](auto, auto value, auto age) { return norm(value) * std::exp(-age / 512.f); });

KVPOLICY_PLUGIN(kv::named("value_recency", "large, recent values, read by quest's pages",
                          kv::retain(value_recency, {.tokens = 1024, .sinks = 4}) + kv::presets::quest{.tokens = 256}))
