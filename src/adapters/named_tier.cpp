#include "named_tier.hpp"

#include <kvpolicy/tiers/coded.hpp>
#include <kvpolicy/tiers/host.hpp>

#include <cstdlib>
#include <sstream>

#ifdef KVPOLICY_HAS_DISK
#include <kvpolicy/tiers/disk.hpp>
#endif
#ifdef KVPOLICY_HAS_REDIS
#include <kvpolicy/tiers/redis.hpp>
#endif

namespace kvpolicy {
namespace {

#ifdef KVPOLICY_HAS_DISK
constexpr bool has_disk = true;
#else
constexpr bool has_disk = false;
#endif
#ifdef KVPOLICY_HAS_REDIS
constexpr bool has_redis = true;
#else
constexpr bool has_redis = false;
#endif

/// Whether it is "KIND:" and more.
bool is_of(std::string const& name, std::string const& kind) {
  return name.starts_with(kind + ":") && name.size() > kind.size() + 1;
}
std::string behind_colon(std::string const& name) { return name.substr(name.find(':') + 1); }
/// The codec of a name "host:q8_0".
std::optional<element_type> codec_of(std::string const& name) {
  if (name == "host:q8_0") return element_type::q8_0;
  if (name == "host:q4_0") return element_type::q4_0;
  return std::nullopt;
}

}  // namespace

void check_tier(std::string const& name) {
  if (name == "host" || codec_of(name)) return;
  bool const on_disk = is_of(name, "disk");
  if (!on_disk && !is_of(name, "redis"))
    throw invalid_value("unknown tier '" + name + "'; there are host, host:q8_0, host:q4_0, disk:FILE and redis:HOST:PORT");
  if (on_disk && !has_disk) throw unsupported("this kvpolicy was built without xxHash; there is host");
  if (!on_disk && !has_redis) throw unsupported("this kvpolicy was built without hiredis; there are host and disk:FILE");
}

std::optional<tiers::any_tier> make_tier(std::string const& name, cache_shape const& shape, std::int64_t row_bytes,
                                         bool values_as_keys) {
  if (name.empty()) return std::nullopt;
  check_tier(name);
  std::int64_t const blocks = shape.layers * shape.kv_heads * shape.max_tokens;
  if (name == "host") return tiers::any_tier::of<tiers::host>(row_bytes, blocks);
  if (auto const codec = codec_of(name)) {
    std::int64_t const elements = shape.head_dim + shape.values_dim();  // a key and a value
    if (elements_of_block(shape.type) != 1 || !values_as_keys || shape.head_dim % tiers::coded::of_scale != 0 ||
        shape.values_dim() % tiers::coded::of_scale != 0) {
      throw unsupported("the tier '" + name + "' codes rows of f16, bf16 or f32 whose head size is a multiple of " +
                        std::to_string(tiers::coded::of_scale) + "; the cache has keys of " + name_of(shape.type) +
                        " with a head size of " + std::to_string(shape.head_dim) + ", or values of another type: give host");
    }
    return tiers::any_tier::of<tiers::coded>(
        tiers::any_tier::of<tiers::host>(tiers::coded::stored_bytes(elements, *codec), blocks), elements, shape.type, *codec);
  }
#ifdef KVPOLICY_HAS_DISK
  if (is_of(name, "disk"))
    return tiers::any_tier::of<tiers::disk>(behind_colon(name), row_bytes, blocks,
                                            tiers::disk_options{.sync = false, .fresh = true});
#endif
#ifdef KVPOLICY_HAS_REDIS
  if (is_of(name, "redis")) {
    char const* const password = std::getenv("KVPOLICY_REDIS_PASSWORD");
    tiers::redis_options options{.nodes = {}, .password = password != nullptr ? password : ""};
    std::istringstream nodes(behind_colon(name));
    for (std::string node; std::getline(nodes, node, ',');) options.nodes.push_back(node);
    return tiers::any_tier::of<tiers::redis>(options, row_bytes, blocks);
  }
#endif
  return std::nullopt;
}

}  // namespace kvpolicy
