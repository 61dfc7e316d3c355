// The tier that rows live in, by name: same_memory, host, disk:FILE, redis:HOST:PORT.
#pragma once

#include <kvpolicy/tier/any_tier.hpp>
#include <kvpolicy/tier/resident_options.hpp>
#include <kvpolicy/view.hpp>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace kvpolicy {

/// Nothing for an empty name. Room for a whole cache of this shape, in blocks of a row each. Throws invalid_value for a name
/// that there is not, error where a file can't be opened.
std::optional<tier::any_tier> make_tier(std::string const& name, cache_shape const& shape, std::int64_t row_bytes);

/// What --json says of a tier; null for an empty name.
nlohmann::ordered_json tier_json(std::string const& name, tier::resident_statistics const& statistics);

}  // namespace kvpolicy
