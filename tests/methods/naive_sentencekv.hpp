// SentenceKV once more, from its paper's section 4 in the readings of methods.md.
#pragma once

#include "kvpolicy/presets/sentencekv.hpp"
#include "methods/naive_choice.hpp"

namespace kvpolicy_test::methods {

/// Ends of the sentences that are closed when there are n tokens: the token behind each. A token that ends a sentence belongs
/// to it, and the sentence is open until the next token comes.
inline ints closed_sentences(std::vector<std::int32_t> const& ids, std::int64_t n, segments::sentences const& by) {
  ints ends;
  std::int64_t begin = 0;
  for (std::int64_t t = 0; t + 1 < n; ++t) {
    std::int64_t const length = t - begin + 1;
    std::int64_t const id = at(ids, t);
    bool const boundary =
        id >= 0 && id < static_cast<std::int64_t>(by.boundary.size()) && by.boundary[static_cast<std::size_t>(id)] != 0;
    if (length >= by.longest || (boundary && length >= by.shortest)) {
      ends.push_back(t + 1);
      begin = t + 1;
    }
  }
  return ends;
}

/// alpha of the tokens before the window: the window's queries' attention, mean over the window and the query group, then the
/// largest of each token's `kernel` neighbours.
inline reals window_importance(world const& w, std::int64_t l, std::int64_t h, std::int64_t prompt, std::int64_t window,
                               std::int64_t kernel) {
  std::int64_t const before = prompt - window;
  reals mean = filled(before, 0.0);
  for (std::int64_t t = before; t < prompt; ++t) {
    reals const one = w.group_attention(l, t, h, range(0, t + 1));
    for (std::int64_t s = 0; s < before; ++s) at(mean, s) += at(one, s) / static_cast<double>(window);
  }
  reals pooled;
  for (std::int64_t s = 0; s < before; ++s) {
    double most = 0;
    for (std::int64_t o = s - kernel / 2; o <= s + kernel / 2; ++o)
      most = o >= 0 && o < before ? std::max(most, at(mean, o)) : most;
    pooled.push_back(most);
  }
  return pooled;
}

/// What the prompt's end retains for one KV head: sinks and window, and the most important others, `keep` in all.
inline verdict judge_retained(ints const& got, world const& w, presets::sentencekv const& p, std::int64_t l, std::int64_t h,
                              std::int64_t prompt) {
  if (l < p.layers.dense_first) return got == range(0, prompt) ? verdict::same : verdict::different;
  std::int64_t keep = std::min<std::int64_t>(prompt, static_cast<std::int64_t>(std::floor(p.keep * p.tokens)));
  if (p.ratio) {  // tau is a share of the prompt
    double const share = std::min(1.0, p.keep * (1 - *p.ratio));
    keep = std::max<std::int64_t>(1, static_cast<std::int64_t>(share * static_cast<double>(prompt)));
  }
  std::int64_t const window = std::min<std::int64_t>(p.window, prompt);
  std::int64_t const sinks = std::min<std::int64_t>(p.sinks, prompt - window);
  ints const forced = united(range(0, sinks), range(prompt - window, prompt));
  if (!ascends(got)) return verdict::different;
  if (keep <= size_of(forced)) {  // a share that can't hold what is forced: any so many of that
    return size_of(got) == keep && without(got, forced).empty() ? verdict::same : verdict::different;
  }
  if (!without(forced, got).empty()) return verdict::different;
  reals scores = window_importance(w, l, h, prompt, window, 7);
  scores.erase(scores.begin(), scores.begin() + sinks);
  return judge(without(got, forced), range(sinks, prompt - window), scores, keep - size_of(forced),
               1e-5 * largest_size(scores));
}

/// The prompt's sentences, by their place in order, that stand: those of which some token that is there gets the largest
/// weights of the prompt's last queries, as many whole ones as the share of the budget holds; and whether fp32 might see it
/// otherwise.
struct standing_sentences {
  ints places;
  bool close = false;
};

inline standing_sentences naive_standing(world const& w, std::int64_t l, std::int64_t h, std::int64_t prompt, ints const& there,
                                         presets::sentencekv const& p) {
  ints retained;
  for (std::int64_t const t : there) {
    if (t < prompt) retained.push_back(t);
  }
  std::int64_t const window = std::min<std::int64_t>(p.window, prompt);
  std::int64_t const before = size_of(retained) - window;
  if (p.standing == 0 || before <= 0) return {};
  reals weights = filled(before, 0.0);
  for (std::int64_t i = 0; i < window; ++i) {  // the window's i-th query sees what was there up to itself
    ints const seen(retained.begin(), retained.begin() + before + i + 1);
    reals const one = w.group_attention(l, prompt - window + i, h, seen);
    for (std::int64_t t = 0; t < before; ++t) at(weights, t) += at(one, t) / static_cast<double>(window);
  }
  ints places;
  ints sizes;
  reals scores;
  std::int64_t begin = 0;
  std::int64_t place = 0;
  for (std::int64_t const end : closed_sentences(w.ids, prompt, p.sentences)) {
    std::int64_t size = 0;
    double most = 0;
    for (std::int64_t i = 0; i < before; ++i) {
      if (at(retained, i) < begin || at(retained, i) >= end) continue;
      ++size;
      most = std::max(most, at(weights, i));
    }
    begin = end;
    if (size > 0) {
      places.push_back(place);
      sizes.push_back(size);
      scores.push_back(most);
    }
    ++place;
  }
  double const tau = p.ratio ? std::max(1.0, std::floor(static_cast<double>(prompt) * (1 - *p.ratio)))
                             : static_cast<double>(std::min<std::int64_t>(p.tokens, prompt));
  auto left = static_cast<std::int64_t>(p.standing * tau);
  standing_sentences made;
  ints const order = ranked(scores);
  for (std::int64_t i = 0; i < size_of(order) && left > 0; ++i) {
    std::int64_t const u = at(order, i);
    if (i + 1 < size_of(order)) {
      double const gap = at(scores, u) - at(scores, at(order, i + 1));
      bool const matters = left < at(sizes, u) + at(sizes, at(order, i + 1));
      made.close = made.close || (matters && gap != 0 && gap < 1e-5 * largest_size(scores));
    }
    if (at(sizes, u) <= left) made.places.push_back(at(places, u));
    left -= at(sizes, u);
  }
  return made;
}

/// What a step on n tokens reads, of the `there` tokens of one KV head (the generated ones among them).
struct sentence_reading {
  ints tokens;
  bool close = false;  ///< fp32 might fill in another order
};

inline sentence_reading read_sentences(world const& w, std::int64_t l, std::int64_t h, std::int64_t n, std::int64_t prompt,
                                       ints const& there, presets::sentencekv const& p) {
  ints const ends = closed_sentences(w.ids, n, p.sentences);
  std::int64_t const open = ends.empty() ? 0 : ends.back();
  // Right behind a boundary, at a token that ends a sentence (it would be closed by one more), and at the first behind the
  // prompt.
  bool const boundary = open == n - 1 || closed_sentences(w.ids, n + 1, p.sentences).size() > ends.size() || n == prompt + 1;
  if (l < p.layers.dense_first || (p.all_after_boundary && boundary)) return {there, false};

  // Each query head's sum: of the open sentence's generated tokens, or of all that were, each step's share of the one behind
  // it.
  std::int64_t const first = p.carry == 1 ? std::max(open, prompt) : prompt;
  std::vector<reals> queries = filled(w.group(), filled(w.shape.head_dim, 0.0));
  for (std::int64_t t = first; t < n; ++t) {
    for (std::int64_t g = 0; g < w.group(); ++g) {
      for (std::int64_t d = 0; d < w.shape.head_dim; ++d) {
        double& sum = at(at(queries, g), d);
        sum = sum * static_cast<double>(p.carry) + static_cast<double>(w.query(l, t, h * w.group() + g)[d]);
      }
    }
  }

  std::int64_t const count = size_of(there);
  std::int64_t const window = std::min<std::int64_t>(p.window, count);
  std::int64_t const sinks = std::min<std::int64_t>(p.sinks, count - window);
  ints const always(there.begin(), there.begin() + sinks);
  ints const recent(there.end() - window, there.end());
  ints const forced = united(always, recent);
  double const tau = p.ratio ? std::floor(static_cast<double>(n) * (1 - *p.ratio)) : p.tokens;
  std::int64_t left = std::max<std::int64_t>(0, static_cast<std::int64_t>(tau) - size_of(forced));

  standing_sentences const standing = naive_standing(w, l, h, prompt, there, p);
  sentence_reading made{forced, standing.close};
  std::vector<ints> buckets;
  reals scores;
  std::int64_t begin = 0;
  std::int64_t place = -1;
  for (std::int64_t const end : ends) {
    ints members;
    for (std::int64_t const t : there) {
      if (t >= begin && t < end) members.push_back(t);
    }
    begin = end;
    ++place;
    ints const open_to_choice = without(members, forced);
    if (open_to_choice.empty()) continue;
    reals mean = w.mean_key(l, h, members);
    if (!p.spread) {
      for (double& x : mean) x = rounded_to(w.shape.type, static_cast<float>(x));
    }
    double score = 0;
    for (reals const& query : queries) {
      for (std::int64_t d = 0; d < w.shape.head_dim; ++d) {
        double variance = 0;
        for (std::int64_t const t : members) {
          double const off = static_cast<double>(w.cache.key(l, h, t, d)) - at(mean, d);
          variance += off * off / static_cast<double>(members.size());
        }
        score += at(query, d) * at(mean, d) + (p.spread ? std::abs(at(query, d)) * std::sqrt(variance) : 0);
      }
    }
    buckets.push_back(open_to_choice);
    bool const stands = std::ranges::find(standing.places, place) != standing.places.end();
    scores.push_back(stands ? std::numeric_limits<double>::infinity() : score);
  }
  ints const order = ranked(scores);
  // Spreads are of the cache's own type: both ends of each channel are rounded.
  double const rounded = w.shape.type == element_type::f32 ? 1e-5 : w.shape.type == element_type::f16 ? 1e-3 : 8e-3;
  double most = 0;
  for (reals const& query : queries) {
    for (double const x : query) most += std::abs(x);
  }
  double largest = 0;
  for (double const score : scores) largest = std::isinf(score) ? largest : std::max(largest, std::abs(score));
  double const slack = p.spread ? rounded * most : 1e-5 * largest;
  for (std::int64_t i = 0; i < size_of(order); ++i) {
    ints const& bucket = at(buckets, at(order, i));
    // Two neighbours in this order change places to some effect if both are looked at and not both are read whole.
    if (i + 1 < size_of(order) && left > 0 && left < size_of(bucket) + size_of(at(buckets, at(order, i + 1)))) {
      bool const tie = at(scores, at(order, i)) == at(scores, at(order, i + 1));  // infinities among them
      double const gap = tie ? 0 : at(scores, at(order, i)) - at(scores, at(order, i + 1));
      made.close = made.close || (gap != 0 && gap < slack);
    }
    std::int64_t const taken = std::min(left, size_of(bucket));
    made.tokens = united(made.tokens, ints(bucket.begin(), bucket.begin() + taken));
    left -= taken;
  }
  for (std::int64_t const t : there) {
    if (t >= open) made.tokens = united(made.tokens, {t});
  }
  return made;
}

}  // namespace kvpolicy_test::methods
