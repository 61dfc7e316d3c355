// An executor of a user's own that has the core alone: each preset runs on it, and what it lacks runs by its definition.
#include <catch2/catch_test_macros.hpp>

#include "conformance/small_presets.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "kvpolicy/testing/check_policy.hpp"

namespace kvpolicy_test {
namespace {

using namespace kvpolicy;

/// The 11 members that an executor must have, and no other.
class core_exec {
 public:
  using memory = host_memory;

  void pool_mean(auto&&... given) { on_.pool_mean(given...); }
  void pool_bounds(auto&&... given) { on_.pool_bounds(given...); }
  void pool_mean_deviation(auto&&... given) { on_.pool_mean_deviation(given...); }
  void score_dot(auto&&... given) { on_.score_dot(given...); }
  void score_bounds(auto&&... given) { on_.score_bounds(given...); }
  void window_attention(auto&&... given) { on_.window_attention(given...); }
  void list_attention(auto&&... given) { on_.list_attention(given...); }
  void top_k(auto&&... given) { on_.top_k(given...); }
  void attend(auto&&... given) { on_.attend(given...); }
  void attend_block(auto&&... given) { on_.attend_block(given...); }
  uncertainty entropy(std::span<float const> logits) { return on_.entropy(logits); }

 private:
  host_exec on_;
};
static_assert(executor<core_exec>);

TEST_CASE("every preset runs on an executor that has the core alone") {
  presets::all::each([&](auto const& preset) {
    INFO(preset.name);
    REQUIRE_NOTHROW(kvpolicy::testing::check_policy(small(preset), {}, core_exec()));
  });
}

/// The core, and one primitive faster than its definition.
struct counting_exec : core_exec {
  int calls = 0;
  void row_norms(rows const& from, table<float> norms) {
    ++calls;
    host::row_norms(from, norms);
  }
};

TEST_CASE("a primitive beside the core is taken from the executor where it has it") {
  std::vector<float> row{3, 4};
  rows const from{.base = reinterpret_cast<std::byte const*>(row.data()),
                  .type = element_type::f32,
                  .heads = 1,
                  .tokens = 1,
                  .head_dim = 2,
                  .head_stride = 8,
                  .token_stride = 8,
                  .dim_stride = 4};
  float norm = 0;
  counting_exec with;
  row_norms(from, table<float>{&norm, 1, 1, 1}, with);
  CHECK(norm == 5);
  CHECK(with.calls == 1);
  core_exec without;
  norm = 0;
  row_norms(from, table<float>{&norm, 1, 1, 1}, without);
  CHECK(norm == 5);
}

}  // namespace
}  // namespace kvpolicy_test
