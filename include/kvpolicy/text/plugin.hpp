// Policies from a shared object: kvpolicy-run --plugin ./libmine.so, kvpolicy_plugin_load("./libmine.so").
#pragma once

#include "kvpolicy/text/policy_list.hpp"
#include "kvpolicy/version.hpp"

namespace kvpolicy {

/// A plugin speaks C++ with its program: both must be of the same version of these headers.
inline constexpr char const* plugin_version = KVPOLICY_VERSION;
using plugin_function = void (*)(host_policy_list&);

}  // namespace kvpolicy

/// Once in a shared object that links kvpolicy::simd: the policies that it names, each by kvpolicy::named(...).
#define KVPOLICY_PLUGIN(...)                                                                          \
  extern "C" {                                                                                        \
  __attribute__((visibility("default"))) extern char const* const kvpolicy_plugin_version;            \
  char const* const kvpolicy_plugin_version = kvpolicy::plugin_version;                               \
  __attribute__((visibility("default"))) void kvpolicy_plugin_add(kvpolicy::host_policy_list& list) { \
    for (auto const& entry : {__VA_ARGS__}) list.add(entry);                                          \
  }                                                                                                   \
  }
