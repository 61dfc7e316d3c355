// A ggml device on a machine without a GPU, which calls itself CUDA's: its memory, streams, events and graphs are those of the
// interpreter of PTX, so memory traps where the host touches it, and work is done when somebody waits for it, not before. The
// engine's CPU kernels do the engine's work, and this library's kernels their own.
#pragma once

#include <cstdint>

namespace kvpolicy::llama::testing {

/// Makes the device known to ggml, for the rest of the process: models whose layers are offloaded lie on it.
void register_standin();

/// Nodes that were computed on the device so far.
std::int64_t standin_nodes();
/// What the device was given to do so far. Less than it did, where graphs were replayed.
std::int64_t standin_given();

/// From here on the engine's waits for events are lost, as if each had been forgotten; or they are kept again.
void lose_events(bool lost);

}  // namespace kvpolicy::llama::testing
