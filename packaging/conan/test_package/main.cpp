#include <kvpolicy.h>
#include <kvpolicy/exec/simd.hpp>
#include <kvpolicy/presets/snapkv.hpp>
#include <kvpolicy/version.hpp>

#include <cstring>

int main() {
  kvpolicy::cache_shape const shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 8, .max_tokens = 100};
  kvpolicy::simd_exec exec(shape);
  auto state = kvpolicy::start(kvpolicy::presets::snapkv{.tokens = 20}, shape);
  return std::strcmp(kvpolicy_version(), KVPOLICY_VERSION);
}
