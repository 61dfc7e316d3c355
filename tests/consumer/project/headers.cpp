// Headers alone: quest reads at most its budget of a random cache.
#include <kvpolicy/kvpolicy.hpp>

#include <cstdio>
#include <vector>

namespace kv = kvpolicy;

int main() {
  kv::cache_shape const shape{
      .layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 4, .max_tokens = 256, .type = kv::element_type::f32};
  std::vector<float> cells(256 * 4);
  for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = static_cast<float>(i * 7 % 11);
  auto const* const base = reinterpret_cast<std::byte const*>(cells.data());
  kv::byte_strides const strides{.layer = 256 * 16, .head = 16, .token = 16, .dim = 4};
  kv::strided_view<> const cache{.cache = shape,
                                 .token_count = 256,
                                 .key_base = base,
                                 .value_base = base,
                                 .key_strides = strides,
                                 .value_strides = strides};
  kv::presets::quest const policy{.tokens = 64};
  auto state = kv::start(policy, kv::shape_of(cache));
  kv::host_exec exec;
  kv::strided_view<> prompt = cache;
  prompt.token_count = 255;
  state.prefill(prompt, {0}, {}, exec);
  kv::selection const kept = state.choose(cache, {0}, {cells.data(), 2, 4, 1}, exec);
  std::printf("%lld tokens read\n", static_cast<long long>(kept.tokens()));
  return kept.tokens() > 0 && kept.tokens() <= 64 ? 0 : 1;
}
