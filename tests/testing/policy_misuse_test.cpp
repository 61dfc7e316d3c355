#include "kvpolicy/testing/policy_misuse.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <utility>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/presets/sentencekv.hpp"

namespace kvpolicy::testing {
namespace {

/// A request that accepts one of the calls that it should refuse, by its number among them.
template <class Request>
class forgiving {
 public:
  forgiving(Request real, int accepts) : real_(std::move(real)), accepts_(accepts) {}

  void prefill(strided_view<> const& view, layer_id layer, prompt_signals const& prompt, host_exec& exec) {
    pass([&] { real_.prefill(view, layer, prompt, exec); });
  }
  void choose(strided_view<> const& view, layer_id layer, step_signals const& step, host_exec& exec) {
    pass([&] { static_cast<void>(real_.choose(view, layer, step, exec)); });
  }
  void observe(step_outcome const& outcome, host_exec& exec) {
    pass([&] { real_.observe(outcome, exec); });
  }
  selection kept(layer_id layer) {
    selection made;
    pass([&] { made = real_.kept(layer); });
    return made;
  }
  selection retained(layer_id layer) {
    selection made;
    pass([&] { made = real_.retained(layer); });
    return made;
  }
  int refused() const noexcept { return refused_; }

 private:
  template <class Call>
  void pass(Call call) {
    try {
      call();
    } catch (error const&) {
      if (refused_++ != accepts_) throw;
    }
  }

  Request real_;
  int accepts_;
  int refused_ = 0;
};

/// SentenceKV needs most signals.
struct misuse : policy_misuse<presets::sentencekv, host_exec> {
  using base = policy_misuse<presets::sentencekv, host_exec>;
  misuse(presets::sentencekv const& policy, host_exec& exec) : base(policy, exec, {}) {}

  /// The calls that were refused: all of them, but for one that is accepted.
  int prompts(int accepts) {
    random_cache const cache(shape_, random_, content::normal);
    forgiving request(start(policy_, shape_), accepts);
    misuse_of_prompts(request, cache);
    return request.refused();
  }
  int steps(int accepts) {
    random_cache const cache(shape_, random_, content::normal);
    auto state = start(policy_, shape_);
    for (std::int64_t l = 0; l < shape_.layers; ++l)
      state.prefill(cache.view(options_.prompt), {l}, inputs_.prompt(0, options_.prompt), exec_);
    forgiving request(std::move(state), accepts);
    misuse_of_steps(request, cache, options_.prompt + 1);
    return request.refused();
  }
};

TEST_CASE("each misuse that a policy accepts is found", "[testing]") {
  static constexpr std::array<std::uint8_t, 8> boundary{0, 1, 0, 0, 1, 0, 0, 0};
  presets::sentencekv policy{.tokens = 40, .after = 0};
  policy.sentences.boundary = boundary;
  host_exec exec;
  int const prompts = misuse(policy, exec).prompts(-1);
  int const steps = misuse(policy, exec).steps(-1);
  REQUIRE(prompts >= 14);
  REQUIRE(steps >= 12);
  for (int accepts = 0; accepts < prompts; ++accepts) {
    CAPTURE(accepts);
    REQUIRE_THROWS_AS(misuse(policy, exec).prompts(accepts), broken_promise);
  }
  for (int accepts = 0; accepts < steps; ++accepts) {
    CAPTURE(accepts);
    REQUIRE_THROWS_AS(misuse(policy, exec).steps(accepts), broken_promise);
  }
}

}  // namespace
}  // namespace kvpolicy::testing
