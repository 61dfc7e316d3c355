// Policies from a shared object: kvpolicy-run --plugin ./libmine.so, kvpolicy_plugin_load("./libmine.so").
#pragma once

#include "kvpolicy/text/policy_list.hpp"
#include "kvpolicy/version.hpp"

namespace kvpolicy {

/// The version of these headers. A plugin speaks C++ with its program, so both must be of the same version.
inline constexpr char const* plugin_version = KVPOLICY_VERSION;
/// Adds the policies of a plugin to a list.
using plugin_function = void (*)(host_policy_list&);

}  // namespace kvpolicy

/// Makes a shared object a plugin. Use it once, in a library that links kvpolicy::simd.
/// @param ...  the policies, each by kvpolicy::named(...)
#define KVPOLICY_PLUGIN(...)                                                                          \
  extern "C" {                                                                                        \
  __attribute__((visibility("default"))) extern char const* const kvpolicy_plugin_version;            \
  char const* const kvpolicy_plugin_version = kvpolicy::plugin_version;                               \
  __attribute__((visibility("default"))) void kvpolicy_plugin_add(kvpolicy::host_policy_list& list) { \
    for (auto const& entry : {__VA_ARGS__}) list.add(entry);                                          \
  }                                                                                                   \
  }
