// A state behind the C ABI: a sequence on one of the backends.
#pragma once

#include <memory>
#include <utility>
#include <variant>

#include "host_backend.hpp"
#include "kvpolicy.h"
#include "ranked_backend.hpp"
#include "sequence.hpp"
#ifdef KVPOLICY_C_HAS_GPU
#include "gpu_backend.hpp"
#endif

struct kvpolicy_state {
  std::shared_ptr<void> binding;  ///< lives as long as the state is bound to its store

  template <class... Args>
  explicit kvpolicy_state(Args&&... args) : of(std::forward<Args>(args)...) {}

#ifdef KVPOLICY_C_HAS_GPU
  std::variant<kvpolicy::c::sequence<kvpolicy::c::host_backend>, kvpolicy::c::sequence<kvpolicy::c::ranked_backend>,
               kvpolicy::c::sequence<kvpolicy::c::gpu_backend>>
      of;
#else
  std::variant<kvpolicy::c::sequence<kvpolicy::c::host_backend>, kvpolicy::c::sequence<kvpolicy::c::ranked_backend>> of;
#endif
};
