// An executor on a device needs a member of its own for a primitive beside the core: there is no definition to fall back on.
#include <kvpolicy/kvpolicy.hpp>

using namespace kvpolicy;

/// Has the core alone.
struct device_exec : archetype::executor {
  using memory = device_memory;
};
static_assert(executor<device_exec>);

#ifndef PRESET
#define PRESET snapkv
#endif

void take(request_of<presets::PRESET>& state, strided_view<device_memory> const& view, device_exec& exec) {
  state.prefill(view, {0}, {}, exec);
}
