#include "row_tier.hpp"

#include <kvpolicy/tier/host.hpp>
#include <kvpolicy/tier/same_memory.hpp>

#include <cstdlib>
#include <sstream>

#ifdef KVPOLICY_HAS_DISK
#include <kvpolicy/tier/disk.hpp>
#endif
#ifdef KVPOLICY_HAS_REDIS
#include <kvpolicy/tier/redis.hpp>
#endif

namespace kvpolicy {

std::optional<tier::any_tier> make_tier(std::string const& name, cache_shape const& shape, std::int64_t row_bytes) {
  if (name.empty()) return std::nullopt;
  std::int64_t const blocks = shape.layers * shape.kv_heads * shape.max_tokens;
  if (name == "same_memory") return tier::any_tier::of<tier::same_memory>(row_bytes, blocks);
  if (name == "host") return tier::any_tier::of<tier::host>(row_bytes, blocks);
  if (name.starts_with("disk:") && name.size() > 5) {
#ifdef KVPOLICY_HAS_DISK
    return tier::any_tier::of<tier::disk>(name.substr(5), row_bytes, blocks, tier::disk_options{.sync = false});
#else
    throw unsupported("this kvpolicy-run was built without xxHash; there are same_memory and host");
#endif
  }
  if (name.starts_with("redis:") && name.size() > 6) {
#ifdef KVPOLICY_HAS_REDIS
    char const* const password = std::getenv("KVPOLICY_REDIS_PASSWORD");
    tier::redis_options options{.nodes = {}, .password = password != nullptr ? password : ""};
    std::istringstream nodes(name.substr(6));
    for (std::string node; std::getline(nodes, node, ',');) options.nodes.push_back(node);
    return tier::any_tier::of<tier::redis>(options, row_bytes, blocks);
#else
    throw unsupported("this kvpolicy-run was built without hiredis; there are same_memory, host and disk:FILE");
#endif
  }
  throw invalid_value("unknown tier '" + name + "'; there are same_memory, host, disk:FILE and redis:HOST:PORT");
}

nlohmann::ordered_json tier_json(std::string const& name, tier::resident_statistics const& s) {
  if (name.empty()) return nullptr;
  return {{"name", name.substr(0, name.find(':'))},
          {"hit_rate", s.wanted > 0 ? static_cast<double>(s.hits) / static_cast<double>(s.wanted) : 1.0},
          {"bytes_stored", s.bytes_stored},
          {"bytes_fetched", s.bytes_fetched},
          {"stall_seconds", s.stall_seconds}};
}

}  // namespace kvpolicy
