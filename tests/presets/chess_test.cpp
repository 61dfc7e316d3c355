#include "kvpolicy/presets/chess.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/history.hpp"
#include "conformance/naive.hpp"

namespace kvpolicy_test {
namespace {

using vectors = std::vector<std::vector<double>>;

/// Parameters as whole numbers: fractions are decimals.
struct chess_case {
  std::array<std::int64_t, 3> percent;  ///< grids, chunks, pages
  std::int64_t page, pages_per_chunk, chunks_per_grid, sinks, recent;
};

vectors group_means(vectors const& finer, std::int64_t fan_out) {
  vectors made;
  auto const step = static_cast<std::size_t>(fan_out);
  for (std::size_t first = 0; first < finer.size(); first += step) {
    std::size_t const last = std::min(finer.size(), first + step);
    std::vector<double> mean(finer[0].size());
    for (std::size_t u = first; u < last; ++u) {
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += finer[u][i];
    }
    for (double& x : mean) x /= static_cast<double>(last - first);
    made.push_back(mean);
  }
  return made;
}

std::vector<double> affinities(std::vector<double> const& anchor, vectors const& units) {
  std::vector<double> made;
  for (auto const& unit : units) {
    double sum = 0;
    for (std::size_t i = 0; i < unit.size(); ++i) sum += anchor[i] * unit[i];
    made.push_back(sum);
  }
  return made;
}

/// torch.quantile(values, 1 - percent / 100): linear interpolation.
double quantile(std::vector<double> values, std::int64_t percent) {
  std::sort(values.begin(), values.end());
  std::int64_t const scaled = (100 - percent) * static_cast<std::int64_t>(values.size() - 1);
  auto const low = static_cast<std::size_t>(scaled / 100);
  double const rest = static_cast<double>(scaled % 100) / 100;
  return rest == 0 ? values[low] : values[low] + rest * (values[low + 1] - values[low]);
}

struct verdict {
  std::vector<bool> reads;  ///< by token
  bool close = false;       ///< fp32 might decide otherwise
};

/// Equations 1 to 4 and Algorithm 1, read off methods.md: pages among the first n - 1 tokens, for a step on n.
verdict naive_chess(random_cache const& cache, std::int64_t n, chess_case const& c, bool literal) {
  cache_shape const& shape = cache.shape();
  std::int64_t const known = n - 1;
  verdict result{std::vector<bool>(static_cast<std::size_t>(n), false), false};
  std::vector<bool> kept_pages;
  if (known > 0) {
    vectors pages;
    for (std::int64_t first = 0; first < known; first += c.page) {
      std::vector<double> page;
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          for (std::int64_t d = 0; d < shape.head_dim; ++d) {
            page.push_back(naive::mean(cache, l, h, d, first, std::min(known, first + c.page)));
          }
        }
      }
      pages.push_back(page);
    }
    vectors const chunks = group_means(pages, c.pages_per_chunk);
    vectors const grids = group_means(chunks, c.chunks_per_grid);
    vectors const window(pages.end() - std::min<std::ptrdiff_t>(c.recent, std::ssize(pages)), pages.end());
    std::vector<double> const anchor = group_means(window, c.recent)[0];
    std::array<vectors const*, 3> const levels{&grids, &chunks, &pages};
    std::array<std::int64_t, 3> const parents{1, c.chunks_per_grid, c.pages_per_chunk};
    std::array const pages_of{c.chunks_per_grid * c.pages_per_chunk, c.pages_per_chunk, std::int64_t{1}};
    std::int64_t const last_candidate = std::ssize(pages) - c.recent - 1;
    std::vector<bool> kept;
    for (std::size_t level = 0; level < 3; ++level) {
      std::vector<double> scores = affinities(anchor, *levels[level]);
      double size = 0;
      for (double const s : scores) size = std::max(size, std::abs(s));
      std::vector<bool> live(scores.size(), true);
      for (std::size_t u = 0; level > 0 && u < live.size(); ++u) {
        live[u] = kept[u / static_cast<std::size_t>(parents[level])];
      }
      // What is read in any case is no candidate, nor is what has only such pages.
      for (std::size_t u = 0; !literal && u < live.size(); ++u) {
        std::int64_t const first = static_cast<std::int64_t>(u) * pages_of[level];
        live[u] = live[u] && std::max(first, c.sinks) <= std::min(first + pages_of[level] - 1, last_candidate);
      }
      std::vector<bool> next(scores.size(), false);
      double const slack = 1e-5 * (size + 1e-3);
      if (literal) {
        for (std::size_t u = 0; u < scores.size(); ++u) scores[u] = live[u] ? scores[u] : 0;
        double const threshold = quantile(scores, c.percent[level]);
        for (std::size_t u = 0; u < scores.size(); ++u) {
          next[u] = live[u] && scores[u] >= threshold;
          // Equal is close too: an interpolated threshold is rounded.
          if (live[u] && scores.size() > 1 && std::abs(scores[u] - threshold) < slack) result.close = true;
        }
      } else {
        std::vector<double> alive;
        std::vector<std::size_t> which;
        for (std::size_t u = 0; u < scores.size(); ++u) {
          if (!live[u]) continue;
          alive.push_back(scores[u]);
          which.push_back(u);
        }
        auto const count = static_cast<std::int64_t>(alive.size());
        std::int64_t const k = count == 0 ? 0 : std::max<std::int64_t>(1, (c.percent[level] * count + 99) / 100);
        for (std::int32_t const i : naive::top_k(alive, k)) next[which[static_cast<std::size_t>(i)]] = true;
        if (naive::close_call(alive, k, slack)) result.close = true;
      }
      kept = next;
    }
    kept_pages = kept;
  }
  std::int64_t const count = (known + c.page - 1) / c.page;
  for (std::int64_t t = 0; t < n; ++t) {
    std::int64_t const page = t / c.page;
    bool const scored = page < std::ssize(kept_pages) && kept_pages[static_cast<std::size_t>(page)];
    result.reads[static_cast<std::size_t>(t)] = scored || page < c.sinks || page >= count - c.recent;
  }
  return result;
}

