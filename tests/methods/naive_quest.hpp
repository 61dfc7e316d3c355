// Quest once more, from its equations alone (Tang et al., sec. 3.3).
#pragma once

#include "kvpolicy/presets/quest.hpp"
#include "methods/naive_choice.hpp"

namespace kvpolicy_test::methods {

/// What bounds channel d of tokens [first, last): smallest and largest, or mean -/+ one population standard deviation.
inline std::pair<double, double> channel_bounds(world const& w, std::int64_t l, std::int64_t h, std::int64_t d,
                                                ints const& tokens, bool spread) {
  reals values;
  for (std::int64_t const t : tokens) values.push_back(w.cache.key(l, h, t, d));
  if (!spread) return {*std::min_element(values.begin(), values.end()), *std::max_element(values.begin(), values.end())};
  double const n = static_cast<double>(values.size());
  double const mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (double const x : values) squares += (x - mean) * (x - mean);
  double const deviation = std::sqrt(squares / n);
  return {mean - deviation, mean + deviation};
}

/// The largest q.k that a key within the bounds could have, mean or maximum over the query group.
inline double page_score(world const& w, std::int64_t l, std::int64_t h, ints const& tokens, std::int64_t step, bool spread,
                         bool maximum) {
  reals each;
  for (std::int64_t g = 0; g < w.group(); ++g) {
    double sum = 0;
    for (std::int64_t d = 0; d < w.shape.head_dim; ++d) {
      auto const [low, high] = channel_bounds(w, l, h, d, tokens, spread);
      double const q = w.query(l, step, h * w.group() + g)[d];
      sum += std::max(q * low, q * high);
    }
    each.push_back(sum);
  }
  if (maximum) return *std::max_element(each.begin(), each.end());
  return std::accumulate(each.begin(), each.end(), 0.0) / static_cast<double>(each.size());
}

/// The units of a step on n tokens: which are read in any case, and which compete for how many places.
struct page_plan {
  ints forced;      ///< tokens
  ints candidates;  ///< units
  std::int64_t places = 0;
};

inline page_plan plan_pages(std::int64_t n, std::int64_t page, std::int64_t sinks, std::int64_t recent, std::int64_t budget) {
  page_plan made;
  std::int64_t const units = (n + page - 1) / page;
  for (std::int64_t u = 0; u < units; ++u) {
    bool const is_forced = u < sinks || u >= units - recent;
    if (is_forced) made.forced = united(made.forced, range(u * page, std::min(n, u * page + page)));
    else made.candidates.push_back(u);
  }
  // Every page is counted whole, the open one too.
  made.places = std::max<std::int64_t>(0, budget / page - (units - size_of(made.candidates)));
  return made;
}

/// Tokens that pages may hold: the number, or the share of n that is kept. What holds all tokens holds all pages.
inline std::int64_t page_room(std::int64_t tokens, std::optional<double> ratio, std::int64_t n, std::int64_t page) {
  std::int64_t const whole = (n + page - 1) / page * page;
  if (!ratio) return tokens;
  if (*ratio == 0) return whole;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(n) * (1 - *ratio)));
}

/// Compares one list with the best of the plan's units by these scores.
inline verdict judge_pages(range_list const& list, std::int64_t n, std::int64_t page, page_plan const& plan,
                           reals const& scores, double slack) {
  ints const got = tokens_of(list);
  if (!ascends(got) || !without(plan.forced, got).empty()) return verdict::different;
  ints units;
  for (std::int64_t const t : without(got, plan.forced)) units = united(units, {t / page});
  ints whole = plan.forced;
  for (std::int64_t const u : units) whole = united(whole, range(u * page, std::min(n, u * page + page)));
  if (whole != got) return verdict::different;
  return judge(units, plan.candidates, scores, plan.places, slack);
}

inline verdict judge_quest(range_list const& list, world const& w, presets::quest const& p, std::int64_t l, std::int64_t h,
                           std::int64_t n) {
  if (l < p.layers.dense_first) return tokens_of(list) == range(0, n) ? verdict::same : verdict::different;
  std::int64_t const leader = l - (l - p.layers.dense_first) % p.layers.reuse;
  std::int64_t const room = page_room(p.tokens, p.ratio, n, p.page);
  page_plan const plan = plan_pages(n, p.page, p.sink_pages, p.recent_pages, room);
  reals scores;
  for (std::int64_t const u : plan.candidates) {
    scores.push_back(page_score(w, leader, h, range(u * p.page, u * p.page + p.page), n - 1,
                                p.metadata == pools::bounds::kind::mean_deviation, p.group == group_merge::maximum));
  }
  return judge_pages(list, n, p.page, plan, scores, 1e-5 * largest_size(scores));
}

}  // namespace kvpolicy_test::methods
