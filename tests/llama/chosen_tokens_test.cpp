// What the model's own indexer chose is read, and nothing else: other rows may hold anything.
#include "chosen_tokens.hpp"

#include <catch2/catch_test_macros.hpp>

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "gguf_writer.hpp"
#include "kvpolicy/types.hpp"
#include "sparse_graph.hpp"

namespace kvpolicy::llama::testing {
namespace {

constexpr std::int64_t dim = 64;
constexpr std::int64_t value_dim = 48;
constexpr std::int64_t heads = 4;
constexpr std::int64_t cells = 256;
constexpr std::int64_t chosen = 8;

TEST_CASE("of a mask that the model computes, the finite entries are read alone") {
  for (auto const& [tokens, streams, f32] :
       {std::tuple(std::int64_t{1}, std::int64_t{1}, false), std::tuple(std::int64_t{5}, std::int64_t{3}, false),
        std::tuple(std::int64_t{1}, std::int64_t{3}, true)}) {
    CAPTURE(tokens, streams, f32);
    sparse_graph graph({heads, 1, dim, value_dim, cells, chosen, tokens, streams, f32});
    generator random(static_cast<std::uint64_t>(tokens * 10 + streams));
    std::generate_n(data_of<float>(graph.queries), ggml_nelements(graph.queries), [&] { return random.normal(); });
    auto const put = [&](std::int64_t at, float value) {
      if (f32) data_of<float>(graph.cache)[at] = value;
      else data_of<std::uint16_t>(graph.cache)[at] = float_to_half(value);
    };
    for (std::int64_t i = 0; i < ggml_nelements(graph.cache); ++i) put(i, random.normal());
    std::vector<char> read(static_cast<std::size_t>(cells * streams));
    for (std::int64_t row = 0; row < tokens * streams; ++row) {
      std::int64_t const seen = cells / 2 + row % tokens;  // causal: what is chosen behind is not seen
      for (std::int64_t c = 0; c < cells; ++c) data_of<float>(graph.engines)[row * cells + c] = c < seen ? 0 : -INFINITY;
      for (std::int64_t i = 0; i < chosen; ++i) {
        std::int64_t const cell = (row * 37 + i * 29 + 3) % cells;
        data_of<std::int32_t>(graph.indices)[row * chosen + i] = static_cast<std::int32_t>(cell);
        if (cell < seen) read[static_cast<std::size_t>(row / tokens * cells + cell)] = 1;
      }
    }
    REQUIRE(graph.compute());
    auto const* const out = data_of<float>(graph.attention);
    std::vector<float> const engine(out, out + ggml_nelements(graph.attention));
    for (std::int64_t cell = 0; cell < cells * streams; ++cell)
      if (read[static_cast<std::size_t>(cell)] == 0)
        for (std::int64_t i = 0; i < dim; ++i) put(cell * dim + i, NAN);
    REQUIRE(chosen_at_most(graph.attention) == chosen);
    std::fill_n(data_of<float>(graph.attention), engine.size(), -7.0f);
    simd_exec exec(
        {.layers = 1, .q_heads = heads, .kv_heads = 1, .head_dim = dim, .max_tokens = cells * streams, .value_dim = value_dim});
    chosen_tokens().attend(graph.attention, exec);
    for (std::size_t i = 0; i < engine.size(); ++i) REQUIRE(std::abs(out[i] - engine[i]) < 5e-3f);
  }
}

TEST_CASE("other masks that a graph computes are not taken for a choice") {
  auto const context = std::unique_ptr<ggml_context, decltype(&ggml_free)>(ggml_init({1 << 20, nullptr, true}), &ggml_free);
  ggml_context* const c = context.get();
  ggml_tensor* const q = ggml_new_tensor_4d(c, GGML_TYPE_F32, dim, 1, heads, 1);
  ggml_tensor* const k = ggml_new_tensor_4d(c, GGML_TYPE_F16, dim, cells, 1, 1);
  ggml_tensor* const mask = ggml_new_tensor_4d(c, GGML_TYPE_F32, cells, 1, 1, 1);
  auto const is_choice = [&](ggml_tensor* by, float max_bias = 0) {
    return chosen_at_most(ggml_flash_attn_ext(c, q, k, k, ggml_cast(c, by, GGML_TYPE_F16), 1, max_bias, 0)).has_value();
  };
  CHECK_FALSE(is_choice(mask));
  CHECK_FALSE(is_choice(ggml_add(c, mask, mask)));
  CHECK_FALSE(is_choice(ggml_add(c, ggml_fill(c, mask, -INFINITY), mask)));
  auto const choice = [&](float all, float some) {
    ggml_tensor* const filled = ggml_reshape_3d(c, ggml_fill(c, mask, all), 1, cells, 1);
    ggml_tensor* const indices = ggml_new_tensor_2d(c, GGML_TYPE_I32, chosen, 1);
    ggml_tensor* const rows = ggml_fill(c, ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, chosen, 1), some);
    return ggml_add(c, ggml_reshape_4d(c, ggml_set_rows(c, filled, rows, indices), cells, 1, 1, 1), mask);
  };
  CHECK(is_choice(choice(-INFINITY, 0)));
  CHECK_FALSE(is_choice(choice(0, 0)));
  CHECK_FALSE(is_choice(choice(-INFINITY, 1)));
  CHECK_FALSE(is_choice(choice(-INFINITY, 0), 8));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
