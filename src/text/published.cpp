#include "published.hpp"

#include <dlfcn.h>

#include <cstring>
#include <map>

#include "kvpolicy/text/plugin.hpp"
#include "moments_file.hpp"
#include "profile_file.hpp"

namespace kvpolicy {

template host_policy_list published_policies<layer_table_view, simd_exec>();

namespace {

/// A file is read once, whatever becomes of it: the policy may be made again, for another executor.
template <class Of>
auto once(owned_head_values<Of> (*read)(std::string const& path)) {
  return [read, seen = std::make_shared<std::map<std::string, owned_head_values<Of>>>()](std::string const& path) {
    auto const known = seen->find(path);
    return known != seen->end() ? known->second : seen->emplace(path, read(path)).first->second;
  };
}

}  // namespace

policy_inputs inputs_for(std::vector<std::uint8_t> boundary) {
  policy_inputs inputs{.boundary = {},
                       .read_profile = once<head_profile>([](std::string const& path) {
                         profile_file const file = read_profile(path);
                         return owned_head_values<head_profile>{file.heads, file.kv_heads};
                       }),
                       .read_retrieval = once<float>(read_retrieval),
                       .read_moments = once<query_moment>([](std::string const& path) {
                         moments_file const file = read_moments(path);
                         return owned_head_values<query_moment>{file.moments, file.q_heads};
                       })};
  if (!boundary.empty()) inputs.boundary = std::make_shared<std::vector<std::uint8_t> const>(std::move(boundary));
  return inputs;
}

host_policy_list known_policies(std::vector<std::string> const& plugins) {
  auto made = published_policies<layer_table_view, simd_exec>();
  for (std::string const& path : plugins) load_plugin(made, path);
  return made;
}

void load_plugin(host_policy_list& list, std::string const& path) {
  void* const loaded = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) throw invalid_value("the plugin can't be loaded: " + std::string(dlerror()));
  auto const* const version = static_cast<char const* const*>(dlsym(loaded, "kvpolicy_plugin_version"));
  auto const add = reinterpret_cast<plugin_function>(dlsym(loaded, "kvpolicy_plugin_add"));
  KVPOLICY_EXPECTS(version != nullptr && add != nullptr,
                   "'" + path + "' is no plugin of kvpolicy; it needs KVPOLICY_PLUGIN(...) (kvpolicy/text/plugin.hpp)");
  KVPOLICY_EXPECTS(std::strcmp(*version, plugin_version) == 0,
                   "'" + path + "' was made for kvpolicy " + *version + ", this is " + plugin_version + "; compile it anew");
  host_policy_list longer = list;
  add(longer);
  list = std::move(longer);
}

}  // namespace kvpolicy
