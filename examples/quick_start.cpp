#include <kvpolicy/interop/dense.hpp>
#include <kvpolicy/kvpolicy.hpp>

#include <iostream>

namespace kv = kvpolicy;

int main() {
  kv::cache_shape const shape{
      .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 2, .max_tokens = 4000, .type = kv::element_type::f32};
  std::vector<float> keys(2 * 4000, .1f), values(2 * 4000);  // your cache
  keys[2 * 2718] = 5;                                        // what the query below asks for
  auto cache = kv::hugging_face::view(shape, 4000, keys.data(), values.data());
  auto state = kv::start(kv::presets::quest{.tokens = 48}, shape);  // read 48 of 4,000 tokens
  kv::host_exec exec(shape);

  cache.token_count = 3999;  // a prompt is in the cache
  state.prefill(cache, {0}, {}, exec);
  cache.token_count = 4000;  // and the key of the token that is decoded now
  float const query[] = {1, 0};
  kv::selection const reads = state.choose(cache, {0}, {.queries = {query, 1, 2, 1.f}}, exec);
  for (auto const& [begin, end, why] : reads.of({0})) std::cout << begin << " to " << end << ": " << kv::name_of(why) << "\n";
}
