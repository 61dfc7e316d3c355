// A request whose cache is split over ranks by heads and layers, and what each rank chooses.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "conformance/random_cache.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/presets/chess.hpp"

namespace kvpolicy_test::ranks {

/// Consecutive layers, and in each of them consecutive KV heads.
struct part {
  std::int64_t first_layer = 0;
  std::int64_t layers = 0;
  head_range heads{};
};

/// What a rank has of a cache.
template <class View>
struct part_view {
  using memory = typename View::memory;

  View whole{};
  part mine{};

  cache_shape shape() const {
    cache_shape s = whole.shape();
    s.q_heads = s.group() * mine.heads.count;
    s.layers = mine.layers;
    s.kv_heads = mine.heads.count;
    return s;
  }
  std::int64_t tokens() const { return whole.tokens(); }
  basic_rows<memory> keys(layer_id l) const { return whole.keys({l.value + mine.first_layer}).of(mine.heads); }
  basic_rows<memory> values(layer_id l) const { return whole.values({l.value + mine.first_layer}).of(mine.heads); }
};

/// After a prompt, steps on so many tokens each; a step on fewer than the one before has lost a tail.
struct request {
  cache_shape shape{};
  std::vector<float> cells;  ///< keys `[layers, kv_heads, max_tokens, head_dim]`, and values, which nothing reads
  presets::chess policy{};
  std::int64_t prompt = 0;
  std::vector<std::int64_t> steps;
  std::vector<std::vector<float>> logits;  ///< `[steps]`, or
  std::vector<float> entropies;            ///< `[steps]`
  std::vector<part> parts;                 ///< `[ranks]`
  bool send_entropy = false;               ///< ranks are told the entropy, not the logits
  std::vector<float> frequencies{1};       ///< of the keys' rotary embedding

  prompt_signals told() const {
    return {.rope = {frequencies.data(), std::min(shape.head_dim / 2, static_cast<std::int64_t>(frequencies.size()))}};
  }

