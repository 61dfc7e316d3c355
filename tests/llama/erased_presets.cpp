#include "erased_presets.hpp"

namespace kvpolicy {
KVPOLICY_EACH_PRESET(KVPOLICY_ERASED)
}  // namespace kvpolicy
