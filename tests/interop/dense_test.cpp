#include "kvpolicy/interop/dense.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <vector>

#include "kvpolicy/interop/vllm.hpp"

namespace kvpolicy {
namespace {

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
