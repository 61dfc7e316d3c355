#include "measured.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "text_table.hpp"

namespace kvpolicy {

using nlohmann::ordered_json;

double divergence(std::span<float const> dense, std::span<float const> other) {
  auto const log_sum = [](std::span<float const> logits) {
    double const most = *std::ranges::max_element(logits);
    double sum = 0;
    for (float const x : logits) sum += std::exp(x - most);
    return most + std::log(sum);
  };
  double const dense_sum = log_sum(dense);
  double const other_sum = log_sum(other);
  double kl = 0;
  for (std::size_t i = 0; i < dense.size(); ++i) {
    double const log_p = dense[i] - dense_sum;
    kl += std::exp(log_p) * (log_p - (other[i] - other_sum));
  }
  return kl;
}

ordered_json timing_json(measured const& of, double baseline) {
  double const ms = quantile(of.ms, .5);
  return {{"ms_per_token", ms},
          {"ms_p10", quantile(of.ms, .1)},
          {"ms_p90", quantile(of.ms, .9)},
          {"speedup", ms > 0 ? baseline / ms : 0}};
}

double request_ms(measured const& of, int predict) {
  std::vector<double> first = of.first_ms;
  if (of.first_prompts_runs != 0) first.resize(of.first_prompts_runs);
  double sum = of.prompt_ms + quantile(first, .5);
  // The steps before a policy chooses are slower than those after, so each counts by its own median over the rounds.
  auto const steps = static_cast<std::size_t>(predict - 2);
  std::size_t const timed = of.first_prompts_steps != 0 ? of.first_prompts_steps : of.ms.size();
  for (std::size_t step = 0; step < steps; ++step) {
    std::vector<double> rounds;
    for (std::size_t i = step; i < timed; i += steps) rounds.push_back(of.ms[i]);
    sum += quantile(rounds, .5);
  }
  return sum;
}

ordered_json request_split(measured const& of, llama::prompt_statistics const& prompt, int predict) {
  auto const steps = static_cast<double>(of.ms.size());
  auto const of_steps = [&](double seconds) { return steps > 0 ? 1e3 * seconds / steps * (predict - 2) : 0; };
  double const request = of.prompt_ms + quantile(of.first_ms, .5) + of_steps(of.seconds);
  double const attention = (1e3 * prompt.attend_seconds + of_steps(of.attend)) / request;
  double const choosing = (1e3 * prompt.choose_seconds + quantile(of.prefill_ms, .5) + of_steps(of.choose)) / request;
  return {{"weights", 1 - attention - choosing}, {"attention", attention}, {"choosing", choosing}};
}

ordered_json managed_json(managed_steps const& of, double baseline, ordered_json const& prompt) {
  if (of.bytes.empty()) return nullptr;
  double const ms = quantile(of.ms, .5);
  std::int64_t most = *std::ranges::max_element(of.bytes);
  for (auto const& [tokens, bytes] : prompt.get<std::vector<std::pair<std::int64_t, std::int64_t>>>())
    most = std::max(most, bytes);
  return {{"ms_per_token", ms},          {"ms_p10", quantile(of.ms, .1)}, {"ms_p90", quantile(of.ms, .9)},
          {"speedup", baseline / ms},    {"bytes", of.bytes.back()},      {"most_bytes", most},
          {"bytes_after_step", of.bytes}};
}

}  // namespace kvpolicy
