// What a tier did, as JSON.
#pragma once

#include <kvpolicy/tiers/resident_options.hpp>

#include <nlohmann/json.hpp>
#include <string>

namespace kvpolicy {

/// What --json says of a tier; null for an empty name.
nlohmann::ordered_json tier_json(std::string const& name, tiers::resident_statistics const& statistics);

}  // namespace kvpolicy
