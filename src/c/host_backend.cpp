#include "host_backend.hpp"

namespace kvpolicy::c {

policy_runner host_backend::runner_of(any_policy const& policy) { return policy_runner::of(policy); }

}  // namespace kvpolicy::c
