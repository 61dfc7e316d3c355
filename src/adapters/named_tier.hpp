// The tier that rows live in, by name: host, host:q8_0, disk:FILE, redis:HOST:PORT,...
#pragma once

#include <kvpolicy/tiers/any_tier.hpp>
#include <kvpolicy/view.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace kvpolicy {

/// Throws invalid_value for a name that there is not, unsupported for one that this build does not have.
void check_tier(std::string const& name);

/// Nothing for an empty name. `values_as_keys`: they have one type. Room for a whole cache of this shape, in blocks of a row
/// each. Throws as check_tier, and error where a file can't be opened or a server not be reached.
std::optional<tiers::any_tier> make_tier(std::string const& name, cache_shape const& shape, std::int64_t row_bytes,
                                         bool values_as_keys);

}  // namespace kvpolicy
