#include <catch2/catch_test_macros.hpp>
#include <complex>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/presets/triattention.hpp"
#include "methods/naive_eviction.hpp"

namespace kvpolicy_test::methods {
namespace {

/// A key's pair before its rotary embedding.
std::complex<double> pair_of(world const& w, std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t f) {
  bool const halves = w.pairing == rotation::pairing::halves;
  std::int64_t const pairs = w.shape.head_dim / 2;
  return {pre_rope(w, l, h, t, halves ? f : 2 * f), pre_rope(w, l, h, t, halves ? f + pairs : 2 * f + 1)};
}

/// The scores of the tokens named, when there are n: written with phases, as the authors' code has it.
reals scores_of(world const& w, presets::triattention const& p, std::int64_t l, std::int64_t h, ints const& names,
                std::int64_t n) {
  std::int64_t const pairs = w.shape.head_dim / 2;
  reals merged;
  for (std::int64_t g = 0; g < w.group(); ++g) {
    reals scores;
    for (std::int64_t const t : names) {
      double sum = 0;
      double distances = 0;
      for (std::int64_t d = 1; d <= p.farthest; d *= 2) {
        ++distances;
        for (std::int64_t f = 0; f < pairs; ++f) {
          query_moment const& of = p.moments[static_cast<std::size_t>(((l * w.shape.q_heads) + h * w.group() + g) * pairs + f)];
          std::complex<double> const mean(of.real, of.imaginary);
          std::complex<double> const relative = mean * std::conj(pair_of(w, l, h, t, f));
          double const phase = static_cast<double>(n - t + d) * static_cast<double>(at(w.frequencies, f)) + std::arg(relative);
          sum += std::abs(relative) * std::cos(phase);
        }
      }
      sum /= distances;
      for (std::int64_t f = 0; f < pairs; ++f) {
        query_moment const& of = p.moments[static_cast<std::size_t>(((l * w.shape.q_heads) + h * w.group() + g) * pairs + f)];
        double const beyond = static_cast<double>(of.length) - std::abs(std::complex<double>(of.real, of.imaginary));
        sum += beyond * std::abs(pair_of(w, l, h, t, f));
      }
      scores.push_back(sum);
    }
    double const count = static_cast<double>(scores.size());
    double const mean = std::accumulate(scores.begin(), scores.end(), 0.0) / count;
    double square = 0;
    for (double const x : scores) square += (x - mean) * (x - mean) / count;
    for (double& x : scores) x = (x - mean) / std::max(std::sqrt(square), 1e-6);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (g == 0) merged.push_back(scores[i]);
      else merged[i] = p.group == group_merge::maximum ? std::max(merged[i], scores[i]) : merged[i] + scores[i];
    }
  }
  return merged;
}

TEST_CASE("triattention evicts every so many steps what queries to come want least", "[methods]") {
  random_source random(2401);
  eviction_tally cases;
  for (int round = 0; round < 360; ++round) {
    cache_shape shape = small_shape(random, 70);
    shape.head_dim = 2 * random.between(1, 5);
    world const w(shape, random);
    std::vector<query_moment> moments;
    for (std::int64_t i = 0; i < shape.layers * shape.q_heads * shape.head_dim / 2; ++i) {
      query_moment one{random.real(), random.real(), 0};
      one.length = std::hypot(one.real, one.imaginary) * (1 + std::abs(random.real()));
      moments.push_back(one);
    }
    presets::triattention policy{.moments = moments,
                                 .tokens = narrow(random.between(6, 40)),
                                 .keep_prompt = random.one_in(2),
                                 .every = narrow(random.between(1, 6)),
                                 .recent = narrow(random.between(1, 5)),
                                 .farthest = narrow(random.pick(std::array<std::int64_t, 3>{1, 64, 1000})),
                                 .group = random.one_in(2) ? group_merge::maximum : group_merge::mean};
    if (policy.tokens > shape.max_tokens) policy.tokens = narrow(shape.max_tokens);
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    auto state = start(policy, shape);
    auto const look = [&](std::int64_t l, std::int64_t h, ints const& got, ints const& from, std::int64_t n, bool decoding) {
      std::int64_t const first = policy.keep_prompt ? prompt : 0;
      ints const pinned = range(0, first);
      ints const forced = united(pinned, range(std::max(first, n - policy.recent), n));
      ints const names = without(from, forced);
      // While decoding every token that is there is scored, the window's too; at a prompt's end those before the window.
      ints const scored = decoding ? without(from, pinned) : names;
      reals of_names;
      reals const scores = scored.empty() ? reals{} : scores_of(w, policy, l, h, scored, n);
      for (std::int64_t i = 0; i < size_of(scored); ++i) {
        if (std::binary_search(names.begin(), names.end(), at(scored, i))) of_names.push_back(at(scores, i));
      }
      std::int64_t const room = std::clamp<std::int64_t>(policy.tokens - (size_of(forced) - first), 0, size_of(names));
      verdict const v = without(forced, got).empty() && ascends(got)
                            ? judge(without(got, forced), names, of_names, room, 2e-4 * largest_size(of_names))
                            : verdict::different;
      INFO("round " << round << " prompt " << prompt << " after " << n << " layer " << l << " head " << h << " tokens "
                    << policy.tokens << " kept prompt " << policy.keep_prompt << " recent " << policy.recent << "\nfrom "
                    << text(from) << "\nleft " << text(got) << "\nwant " << text(best(names, of_names, room)));
      cases.add(v, got, from);
    };
    follow_evictions(state, w, prompt, policy.every, look);
  }
  cases.require();
}

}  // namespace
}  // namespace kvpolicy_test::methods
