#include "kvpolicy/triggers/any_of.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <limits>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/triggers/entropy.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/triggers/prefill.hpp"

namespace kvpolicy {
namespace {

TEST_CASE("either of two triggers is enough, on either side", "[trigger]") {
  auto const due = [](auto const& trigger, std::int64_t since) { return trigger.due(trigger.start({}), {0}, {0}, since); };
  REQUIRE(due(triggers::any_of{triggers::every{4}, triggers::prefill{}}, 4));
  REQUIRE(due(triggers::any_of{triggers::prefill{}, triggers::every{4}}, 4));
  REQUIRE_FALSE(due(triggers::any_of{triggers::every{4}, triggers::every{5}}, 3));
  REQUIRE(due(triggers::any_of{triggers::prefill{}, triggers::any_of{triggers::prefill{}, triggers::every_step{}}}, 1));
}

TEST_CASE("what one of two triggers observes reaches it, and is forgotten with the rest", "[trigger]") {
  triggers::any_of const trigger{triggers::every{1000}, triggers::entropy{.mean = .5f, .variance = 9, .page = 2}};
  STATIC_REQUIRE(decltype(trigger)::needs == signals::logits);
  host_exec exec;
  std::array<float, 8> const unsure{};
  auto state = trigger.start({});
  trigger.observe(state, 1, {unsure}, exec);
  REQUIRE_FALSE(trigger.due(state, {0}, {0}, 1));
  trigger.observe(state, 2, {unsure}, exec);
  REQUIRE(trigger.due(state, {0}, {0}, 2));
  trigger.observe(state, 3, {unsure}, exec);
  state.restart();
  std::array<float, 8> sure{};
  sure[0] = 90;
  trigger.observe(state, 4, {sure}, exec);  // the page's other token is gone
  REQUIRE_FALSE(trigger.due(state, {0}, {0}, 4));
  REQUIRE(trigger.due(state, {0}, {0}, 1000));
}

TEST_CASE("thresholds that nothing passes want no logits", "[trigger]") {
  constexpr float never = std::numeric_limits<float>::infinity();
  constexpr triggers::any_of quiet{triggers::every{3}, triggers::entropy{.mean = never, .variance = never}};
  constexpr triggers::any_of loud{triggers::entropy{.mean = never}, triggers::every{3}};
  STATIC_REQUIRE(quiet.wants() == signals::none);
  STATIC_REQUIRE(loud.wants() == signals::logits);
}

}  // namespace
}  // namespace kvpolicy
