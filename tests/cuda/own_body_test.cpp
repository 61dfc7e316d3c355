#include "cuda/own_body.hpp"

#include <catch2/catch_test_macros.hpp>
#include <numeric>
#include <vector>

#include "cuda/emulator/gpu_emulator.hpp"

namespace kvpolicy_test {
namespace {

TEST_CASE("a user's own body runs on the GPU emulator", "[cuda]") {
  std::vector<float> values(300);
  std::iota(values.begin(), values.end(), 0.0f);
  std::vector<float> sums(3);
  gpu_emulator device(1);
  device.launch<own_body>({3, 1, 1}, {{values.data(), 300}, 300, {sums.data(), 3}});
  REQUIRE(sums == std::vector<float>{127.0f * 64, (128.0f + 255) * 64, (256.0f + 299) * 22});
  REQUIRE_THROWS_AS(device.launch<own_body>({3, 1, 1}, {{values.data(), 299}, 300, {sums.data(), 3}}), emulator_error);
}

}  // namespace
}  // namespace kvpolicy_test
