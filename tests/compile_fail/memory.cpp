// A host executor can't be handed what lies in device memory.
#include <kvpolicy/kvpolicy.hpp>

using namespace kvpolicy;

#ifndef MEMORY
#define MEMORY host_memory
#endif

selection choose_on_host(presets::quest const& policy, request_of<presets::quest>& state, strided_view<MEMORY> const& view,
                         host_exec& exec) {
  return state.choose(view, {0}, {}, exec);
}
