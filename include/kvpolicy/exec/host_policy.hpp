// The policy types of adapters that are compiled once, for engines on a CPU: any policy, over rows described at run time.
#pragma once

#include "kvpolicy/any_policy.hpp"
#include "kvpolicy/exec/simd.hpp"
#include "kvpolicy/layer_table_view.hpp"

namespace kvpolicy {

/// Any policy, run by simd_exec over a view whose layout is known at run time.
using host_policy = any_policy<layer_table_view, simd_exec>;
/// A request of such a policy.
using host_request = any_request<layer_table_view, simd_exec>;

}  // namespace kvpolicy
