// Who writes a cache's rows without a graph: a state that is restored, a cache that is cleared.
#pragma once

#include <ggml-backend.h>

#include <cstdint>

namespace kvpolicy::ggml {

/// How often somebody wrote tensors of this buffer without a graph, since the first call for it, from which on it is watched.
std::uint64_t writes_to(ggml_backend_buffer_t buffer);

}  // namespace kvpolicy::ggml