presets::chess preset_of(chess_case const& c, bool literal) {
  auto const decimal = [](std::int64_t percent) { return static_cast<float>(percent) / 100.0f; };
  return {.fractions = {decimal(c.percent[0]), decimal(c.percent[1]), decimal(c.percent[2])},
          .units = {static_cast<std::int32_t>(c.page), static_cast<std::int32_t>(c.pages_per_chunk),
                    static_cast<std::int32_t>(c.chunks_per_grid)},
          .sink_pages = static_cast<std::int32_t>(c.sinks),
          .recent_pages = static_cast<std::int32_t>(c.recent),
          .depth = 3,
          .pre_rope = false,
          .standardised = false,
          .following = false,
          .paper_literal = literal};
}

template <class Exec>
range_list chosen(presets::chess const& policy, random_cache const& cache, std::int64_t n, Exec& exec) {
  auto state = start(policy, cache.shape());
  if (n > 1) {
    for (std::int64_t l = 0; l < cache.shape().layers; ++l) state.prefill(own_view{&cache, n - 1}, {l}, {}, exec);
  }
  return state.choose(own_view{&cache, n}, {0}, {}, exec).of({0});
}

TEMPLATE_TEST_CASE("chess keeps what the paper's equations say, with dead units at -inf or to the letter", "[presets]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(111);
  int close = 0;
  constexpr int rounds = 700;
  for (int round = 0; round < rounds; ++round) {
    bool const literal = round % 2 == 1;
    cache_shape shape = random_shape(random, 160, random.between(1, 3));
    shape.head_dim = random.between(1, 12);
    random_cache const cache = random_cache_of(shape, random, round % 5 == 0 ? content::negative : content::plain);
    std::int64_t const n = random.between(1, shape.max_tokens);
    chess_case const c{{random.between(1, 100), random.between(1, 100), random.between(1, 100)},
                       random.between(1, 9),
                       random.between(1, 5),
                       random.between(1, 5),
                       random.between(0, 2),
                       random.between(1, 4)};
    verdict const want = naive_chess(cache, n, c, literal);
    if (want.close) {
      ++close;
      continue;
    }
    TestType on(shape);
    range_list list;
    on.run([&](auto& exec) { list = chosen(preset_of(c, literal), cache, n, exec); });
    bool same = true;
    for (std::int64_t t = 0; t < n; ++t) same = same && reads(list, t) == want.reads[static_cast<std::size_t>(t)];
    INFO("round " << round << " literal " << literal << " tokens " << n << " page " << c.page);
    REQUIRE(same);
  }
  REQUIRE(rounds - close >= 500);
}

