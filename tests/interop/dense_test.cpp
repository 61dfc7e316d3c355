#include "kvpolicy/interop/dense.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <functional>
#include <vector>

#include "kvpolicy/interop/flashinfer.hpp"
#include "kvpolicy/interop/sglang.hpp"
#include "kvpolicy/interop/tensorrt_llm.hpp"
#include "kvpolicy/interop/vllm.hpp"

namespace kvpolicy {
namespace {

/// Keys of 12 channels and values of 8: 2 KV heads, 3 pages of 4 tokens.
constexpr cache_shape unlike{1, 4, 2, 12, 12, element_type::f32, 8};
constexpr std::int64_t H = unlike.kv_heads, L = unlike.max_tokens, N = 4, D = unlike.head_dim, V = unlike.value_dim;
std::int32_t const pages[] = {2, 0, 1};
std::int32_t const slots[] = {8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7};

float element(std::int64_t h, std::int64_t t, std::int64_t d) { return static_cast<float>(1000 * h + 20 * t + d); }

/// Writes rows of `dim` channels to where an engine has them: `at(head, place, channel)`, by hand.
std::vector<float> written(std::int64_t size, std::int64_t dim, float sign,
                           std::function<std::int64_t(std::int64_t, std::int64_t, std::int64_t)> const& at) {
  std::vector<float> made(static_cast<std::size_t>(size), -1e9f);
  for (std::int64_t h = 0; h < H; ++h)
    for (std::int64_t t = 0; t < L; ++t)
      for (std::int64_t d = 0; d < dim; ++d) made[static_cast<std::size_t>(at(h, slots[t], d))] = sign * element(h, t, d);
  return made;
}

template <class View>
void is_as_written(View view, float sign_of_values) {
  view.token_count = L;
  std::vector<float> key(D), value(V);
  for (std::int64_t h = 0; h < H; ++h)
    for (std::int64_t t = 0; t < L; ++t) {
      view.keys({0}).load({h}, {t}, key);
      view.values({0}).load({h}, {t}, value);
      for (std::int64_t d = 0; d < D; ++d) REQUIRE(key[static_cast<std::size_t>(d)] == element(h, t, d));
      for (std::int64_t d = 0; d < V; ++d) REQUIRE(value[static_cast<std::size_t>(d)] == sign_of_values * element(h, t, d));
    }
}

TEST_CASE("values narrower than keys are found in every engine's layout", "[interop]") {
  std::int64_t const size = H * L * D;
  auto const paged = [](page_layout how, std::int64_t dim) {
    return [=](std::int64_t h, std::int64_t s, std::int64_t d) {
      return how == page_layout::nhd ? (s * H + h) * dim + d : ((s / N * H + h) * N + s % N) * dim + d;
    };
  };
  for (page_layout const how : {page_layout::nhd, page_layout::hnd}) {
    std::vector<float> const keys = written(size, D, 1, paged(how, D));
    std::vector<float> const values = written(size, V, -1, paged(how, V));
    auto view = flashinfer::view(how, unlike, N, keys.data(), values.data());
    view.pages = pages;
    is_as_written(view, -1);
    auto latent = flashinfer::view(how, unlike, N, keys.data(), keys.data());
    latent.pages = pages;
    is_as_written(latent, 1);
    CHECK_THROWS_AS(flashinfer::packed_view(how, unlike, N, keys.data()), invalid_value);
    if (how == page_layout::hnd) {  // TensorRT-LLM's blocks are of keys, or of latent rows
      auto blocks = tensorrt_llm::view(unlike, N, keys.data());
      blocks.pages = pages;
      is_as_written(blocks, 1);
      continue;
    }
    auto of_slots = sglang::view(unlike, keys.data(), values.data());
    of_slots.pages = slots;
    is_as_written(of_slots, -1);
  }
  auto const at = [&](std::int64_t v) {
    return [v](std::int64_t h, std::int64_t s, std::int64_t d) { return ((s / N * H + h) * N + s % N) * (D + V) + v * D + d; };
  };
  std::vector<float> pool = written(H * L * (D + V), D, 1, at(0));
  std::vector<float> const behind = written(H * L * (D + V), V, -1, at(1));
  for (std::size_t i = 0; i < pool.size(); ++i)
    if (behind[i] > -1e8f) pool[i] = behind[i];
  auto packed = vllm::view(unlike, N, pool.data());
  packed.pages = pages;
  is_as_written(packed, -1);

  std::int64_t const x = 4;
  std::vector<float> const runs = written(size, D, 1, [](std::int64_t h, std::int64_t s, std::int64_t d) {
    return (s / N * H + h) * N * D + d / x * N * x + s % N * x + d % x;
  });
  std::vector<float> const columns = written(
      size, V, -1, [](std::int64_t h, std::int64_t s, std::int64_t d) { return ((s / N * H + h) * V + d) * N + s % N; });
  auto in_runs = vllm::x_packed_view(unlike, N, x, runs.data(), columns.data());
  in_runs.pages = pages;
  is_as_written(in_runs, -1);
}

TEST_CASE("values narrower than keys are found in tensors and cells", "[interop]") {
  std::int64_t const size = H * L * D;
  auto const in_order = [](auto of) {  // without pages: a token's place is the token
    return [of](std::int64_t h, std::int64_t s, std::int64_t d) { return of(h, (s / N + 1) % 3 * N + s % N, d); };
  };
  auto const tensor = [&](std::int64_t dim) {
    return in_order([dim](std::int64_t h, std::int64_t t, std::int64_t d) { return (h * L + t) * dim + d; });
  };
  auto const cells = [&](std::int64_t dim) {
    return in_order([dim](std::int64_t h, std::int64_t t, std::int64_t d) { return (t * H + h) * dim + d; });
  };
  std::vector<float> const keys = written(size, D, 1, tensor(D));
  std::vector<float> const values = written(size, V, -1, tensor(V));
  is_as_written(hugging_face::view(unlike, L, keys.data(), values.data()), -1);
  is_as_written(hugging_face::view(unlike, L, keys.data(), keys.data()), 1);
  auto const second = [&](std::vector<float> item, std::int64_t dim) {  // behind another item of a batch
    item.insert(item.begin(), static_cast<std::size_t>(H * L * dim), 7.f);
    return item;
  };
  std::vector<float> const batch_keys = second(keys, D), batch_values = second(values, V);
  is_as_written(hugging_face::view(unlike, L, batch_keys.data(), batch_values.data(), 1), -1);
  std::vector<float> const key_cells = written(size, D, 1, cells(D));
  std::vector<float> const value_cells = written(size, V, -1, cells(V));
  std::vector<float> const by_channel =
      written(size, V, -1, in_order([](std::int64_t h, std::int64_t t, std::int64_t d) { return (h * V + d) * L + t; }));
  is_as_written(llama_cpp::view(unlike, L, key_cells.data(), value_cells.data(), false), -1);
  is_as_written(llama_cpp::view(unlike, L, key_cells.data(), key_cells.data(), false), 1);
  is_as_written(llama_cpp::view(unlike, L, key_cells.data(), by_channel.data(), true), -1);
}

TEST_CASE("views of blocks have a row's bytes between tokens", "[interop]") {
  cache_shape const cache{1, 2, 2, 64, 40, element_type::q8_0};  // a row is two blocks of 34 bytes
  std::vector<std::byte> cells(20000);
  element_pointer const at(cells.data());
  CHECK(hugging_face::view(cache, 40, at, at).key_strides.token == 68);
  CHECK(hugging_face::view(cache, 40, at, at).key_strides.head == 40 * 68);
  CHECK(vllm::view(cache, 16, at).key_strides.token == 2 * 68);
  CHECK_THROWS_AS(llama_cpp::view(cache, 40, at, at, true), invalid_value);
}

TEST_CASE("layers that overlap are refused", "[interop]") {
  cache_shape const cache{2, 2, 2, 64, 40, element_type::f32};
  std::vector<float> cells(2 * 2 * 40 * 64);
  std::int64_t const layer = 2 * 40 * 64;
  CHECK_THROWS_AS(hugging_face::view(cache, 40, cells.data(), cells.data(), 0, layer), invalid_value);  // elements
  CHECK_THROWS_AS(llama_cpp::view(cache, 40, cells.data(), cells.data(), false, layer), invalid_value);
  CHECK_NOTHROW(hugging_face::view(cache, 40, cells.data(), cells.data(), 0, layer * 4));
}

}  // namespace
}  // namespace kvpolicy
