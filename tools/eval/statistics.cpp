#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "text_table.hpp"

namespace kvpolicy {
namespace {

/// `pick(count)`: which of a task's records counts next.
template <class Pick>
double share(paired_scores const& scores, Pick pick) {
  double ours = 0;
  double dense = 0;
  for (auto const& [task, records] : scores) {
    double our_sum = 0;
    double dense_sum = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
      auto const& [mine, reference] = records[pick(i, records.size())];
      our_sum += mine;
      dense_sum += reference;
    }
    ours += our_sum / static_cast<double>(records.size());
    dense += dense_sum / static_cast<double>(records.size());
  }
  return dense > 0 ? ours / dense : 0;
}

}  // namespace

double share_of_dense(paired_scores const& scores) {
  return share(scores, [](std::size_t i, std::size_t) { return i; });
}

interval bootstrap_interval(paired_scores const& scores, int draws) {
  std::minstd_rand random(20261122);
  std::vector<double> drawn;
  for (int d = 0; d < draws; ++d) {
    drawn.push_back(share(scores, [&](std::size_t, std::size_t count) { return random() % count; }));
  }
  return {quantile(drawn, .025), quantile(drawn, .975)};
}

sign_test signs_against_dense(paired_scores const& scores) {
  sign_test made;
  for (auto const& [task, records] : scores) {
    for (auto const& [mine, reference] : records) {
      made.worse += mine < reference ? 1 : 0;
      made.better += mine > reference ? 1 : 0;
    }
  }
  // Twice the smaller tail of a fair coin's `n` throws, by logarithms of binomial coefficients.
  std::int64_t const n = made.worse + made.better;
  std::int64_t const fewer = std::min(made.worse, made.better);
  double tail = 0;
  for (std::int64_t k = 0; k <= fewer; ++k) {
    auto const log_of = [](std::int64_t x) { return std::lgamma(static_cast<double>(x) + 1); };
    tail += std::exp(log_of(n) - log_of(k) - log_of(n - k) - static_cast<double>(n) * std::log(2.0));
  }
  made.p = std::min(1.0, 2 * tail);
  return made;
}

}  // namespace kvpolicy