// Pages of 1 token, chunks of 2 pages, grids of 2 chunks; keys of one number. Eleven tokens are known, W = 1:
//   pages   4 4 | 1 1 || 9 -9 | 2 2 || 3 3 | 1        anchor = 1 (the last page)
//   chunks   4     1      0      2      3    1
//   grids      2.5           1            2
// Grids .5 of 3 -> 2: the first and the last. Their chunks with candidates, 4 1 3, .5 of 3 -> 2: 4 and 3. Their pages 4 4 3 3,
// .5 of 4 -> 2: tokens 0 and 1. The page of 9 is never looked at. The window was token 10 then and is 11 now.
TEMPLATE_TEST_CASE("chess, worked by hand", "[presets]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(112);
  cache_shape const shape{1, 1, 1, 1, 12, element_type::f32};
  random_cache cache(shape, layout::head_major, 4, random);
  std::array const keys{4.f, 4.f, 1.f, 1.f, 9.f, -9.f, 2.f, 2.f, 3.f, 3.f, 1.f, 50.f};
  for (std::size_t t = 0; t < keys.size(); ++t) cache.set_key(0, 0, static_cast<std::int64_t>(t), 0, keys[t]);
  presets::chess const policy{.fractions = {.5f, .5f, .5f},
                              .units = {1, 2, 2},
                              .sink_pages = 0,
                              .recent_pages = 1,
                              .depth = 3,
                              .pre_rope = false,
                              .standardised = false,
                              .following = false};
  range_list list;
  TestType on(shape);
  on.run([&](auto& exec) { list = chosen(policy, cache, 12, exec); });
  // Pages of one token are never open: the window's page is recent.
  REQUIRE(list == range_list{{0, 2, reason::scored}, {10, 12, reason::recent}});
}

// Eleven pages, one a grid: 1 - .9 of the ten steps between them is the second smallest itself, which stays. As in torch.
TEMPLATE_TEST_CASE("to the letter, a score that is the quantile itself is kept", "[presets]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(113);
  cache_shape const shape{1, 1, 1, 1, 12, element_type::f32};
  random_cache cache(shape, layout::head_major, 4, random);
  for (std::int64_t t = 0; t < 12; ++t) cache.set_key(0, 0, t, 0, static_cast<float>(t + 1));
  presets::chess const policy{.fractions = {.9f, 1, 1},
                              .units = {1, 1, 1},
                              .sink_pages = 0,
                              .recent_pages = 1,
                              .depth = 3,
                              .pre_rope = false,
                              .standardised = false,
                              .following = false,
                              .paper_literal = true};
  range_list list;
  TestType on(shape);
  on.run([&](auto& exec) { list = chosen(policy, cache, 12, exec); });
  REQUIRE(list.front().begin == 1);
}

TEST_CASE("chess chooses anew after a page that passed a threshold, and not before", "[presets]") {
  random_source random(114);
  cache_shape const shape{2, 2, 1, 4, 200, element_type::f32};
  random_cache const cache(shape, layout::head_major, 4, random);
  presets::chess const policy{.fractions = {.5f, .2f, .1f},
                              .units = {4, 2, 2},
                              .recent_pages = 1,
                              .entropy = 1.0f,
                              .varentropy = 5.0f,
                              .rest = 0,
                              .depth = 3,
                              .pre_rope = false};
  host_exec exec;
  auto state = start(policy, shape);
  for (std::int64_t l = 0; l < 2; ++l) state.prefill(own_view{&cache, 100}, {l}, {}, exec);
  std::vector<float> const unsure(16, 0.0f);
  std::vector<float> sure(16, 0.0f);
  sure[0] = 60;
  for (std::int64_t n = 101; n <= 199; ++n) {
    for (std::int64_t l = 0; l < 2; ++l) state.choose(own_view{&cache, n}, {l}, {}, exec);
    bool const page_is_unsure = (n - 1) / 4 % 3 == 0;
    state.observe({page_is_unsure ? unsure : sure}, exec);
    INFO("token " << n);
    REQUIRE(policy.parts().retrieve.trigger.due(state.retrieve().trigger(), {0}, {0}, 1) == (n % 4 == 0 && page_is_unsure));
  }
}

// Algorithm 1 to the letter: of seven keys pages 4 to 6 are kept; the eighth turns all scores negative, and nothing is. What
// was the window's then, the eighth, is still read beside the ninth.
TEST_CASE("a choice that keeps nothing takes the place of one that kept pages", "[presets]") {
  std::array<float, 9> const keys{1, 2, 2, 3, 5, 5, 5, -1, 0};
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 36, .head = 4, .token = 4, .dim = 4};
  presets::chess const policy{.fractions = {.5f, .5f, .5f},
                              .units = {1, 2, 2},
                              .sink_pages = 0,
                              .recent_pages = 1,
                              .every = 1,
                              .depth = 3,
                              .pre_rope = false,
                              .standardised = false,
                              .following = false,
                              .paper_literal = true};
  auto const view = [&](std::int64_t tokens) {
    return strided_view<>{{1, 1, 1, 1, 9, element_type::f32}, tokens, base, base, strides, strides};
  };
  host_exec exec;
  auto state = start(policy, view(0).shape());
  state.prefill(view(7), {0}, {}, exec);
  REQUIRE(token_count(state.choose(view(8), {0}, {}, exec).of({0})) == 4);
  state.observe({.logits = {}, .entropy = 0.f}, exec);
  REQUIRE(token_count(state.choose(view(9), {0}, {}, exec).of({0})) == 2);
}

}  // namespace
}  // namespace kvpolicy_test
