#include "cuda_backend.hpp"

namespace kvpolicy::c {

cuda_policy_runner cuda_backend::runner_of(any_policy const& policy) { return cuda_policy_runner::of(policy); }

}  // namespace kvpolicy::c
