// A ggml device of type GPU on a machine without one: its memory traps where the host touches it, and its work is done when
// somebody waits for it, not before. The engine's CPU kernels do that work.
#pragma once

#include <cstdint>

namespace kvpolicy::llama::testing {

/// Makes the device known to ggml, for the rest of the process: models whose layers are offloaded lie on it.
void register_standin();

/// Nodes that were computed on the device so far.
std::int64_t standin_nodes();

/// From here on nobody's wait is kept, as if each had been forgotten; or all are again.
void lose_waits(bool lost);

}  // namespace kvpolicy::llama::testing
