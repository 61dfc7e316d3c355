// The row store behind the C ABI.
#pragma once

#include <memory>

#include "kvpolicy.h"
#include "kvpolicy/store/row_store.hpp"
#include "tensor.hpp"

struct kvpolicy_arena {
  std::shared_ptr<kvpolicy::block_arena> blocks;
};

struct kvpolicy_store {
  std::shared_ptr<kvpolicy::block_arena> blocks;
  kvpolicy::row_store rows;
  std::weak_ptr<void> binding{};  ///< of the state that it is bound to
};

namespace kvpolicy::c {

/// Throws invalid_value where the shape can't be.
cache_shape shape_from(kvpolicy_shape const* given);

}  // namespace kvpolicy::c
