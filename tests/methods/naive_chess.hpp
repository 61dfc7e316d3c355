// CHESS once more, from its paper's equations 1 to 4 and Algorithm 1, dead units at -inf as methods.md reads it.
#pragma once

#include <array>

#include "kvpolicy/presets/chess.hpp"
#include "methods/naive_choice.hpp"

namespace kvpolicy_test::methods {

/// What the cascade kept.
struct cascade_choice {
  ints pages;
  bool close = false;  ///< fp32 might keep other units
};

/// Fractions in percent, of grids, chunks and pages: whole numbers, so that "at least so many of the live units" is exact.
using percents = std::array<std::int64_t, 3>;

inline cascade_choice naive_cascade(world const& w, presets::chess const& p, percents const& keep, std::int64_t known) {
  cascade_choice made;
  if (known == 0) return made;
  // Page vectors, every layer and head side by side; then means of consecutive ones.
  std::vector<std::vector<reals>> levels(3);
  for (std::int64_t first = 0; first < known; first += p.units.page) {
    reals page;
    for (std::int64_t l = 0; l < w.shape.layers; ++l) {
      for (std::int64_t h = 0; h < w.shape.kv_heads; ++h) {
        std::int64_t const last = std::min(known, first + p.units.page);
        for (std::int64_t d = 0; d < w.shape.head_dim; ++d) {
          double sum = 0;
          for (std::int64_t t = first; t < last; ++t)
            sum += p.pre_rope ? pre_rope(w, l, h, t, d) : static_cast<double>(w.cache.key(l, h, t, d));
          page.push_back(sum / static_cast<double>(last - first));
        }
      }
    }
    levels[2].push_back(page);
  }
  auto const mean_of = [](std::vector<reals> const& units, std::int64_t first, std::int64_t last) {
    reals mean = filled(size_of(units.front()), 0.0);
    for (std::int64_t u = first; u < last; ++u) {
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += at(units, u)[i] / static_cast<double>(last - first);
    }
    return mean;
  };
  std::array<std::int64_t, 3> const fan_out{p.units.chunks_per_grid, p.units.pages_per_chunk, 1};
  for (std::size_t level = 2; level-- > 0;) {
    std::int64_t const finer = size_of(levels[level + 1]);
    for (std::int64_t first = 0; first < finer; first += fan_out[level]) {
      levels[level].push_back(mean_of(levels[level + 1], first, std::min(finer, first + fan_out[level])));
    }
  }
  std::int64_t const pages = size_of(levels[2]);
  reals anchor = mean_of(levels[2], std::max<std::int64_t>(0, pages - p.recent_pages), pages);
  double noise = 0;  // of a score, from fp32's rounding of the anchor's difference from the mean
  if (p.standardised) {
    reals const mean = mean_of(levels[2], 0, pages);
    if (pages <= p.recent_pages) made.close = true;  // nothing sets the anchor apart but rounding; the window has all pages
    for (std::size_t i = 0; i < anchor.size(); ++i) {
      double variance = 0;
      for (reals const& page : levels[2]) variance += (page[i] - mean[i]) * (page[i] - mean[i]) / static_cast<double>(pages);
      // Where pages are all but equal, or near the limit of what counts, fp32 may say otherwise.
      double const relative = std::sqrt(variance) / std::max(std::abs(mean[i]), 1e-9);
      if (variance < 1e-6 || (relative > .9e-3 && relative < 1.1e-3)) made.close = true;
      double most = 0;
      for (reals const& page : levels[2]) most = std::max(most, std::abs(page[i]));
      bool const counts = variance >= 1e-6 && relative > 1e-3;
      if (counts) noise += 1e-6 * most * most / variance;
      anchor[i] = counts ? (anchor[i] - mean[i]) / variance : 0;
    }
  }

  // What is read in any case is no candidate, nor is a chunk or grid of such pages alone.
  ints const candidates = range(p.sink_pages, pages - p.recent_pages);
  if (candidates.empty()) return made;
  std::array const pages_of{p.units.chunks_per_grid * p.units.pages_per_chunk, p.units.pages_per_chunk, 1};
  auto const candidate = [&](std::size_t level, std::int64_t unit) {
    return std::ranges::any_of(candidates, [&](std::int64_t page) { return page / pages_of[level] == unit; });
  };
  auto const some = [&](std::size_t level, ints const& units) {
    ints left;
    std::ranges::copy_if(units, std::back_inserter(left), [&](std::int64_t u) { return candidate(level, u); });
    return left;
  };

  // Depth 3 begins with grids, 2 with chunks, 1 with pages: all of that level are live.
  auto const top = static_cast<std::size_t>(3 - p.depth);
  ints live = some(top, range(0, size_of(levels[top])));
  for (std::size_t level = top; level < 3; ++level) {
    if (level > top) {
      ints children;
      for (std::int64_t const parent : live) {
        std::int64_t const first = parent * fan_out[level - 1];
        children = united(children, range(first, std::min(size_of(levels[level]), first + fan_out[level - 1])));
      }
      live = some(level, children);
    }
    reals scores;
    double size = 1e-3;
    for (std::int64_t const u : live) {
      double sum = 0;
      for (std::size_t i = 0; i < anchor.size(); ++i) sum += anchor[i] * at(levels[level], u)[i];
      scores.push_back(sum);
    }
    if (p.following && level == 2) {
      reals const own = scores;
      for (std::int64_t i = 1; i < size_of(live); ++i) {
        if (at(live, i) == at(live, i - 1) + 1) at(scores, i) = std::max(at(own, i), at(own, i - 1));
      }
    }
    for (reals const& unit : levels[level]) {
      double sum = 0;
      for (std::size_t i = 0; i < anchor.size(); ++i) sum += anchor[i] * unit[i];
      size = std::max(size, std::abs(sum));
    }
    std::int64_t const k = std::max<std::int64_t>(1, (keep[level] * size_of(live) + 99) / 100);
    made.close = made.close || close_call(scores, k, 1e-5 * size + noise);
    live = best(live, scores, k);
  }
  made.pages = live;
  return made;
}

/// What a step on n tokens reads: the pages of the choice that stands, the sink pages, and from the first of the last W pages
/// of that time on whatever there is.
inline ints chess_reading(cascade_choice const& choice, presets::chess const& p, std::int64_t known, std::int64_t n) {
  std::int64_t const page = p.units.page;
  std::int64_t const pages = (n + page - 1) / page;
  std::int64_t const then = (known + page - 1) / page;
  ints made;
  for (std::int64_t u = 0; u < pages; ++u) {
    bool const chosen = std::binary_search(choice.pages.begin(), choice.pages.end(), u);
    if (chosen || u < p.sink_pages || u >= then - p.recent_pages)
      made = united(made, range(u * page, std::min(n, u * page + page)));
  }
  return made;
}

}  // namespace kvpolicy_test::methods
