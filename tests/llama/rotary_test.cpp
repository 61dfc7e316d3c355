// The rotary embedding that is read off a graph undoes what the engine's kernel did.
#include "rotary.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gguf_writer.hpp"
#include "kvpolicy/error.hpp"

namespace kvpolicy::llama::testing {
namespace {

constexpr std::int64_t dim = 80;
constexpr std::int64_t heads = 2;
constexpr std::int64_t tokens = 6;
constexpr std::array<std::int32_t, tokens> text{0, 1, 2, 700, 4095, 30000};

struct embedding {
  int mode = GGML_ROPE_TYPE_NEOX;
  int turned = dim;
  std::array<int, 4> sections{};  ///< of pairs, where there are several axes
  float scale = 1;
  float extrapolated = 0;  ///< YaRN
  float magnitude = 1;
  bool factors = false;
};

/// Random keys, as they are and as the engine writes them.
class turned_keys {
 public:
  explicit turned_keys(embedding const& by) {
    context_.reset(ggml_init({std::size_t{1} << 20, nullptr, true}));
    ggml_context* const c = context_.get();
    bool const axes = (by.mode & GGML_ROPE_TYPE_MROPE) != 0;
    ggml_tensor* const keys = ggml_new_tensor_3d(c, GGML_TYPE_F32, dim, heads, tokens);
    ggml_tensor* const at = ggml_new_tensor_1d(c, GGML_TYPE_I32, axes ? 4 * tokens : tokens);
    ggml_tensor* const factors = by.factors ? ggml_new_tensor_1d(c, GGML_TYPE_F32, by.turned / 2) : nullptr;
    std::array<int, 4> sections = by.sections;
    ggml_tensor* const rope = axes ? ggml_rope_multi(c, keys, at, factors, by.turned, sections.data(), by.mode, 4096, 1e4f,
                                                     by.scale, by.extrapolated, by.magnitude, 32, 1)
                                   : ggml_rope_ext(c, keys, at, factors, by.turned, by.mode, 4096, 1e4f, by.scale,
                                                   by.extrapolated, by.magnitude, 32, 1);
    ggml_tensor* const cache = ggml_new_tensor_2d(c, GGML_TYPE_F32, dim * heads, tokens);
    ggml_tensor* const cells = ggml_new_tensor_1d(c, GGML_TYPE_I64, tokens);
    written = ggml_set_rows(c, cache, ggml_reshape_2d(c, rope, dim * heads, tokens), cells);
    cpu_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    memory_.reset(ggml_backend_alloc_ctx_tensors(c, cpu_.get()));
    auto const set = [](ggml_tensor* tensor, auto const& values) {
      ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
    };
    generator random(7);
    plain.resize(static_cast<std::size_t>(ggml_nelements(keys)));
    for (float& value : plain) value = random.normal();
    set(keys, plain);
    std::vector<std::int32_t> positions(4 * tokens);  // the last axis of text is 0
    for (std::size_t i = 0; i < 3 * tokens; ++i) positions[i] = text[i % tokens];
    set(at, positions);
    std::vector<float> divided_by(dim);
    for (std::size_t i = 0; i < divided_by.size(); ++i) divided_by[i] = 1 + .1f * static_cast<float>(i);
    if (factors != nullptr) set(factors, divided_by);
    set(cells, std::array<std::int64_t, tokens>{0, 1, 2, 3, 4, 5});
    ggml_cgraph* const graph = ggml_new_graph(c);
    ggml_build_forward_expand(graph, written);
    REQUIRE(ggml_backend_graph_compute(cpu_.get(), graph) == GGML_STATUS_SUCCESS);
    turned.resize(plain.size());
    ggml_backend_tensor_get(cache, turned.data(), 0, ggml_nbytes(cache));
  }

  ggml_tensor* written = nullptr;
  std::vector<float> plain;
  std::vector<float> turned;