  strided_view<> view(std::int64_t tokens) const {
    constexpr std::int64_t size = sizeof(float);
    std::int64_t const row = shape.head_dim * size;
    byte_strides const strides{
        .layer = shape.kv_heads * shape.max_tokens * row, .head = shape.max_tokens * row, .token = row, .dim = size};
    auto const* const base = reinterpret_cast<std::byte const*>(cells.data());
    return {shape, tokens, base, base, strides, strides};
  }
  part_view<strided_view<>> view_of(std::size_t rank, std::int64_t tokens) const { return {view(tokens), parts[rank]}; }
};

/// What each step read, in the request's one list.
using choices = std::vector<range_list>;

/// One rank's verbs, or, without `rank`, those of the one that has everything.
template <class Exec>
choices run(request const& r, std::optional<std::size_t> rank, Exec& exec) {
  part const everything{0, r.shape.layers, {0, r.shape.kv_heads}};
  auto const view = [&](std::int64_t tokens) {
    return part_view<strided_view<>>{r.view(tokens), rank ? r.parts[*rank] : everything};
  };
  auto state = start(r.policy, shape_of(view(0)));
  std::int64_t const layers = view(0).shape().layers;
  for (std::int64_t l = 0; l < layers; ++l) state.prefill(view(r.prompt), {l}, r.told(), exec);
  choices made;
  for (std::size_t i = 0; i < r.steps.size(); ++i) {
    state.cut(r.steps[i] - 1);
    for (std::int64_t l = 0; l < layers; ++l) state.choose(view(r.steps[i]), {l}, {}, exec);
    made.push_back(state.kept({0}).of({0}));
    host_exec once;
    if (!r.entropies.empty()) state.observe({.entropy = r.entropies[i]}, exec);
    else if (r.send_entropy && rank) state.observe({.entropy = entropy(r.logits[i], once).entropy}, exec);
    else state.observe({.logits = r.logits[i]}, exec);
  }
  return made;
}

/// `total` cut into as many pieces of at least 1.
inline std::vector<std::int64_t> pieces(std::int64_t total, std::int64_t count, bool evenly, random_source& random) {
  std::vector<std::int64_t> made(static_cast<std::size_t>(count), evenly ? total / count : 1);
  std::int64_t left = total - (evenly ? total / count * count : count);
  for (; left > 0; --left) ++made[static_cast<std::size_t>(random.between(0, count - 1))];
  return made;
}

/// Ranks in a grid: as many stages of layers, in each as many groups of heads.
inline std::vector<part> split(cache_shape const& shape, std::int64_t stages, std::int64_t groups, bool evenly,
                               random_source& random) {
  std::vector<part> made;
  std::vector<std::int64_t> const heads = pieces(shape.kv_heads, groups, evenly, random);
  std::int64_t first_layer = 0;
  for (std::int64_t const layers : pieces(shape.layers, stages, evenly, random)) {
    std::int64_t first = 0;
    for (std::int64_t const count : heads) {
      made.push_back({first_layer, layers, {first, count}});
      first += count;
    }
    first_layer += layers;
  }
  return made;
}

/// Keys that scores are exact sums of, in any order: ties abound, and all ranks' choices must be one rank's, bit by bit. Of
/// Gaussian keys, sums round otherwise than one rank's: they must agree but for a near-tie, and seeds are fixed.
enum class keys_are { whole_numbers, gaussian };

/// `ranks` is 1, 2, 3, 4, 6 or 8.
inline request draw_request(keys_are kind, std::int64_t ranks, random_source& random) {
  request r;
  bool const exact = kind == keys_are::whole_numbers;
  std::int64_t const way = random.between(0, 2);  // heads, layers, both
  std::int64_t const stages = way == 0 ? 1 : way == 1 ? ranks : ranks % 2 == 0 ? 2 : 1;
  std::int64_t const groups = ranks / stages;
  r.shape.layers = random.between(stages, stages + 3);
  r.shape.kv_heads = way == 1 ? random.between(1, 4) : random.between(std::max<std::int64_t>(4, groups), 16);
  r.shape.q_heads = r.shape.kv_heads * random.between(1, 2);
  r.shape.head_dim = random.between(1, 8);
  r.shape.max_tokens = random.between(20, 160);
  r.shape.type = element_type::f32;
  r.parts = split(r.shape, stages, groups, random.one_in(2), random);

  presets::chess& p = r.policy;
  auto const narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  auto const fraction = [&] { return static_cast<float>(random.between(1, 100)) / 100; };
  p.fractions = {fraction(), fraction(), fraction(), random.one_in(2) ? narrow(random.between(1, 60)) : 0};
  // Means of whole numbers are exact over 1, 2 of them, or of equal ones.
  bool const equal_in_page = exact && random.one_in(2);
  p.units = exact
                ? segments::hierarchy{narrow(random.between(1, equal_in_page ? 8 : 2)), narrow(random.between(1, 2)),
                                      narrow(random.between(1, 2))}
                : segments::hierarchy{narrow(random.between(1, 8)), narrow(random.between(1, 4)), narrow(random.between(1, 4))};
  p.sink_pages = narrow(random.between(0, 2));
  p.recent_pages = narrow(random.between(1, exact ? 2 : 4));
  if (p.fractions.tokens > 0) p.fractions.tokens = std::max(p.fractions.tokens, (p.sink_pages + p.recent_pages) * p.units.page);
  p.depth = narrow(random.between(1, 3));
  p.standardised = !exact && random.one_in(2);
  p.pre_rope = !exact && random.one_in(2);
  r.frequencies = {1, .3f, .1f, .03f};
  p.paper_literal = random.one_in(6);
  p.every = random.one_in(2) ? narrow(random.between(1, 9)) : 0;
  bool const by_entropy = p.every == 0 || random.one_in(2);
  p.entropy = by_entropy ? 1.9f : std::numeric_limits<float>::infinity();
  p.varentropy = by_entropy ? (random.one_in(2) ? .02f : 9.f) : std::numeric_limits<float>::infinity();

  content const whole = random.one_in(5) ? content::nan : random.one_in(5) ? content::infinite : content::tied;
  bool const hostile = whole != content::tied;
  for (std::int64_t i = 0; i < r.shape.layers * r.shape.kv_heads * r.shape.max_tokens; ++i) {
    bool const repeats = equal_in_page && i % r.shape.max_tokens % p.units.page != 0;
    for (std::int64_t d = 0; d < r.shape.head_dim; ++d) {
      float drawn = static_cast<float>(random.between(-2, 2));
      if (!exact) {
        double const radius = std::sqrt(-2 * std::log(std::max(1e-9, .5 - .5 * static_cast<double>(random.real()))));
        drawn = static_cast<float>(radius * std::cos(3.14159265 * static_cast<double>(random.real())));
      } else if (hostile && random.one_in(8)) {
        float const odd = draw(whole, random);
        if (!std::isfinite(odd)) drawn = odd;
      }
      if (repeats) drawn = r.cells[r.cells.size() - static_cast<std::size_t>(r.shape.head_dim)];
      r.cells.push_back(drawn);
    }
  }
  r.send_entropy = random.one_in(2);
  r.prompt = random.between(1, r.shape.max_tokens - 1);
  std::int64_t n = r.prompt;
  while (n < r.shape.max_tokens && r.steps.size() < 40) {
    n = random.one_in(15) ? random.between(1, n) : n + 1;
    r.steps.push_back(n);
    r.logits.push_back(random.reals(8, random.one_in(2) ? .1f : 3.f));
  }
  return r;
}

}  // namespace kvpolicy_test::ranks
