#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/presets/rkv.hpp"
#include "methods/naive_eviction.hpp"

namespace kvpolicy_test::methods {
namespace {

/// Cosine of the keys of two tokens.
double cosine(world const& w, std::int64_t l, std::int64_t h, std::int64_t a, std::int64_t b) {
  double product = 0;
  double of_a = 0;
  double of_b = 0;
  for (std::int64_t d = 0; d < w.shape.head_dim; ++d) {
    double const x = w.cache.key(l, h, a, d);
    double const y = w.cache.key(l, h, b, d);
    product += x * y;
    of_a += x * x;
    of_b += y * y;
  }
  return of_a == 0 || of_b == 0 ? 0 : product / std::sqrt(of_a) / std::sqrt(of_b);
}

/// The matrix of cosines, row by row: 0 on the diagonal, and where a row's last token above `alike` stands. How near one of
/// them is to `alike`, where that decides.
reals column_means(world const& w, std::int64_t l, std::int64_t h, ints const& there, double alike, double& margin) {
  reals means = filled(size_of(there), 0.0);
  for (std::int64_t j = 0; j < size_of(there); ++j) {
    reals row;
    std::int64_t last = -1;
    for (std::int64_t i = 0; i < size_of(there); ++i) {
      row.push_back(i == j ? 0 : cosine(w, l, h, at(there, j), at(there, i)));
      if (i != j) margin = std::min(margin, std::abs(row.back() - alike));
      if (row.back() > alike) last = i;
    }
    if (last >= 0) at(row, last) = 0;
    for (std::int64_t i = 0; i < size_of(there); ++i) at(means, i) += at(row, i) / static_cast<double>(size_of(there));
  }
  return means;
}

/// lambda times the smoothed attention of the last `window` queries, less (1 - lambda) times the softmax of the redundancy: of
/// all tokens but the window's.
reals scores_of(world const& w, presets::rkv const& p, std::int64_t l, std::int64_t h, ints const& there, std::int64_t n,
                std::int64_t first_query, double& margin) {
  ints before;
  for (std::int64_t const t : there) {
    if (t < n - p.window) before.push_back(t);
  }
  reals attention = filled(size_of(before), 0.0);
  for (std::int64_t query = std::max(first_query, n - p.window); query < n; ++query) {
    reals weights = filled(size_of(before), 0.0);
    for (std::int64_t g = 0; g < w.group(); ++g) {
      reals const one = w.attention(l, query, h * w.group() + g, before);
      for (std::size_t i = 0; i < one.size(); ++i) {
        weights[i] = p.group == group_merge::maximum ? std::max(weights[i], one[i])
                                                     : weights[i] + one[i] / static_cast<double>(w.group());
      }
    }
    for (std::size_t i = 0; i < weights.size(); ++i)
      attention[i] += weights[i] / static_cast<double>(n - std::max(first_query, n - p.window));
  }
  reals redundancy = column_means(w, l, h, there, static_cast<double>(p.alike), margin);
  double total = 0;
  for (double& x : redundancy) total += x = std::exp(x);
  reals made;
  std::int64_t const reach = p.smooth.how == smoothing::kind::maximum ? p.smooth.width / 2 : 0;
  for (std::int64_t i = 0; i < size_of(before); ++i) {
    double most = 0;
    for (std::int64_t near = std::max<std::int64_t>(0, i - reach); near <= std::min(size_of(before) - 1, i + reach); ++near)
      most = std::max(most, at(attention, near));
    made.push_back(p.attention * most - (1 - p.attention) * at(redundancy, i) / total);
  }
  return made;
}

TEST_CASE("rkv evicts every so many steps what is neither attended to nor its own kind's last", "[methods]") {
  random_source random(2301);
  eviction_tally cases;
  for (int round = 0; round < 360; ++round) {
    world const w(small_shape(random, 70), random);
    cache_shape const& shape = w.shape;
    presets::rkv policy{.tokens = narrow(random.between(6, 40)),
                        .keep_prompt = random.one_in(2),
                        .every = narrow(random.between(1, 6)),
                        .window = narrow(random.between(1, 5)),
                        .group = random.one_in(2) ? group_merge::maximum : group_merge::mean,
                        .attention = .25 * static_cast<double>(random.between(0, 4)),
                        .alike = .3f + .1f * static_cast<float>(random.between(0, 5))};
    if (random.one_in(3)) policy.smooth = {};
    if (policy.tokens > shape.max_tokens) policy.tokens = narrow(shape.max_tokens);
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    auto state = start(policy, shape);
    auto const look = [&](std::int64_t l, std::int64_t h, ints const& got, ints const& from, std::int64_t n, bool decoding) {
      if (!decoding && prompt <= policy.window) return;
      double margin = 1;
      reals const scores = scores_of(w, policy, l, h, from, n, 0, margin);
      std::int64_t const pinned = policy.keep_prompt ? size_of(from) - size_of(without(from, range(0, prompt))) : 0;
      std::int64_t const first = policy.keep_prompt ? prompt : 0;
      ints forced;
      ints names;
      reals of_names;
      std::int64_t seen = 0;
      for (std::int64_t const t : from) {
        bool const recent = t >= n - policy.window;
        if (t < first || recent) forced.push_back(t);
        else names.push_back(t), of_names.push_back(at(scores, seen));
        seen += recent ? 0 : 1;
      }
      std::int64_t const room = std::clamp<std::int64_t>(policy.tokens + pinned - size_of(forced), 0, size_of(names));
      verdict v = without(forced, got).empty() && ascends(got)
                      ? judge(without(got, forced), names, of_names, room, 1e-5 * largest_size(of_names))
                      : verdict::different;
      if (v == verdict::different && margin < 1e-5) v = verdict::excused;
      INFO("round " << round << " prompt " << prompt << " after " << n << " layer " << l << " head " << h << " tokens "
                    << policy.tokens << " kept prompt " << policy.keep_prompt << " window " << policy.window << " lambda "
                    << policy.attention << " alike " << policy.alike << "\nfrom " << text(from) << "\nleft " << text(got)
                    << "\nwant " << text(best(names, of_names, room)));
      cases.add(v, got, from);
    };
    follow_evictions(state, w, prompt, policy.every, look);
  }
  cases.require();
}

}  // namespace
}  // namespace kvpolicy_test::methods
