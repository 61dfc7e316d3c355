#include "kvpolicy/triggers/entropy.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "kvpolicy/rule.hpp"

namespace kvpolicy_test {
namespace {

TEMPLATE_TEST_CASE("the trigger is due after a page whose mean entropy or varentropy passed, and at no other time", "[trigger]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(151);
  TestType on({1, 1, 1, 1, 1, element_type::f32});
  int fired = 0;
  int pages = 0;
  for (int round = 0; round < 60; ++round) {
    std::int64_t const page = random.between(1, 9);
    triggers::entropy const trigger{
        .mean = 1.8f + .5f * random.real(), .variance = .2f + .2f * random.real(), .page = static_cast<std::int32_t>(page)};
    auto state = trigger.start({});
    std::vector<double> entropies;
    for (std::int64_t n = random.between(1, 30), end = n + 60; n < end; ++n) {
      std::vector<float> const logits = random.reals(13, 3 + 2 * random.real());
      entropies.push_back(naive::entropy(logits).first);
      on.run([&](auto& exec) { trigger.observe(state, n, step_outcome{.logits = logits}, exec); });
      if (n % page != 0) {
        REQUIRE_FALSE(trigger.due(state, {0}, {0}, 1));
        continue;
      }
      auto const count = static_cast<double>(entropies.size());
      double mean = 0;
      for (double const e : entropies) mean += e / count;
      double variance = 0;
      for (double const e : entropies) variance += (e - mean) * (e - mean) / count;
      entropies.clear();
      REQUIRE(std::abs(state.pages.last().entropy - mean) < 1e-4);
      REQUIRE(std::abs(state.pages.last().varentropy - variance) < 1e-4);
      if (std::abs(mean - trigger.mean) < 1e-4 || std::abs(variance - trigger.variance) < 1e-4) continue;
      INFO("round " << round << " tokens " << n);
      REQUIRE(trigger.due(state, {0}, {0}, 1) == (mean > trigger.mean || variance > trigger.variance));
      fired += trigger.due(state, {0}, {0}, 1) ? 1 : 0;
      ++pages;
    }
  }
  REQUIRE(fired > pages / 10);
  REQUIRE(fired < pages * 9 / 10);
}

TEMPLATE_TEST_CASE("an entropy that is NaN makes the choice anew", "[trigger]", KVPOLICY_TEST_EXECUTORS) {
  TestType on({1, 1, 1, 1, 1, element_type::f32});
  for (std::size_t const words : {2u, 8u, 16u, 100u}) {
    std::vector<float> logits(words, 1.0f);
    logits[words / 2] = std::numeric_limits<float>::quiet_NaN();
    triggers::entropy const trigger{.mean = 100, .variance = 100, .page = 2};
    auto state = trigger.start({});
    on.run([&](auto& exec) {
      trigger.observe(state, 1, step_outcome{.logits = logits}, exec);
      trigger.observe(state, 2, step_outcome{.logits = logits}, exec);
    });
    INFO(words << " words");
    REQUIRE(trigger.due(state, {0}, {0}, 1));
  }
}

TEMPLATE_TEST_CASE("an entropy that is given stands for the logits that it is of", "[trigger]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(153);
  TestType on({1, 1, 1, 1, 1, element_type::f32});
  triggers::entropy const trigger{.mean = 1.8f, .variance = .2f, .page = 4};
  auto of_logits = trigger.start({});
  auto of_entropy = trigger.start({});
  int fired = 0;
  for (std::int64_t n = 1; n <= 200; ++n) {
    std::vector<float> const logits = random.reals(13, 3 + 2 * random.real());
    on.run([&](auto& exec) {
      trigger.observe(of_logits, n, step_outcome{.logits = logits}, exec);
      trigger.observe(of_entropy, n, step_outcome{.logits = {}, .entropy = entropy(logits, exec).entropy}, exec);
    });
    REQUIRE(trigger.due(of_entropy, {0}, {0}, 1) == trigger.due(of_logits, {0}, {0}, 1));
    fired += trigger.due(of_logits, {0}, {0}, 1) ? 1 : 0;
  }
  REQUIRE(fired > 5);
  REQUIRE(fired < 45);
}

/// The q-quantile as numpy.quantile(values, q) has it: the n values stand at 0, 1/(n-1), ..., 1.
double percentile(std::vector<float> values, double q) {
  std::sort(values.begin(), values.end());
  if (values.size() == 1) return values[0];
  auto const steps = static_cast<double>(values.size() - 1);
  std::size_t i = 0;
  while (i + 2 < values.size() && static_cast<double>(i + 1) / steps <= q) ++i;
  double const part = q * steps - static_cast<double>(i);
  return values[i] * (1 - part) + values[i + 1] * part;
}

TEST_CASE("calibration interpolates the 99th percentile linearly, each measure by itself", "[trigger]") {
  random_source random(152);
  for (int round = 0; round < 500; ++round) {
    std::int64_t const n = round < 120 ? round + 1 : random.between(1, 700);
    std::vector<triggers::page_uncertainty> pages;
    std::vector<float> entropies;
    std::vector<float> varentropies;
    for (std::int64_t i = 0; i < n; ++i) {
      entropies.push_back(2 + random.real());
      varentropies.push_back(1 + random.real());
      pages.push_back({entropies.back(), varentropies.back()});
    }
    double const q = round % 4 == 0 ? .5 * (1 + random.real()) : .99;
    triggers::entropy const made = q == .99 ? triggers::calibrate(pages, 8) : triggers::calibrate(pages, 8, q);
    REQUIRE(std::abs(made.mean - percentile(entropies, q)) < 1e-5);
    REQUIRE(std::abs(made.variance - percentile(varentropies, q)) < 1e-5);
    REQUIRE(made.page == 8);
  }
}

// 0, 1, ..., 100: the 99th percentile is 99; of 0, 1, ..., 10 it is 9.9.
TEST_CASE("calibration, worked by hand", "[trigger]") {
  std::vector<triggers::page_uncertainty> pages;
  for (int i = 10; i >= 0; --i) pages.push_back({static_cast<float>(i), static_cast<float>(2 * i)});
  REQUIRE(std::abs(triggers::calibrate(pages).mean - 9.9) < 1e-5);
  REQUIRE(std::abs(triggers::calibrate(pages).variance - 19.8) < 1e-5);
  for (int i = 11; i <= 100; ++i) pages.push_back({static_cast<float>(i), static_cast<float>(2 * i)});
  REQUIRE(std::abs(triggers::calibrate(pages).mean - 99) < 1e-5);
  REQUIRE(triggers::calibrate(pages, 32, 1).mean == 100);
  REQUIRE(triggers::calibrate(pages, 32, 0).mean == 0);
  REQUIRE_THROWS_AS(triggers::calibrate({}), invalid_value);
  REQUIRE_THROWS_AS(triggers::calibrate(pages, 32, 1.01), invalid_value);
  REQUIRE_THROWS_AS(triggers::calibrate(pages, 32, -.01), invalid_value);
}

}  // namespace
}  // namespace kvpolicy_test
