// Any bytes are a head profile or a message. A profile reads back as it was written, and heterocache takes it or says why not.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "kvpolicy/kvpolicy.hpp"
#include "profile_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace kvpolicy;
  try {
    for (float const score : parse_retrieval({reinterpret_cast<char const*>(data), size}, "fuzzed").all) {
      if (!(score >= 0 && score <= 1)) std::abort();
    }
  } catch (error const&) {
  }
  try {
    profile_file const read = parse_profile({reinterpret_cast<char const*>(data), size}, "fuzzed");
    std::string const text = to_json(read);
    if (to_json(parse_profile(text, "again")) != text) std::abort();
    cache_shape const shape{read.layers, 2 * read.kv_heads, read.kv_heads, 4, 64, element_type::f32};
    if (shape.layers * shape.kv_heads > 64) return 0;
    presets::heterocache policy{.tokens = 24, .after = 0};
    policy.heads = read.heads;
    auto state = start(policy, shape);
    std::vector<float> cells(static_cast<std::size_t>(64 * shape.kv_heads * 4));
    for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = static_cast<float>(i * 31 % 17) - 8;
    auto const* const base = reinterpret_cast<std::byte const*>(cells.data());
    byte_strides const strides{.layer = 0, .head = 16, .token = 16 * shape.kv_heads, .dim = 4};
    strided_view<> view{shape, 40, base, base, strides, strides};
    host_exec exec;
    std::int64_t const row = shape.q_heads * 4;
    std::vector<float> const queries(static_cast<std::size_t>(40 * row), .25f);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      state.prefill(view, {l}, {.queries = {queries.data(), 40, shape.q_heads, row, 4, .5f}}, exec);
    }
    for (view.token_count = 41; view.token_count < 50; ++view.token_count) {
      for (std::int64_t l = 0; l < shape.layers; ++l) state.choose(view, {l}, {queries.data(), shape.q_heads, 4, .5f}, exec);
    }
  } catch (error const&) {
  }
  return 0;
}
