// How often this program's global operator new was called, the engine's calls included.
#pragma once

#include <cstdint>

namespace kvpolicy::llama::testing {

std::int64_t allocations() noexcept;

}  // namespace kvpolicy::llama::testing
