// An executor on a device needs a member of its own for a primitive beside the core: there is no definition to fall back on.
#include <kvpolicy/kvpolicy.hpp>

using namespace kvpolicy;

struct device_exec {
  using memory = device_memory;
  void pool_mean(auto&&...);
  void pool_bounds(auto&&...);
  void pool_mean_deviation(auto&&...);
  void score_dot(auto&&...);
  void score_bounds(auto&&...);
  void window_attention(auto&&...);
  void list_attention(auto&&...);
  void top_k(auto&&...);
  void attend(auto&&...);
  void attend_block(auto&&...);
  uncertainty entropy(std::span<float const>);
};
static_assert(executor<device_exec>);

#ifndef PRESET
#define PRESET snapkv
#endif

void take(request_of<presets::PRESET>& state, strided_view<device_memory> const& view, device_exec& exec) {
  state.prefill(view, {0}, {}, exec);
}