 private:
  std::unique_ptr<ggml_context, decltype(&ggml_free)> context_{nullptr, &ggml_free};
  std::unique_ptr<ggml_backend, decltype(&ggml_backend_free)> cpu_{nullptr, &ggml_backend_free};
  std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)> memory_{nullptr, &ggml_backend_buffer_free};
};

/// The greatest distance of undone keys from plain ones, times a magnitude in the turned part.
double apart(embedding const& by, double magnitude = 1) {
  turned_keys const keys(by);
  rotary read;
  read.learn(keys.written, dim);
  rotation const r = read.embedding();
  double most = 0;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t h = 0; h < heads; ++h) {
      std::int64_t const row = (t * heads + h) * dim;
      auto const of = [&](std::vector<float> const& from, std::int64_t i) {
        return static_cast<double>(from[static_cast<std::size_t>(row + i)]);
      };
      for (std::int64_t i = 0; i < r.pairs; ++i) {
        bool const halves = r.how == rotation::pairing::halves;
        std::int64_t const a = halves ? i : 2 * i;
        std::int64_t const b = halves ? i + r.pairs : 2 * i + 1;
        double const angle =
            static_cast<double>(text[static_cast<std::size_t>(t)]) * static_cast<double>(r.inverse_frequency[i]);
        double const x = of(keys.turned, a) * std::cos(angle) + of(keys.turned, b) * std::sin(angle);
        double const y = of(keys.turned, b) * std::cos(angle) - of(keys.turned, a) * std::sin(angle);
        most = std::max({most, std::abs(x - magnitude * of(keys.plain, a)), std::abs(y - magnitude * of(keys.plain, b))});
      }
    }
  return most;
}

TEST_CASE("a rotary embedding that is read off a graph undoes the engine's") {
  constexpr double rounding = .03;  // of angles of 30,000 radians in fp32
  CHECK(apart({.mode = GGML_ROPE_TYPE_NORMAL}) < rounding);
  CHECK(apart({.mode = GGML_ROPE_TYPE_NEOX}) < rounding);
  CHECK(apart({.turned = 32}) < rounding);
  CHECK(apart({.scale = .25f}) < rounding);
  CHECK(apart({.scale = .5f, .factors = true}) < rounding);
  for (int const mode : {GGML_ROPE_TYPE_NORMAL, GGML_ROPE_TYPE_NEOX}) {  // YaRN multiplies by its magnitude, too
    CHECK(apart({.mode = mode, .scale = .25f, .extrapolated = 1}, 1 + .1 * std::log(4.)) < rounding);
    CHECK(apart({.mode = mode, .scale = .0625f, .extrapolated = .5f, .magnitude = .9f, .factors = true},
                .9 * (1 + .1 * std::log(16.))) < rounding);
  }
  CHECK(apart({.mode = GGML_ROPE_TYPE_IMROPE, .turned = 64, .sections = {11, 11, 10, 0}}) < rounding);  // Qwen3.5
  CHECK(apart({.mode = GGML_ROPE_TYPE_MROPE, .turned = 64, .sections = {16, 8, 8, 0}}) < rounding);
  CHECK(apart({.mode = GGML_ROPE_TYPE_MROPE, .turned = 64, .sections = {8, 8, 8, 8}}) < rounding);
  CHECK(apart({.mode = GGML_ROPE_TYPE_IMROPE, .turned = 64, .sections = {5, 4, 3, 20}, .scale = .5f, .extrapolated = 1},
              1 + .1 * std::log(2.)) < rounding);
}

TEST_CASE("rotary embeddings that differ between layers, and an image's positions, are refused") {
  using Catch::Matchers::ContainsSubstring;
  rotary read;
  read.learn(turned_keys({}).written, dim);
  read.learn(turned_keys({}).written, dim);
  REQUIRE_THROWS_WITH(read.learn(turned_keys({.scale = .5f}).written, dim), ContainsSubstring("layers have different ones"));
  rotary axes;
  axes.learn(turned_keys({.mode = GGML_ROPE_TYPE_IMROPE, .turned = 64, .sections = {11, 11, 10, 0}}).written, dim);
  axes.check_text(std::array<std::int32_t, 8>{3, 4, 3, 4, 3, 4, 0, 0}, 2);
  REQUIRE_THROWS_WITH(axes.check_text(std::array<std::int32_t, 8>{3, 3, 3, 4, 3, 4, 0, 0}, 2), ContainsSubstring("image"));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
