// What the runtime knows beyond CUDA's interface.
#pragma once

#include <map>
#include <string>

#include "cuda/ptx/block.hpp"

namespace ptx {

/// What was launched so far, by the kernel's mangled name, after all that is enqueued is done.
/// Sectors are counted where KVPOLICY_PTX_COUNTS is set.
std::map<std::string, counts> const& counts_by_kernel();

}  // namespace ptx
