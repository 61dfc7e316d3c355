// The policies that this library knows by name, and those of plugins; for the tools and the C library.
#pragma once

#include <kvpolicy/presets/all.hpp>
#include <kvpolicy/text/policy_list.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvpolicy {

/// Every published method, for one kind of view and executor.
template <kv_cache_view View, executor_for<View> Exec>
policy_list<View, Exec> published_policies() {
  policy_list<View, Exec> made;
  presets::all::each(
      [&](auto const& preset) { made.add(named<std::decay_t<decltype(preset)>, View, Exec>(preset.name, preset.source)); });
  return made;
}
/// Compiled once: it instantiates every policy.
extern template host_policy_list published_policies<layer_table_view, simd_exec>();

/// What text can read: the boundary table where the model has one, and profiles from files.
policy_inputs inputs_for(std::vector<std::uint8_t> boundary = {});

/// Names of one list for tools: published ones, then those of these plugins. Throws as load_plugin() does.
host_policy_list known_policies(std::vector<std::string> const& plugins = {});

/// Adds the policies of a shared object made with KVPOLICY_PLUGIN. It stays loaded. Throws invalid_value where it can't be
/// loaded, was made for another version, or names a policy that there is; the list is as it was then.
void load_plugin(host_policy_list& list, std::string const& path);

}  // namespace kvpolicy
