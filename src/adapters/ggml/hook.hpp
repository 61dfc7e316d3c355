// Puts a policy before the CUDA devices of a ggml that is loaded already.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace kvpolicy::ggml {

/// From now on, contexts that are made on a CUDA device decode under the policy: their backends' function tables are changed.
/// Layers with attention on a CPU are refused. Without a policy, contexts that are made from now on are the engine's own.
/// Throws unsupported where there is no CUDA device, or where this library was built for another ggml; and what parsing throws.
/// @param say  takes lines for the user: what is served, and what is refused
void put_before_devices(std::string const& policy, std::function<void(std::string const&)> say);

/// Contexts that are made from now on have so many sequences at most, so they keep that many states of the policy. Until the
/// first call they have four.
void expect_sequences(std::int64_t sequences);

}  // namespace kvpolicy::ggml
