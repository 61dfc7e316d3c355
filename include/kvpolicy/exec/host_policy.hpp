// What adapters hold that are compiled once, for engines on a CPU: any policy, over rows that are known at run time.
#pragma once

#include "kvpolicy/any_policy.hpp"
#include "kvpolicy/exec/simd.hpp"
#include "kvpolicy/layer_table_view.hpp"

namespace kvpolicy {

using host_policy = any_policy<layer_table_view, simd_exec>;
using host_request = any_request<layer_table_view, simd_exec>;

}  // namespace kvpolicy
