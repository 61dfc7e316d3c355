// The papers' settings against implementations that were written from the papers' texts alone (witness/).
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/presets/all.hpp"
#include "methods/naive_choice.hpp"
#include "methods/witness/chess.hpp"
#include "methods/witness/chunkkv.hpp"
#include "methods/witness/heterocache.hpp"
#include "methods/witness/sentencekv.hpp"

namespace kvpolicy_test::methods {
namespace {

using lists = std::vector<std::vector<int>>;

constexpr int many = 1000;
constexpr int few = 60;  ///< are enough to find a setting that is not the paper's

std::vector<int> tokens_in(range_list const& list) {
  std::vector<int> made;
  for (token_range const& range : list) {
    for (std::int32_t t = range.begin; t < range.end; ++t) made.push_back(t);
  }
  return made;
}

/// A layer's keys of the first `tokens`, `[kv_heads, tokens, dim]`.
std::vector<float> keys_of(world const& w, std::int64_t l, std::int64_t tokens) {
  std::vector<float> made;
  for (std::int64_t h = 0; h < w.shape.kv_heads; ++h) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t d = 0; d < w.shape.head_dim; ++d) made.push_back(static_cast<float>(w.cache.key(l, h, t, d)));
    }
  }
  return made;
}
std::vector<float> key_of(world const& w, std::int64_t l, std::int64_t token) {
  std::vector<float> made;
  for (std::int64_t h = 0; h < w.shape.kv_heads; ++h) {
    for (std::int64_t d = 0; d < w.shape.head_dim; ++d) made.push_back(static_cast<float>(w.cache.key(l, h, token, d)));
  }
  return made;
}
/// Queries of tokens [first, last), `[tokens, q_heads, dim]`.
std::vector<float> queries_of(world const& w, std::int64_t l, std::int64_t first, std::int64_t last) {
  float const* const from = w.query(l, first, 0);
  return {from, from + (last - first) * w.shape.q_heads * w.shape.head_dim};
}

world random_world(random_source& random, std::int64_t layers, std::int64_t tokens) {
  cache_shape const shape{layers, 0, random.between(1, 4), random.between(1, 8), tokens, element_type::f32};
  cache_shape made = shape;
  made.q_heads = made.kv_heads * random.between(1, 3);
  return {made, random};
}

/// How often the two differ; the first difference is shown.
struct differences {
  int cases = 0;
  int different = 0;
  std::string first;

  void add(std::string const& where, std::vector<int> const& ours, std::vector<int> const& theirs) {
    ++cases;
    if (ours == theirs) return;
    if (different++ > 0) return;
    first = where;
    for (auto const* list : {&ours, &theirs}) {
      first += list == &ours ? "\nours   " : "\ntheirs ";
      for (int const t : *list) first += " " + std::to_string(t);
    }
  }
};

differences compare_chunkkv(presets::chunkkv policy, int cases) {
  namespace theirs = witness::chunkkv;
  random_source random(3101);
  differences found;
  host_exec exec;
  for (int i = 0; i < cases; ++i) {
    std::int64_t const prompt = random.between(30, 90);
    world const w = random_world(random, 4, prompt + 3);
    policy.window = narrow(random.between(1, 8));
    policy.tokens = narrow(random.between(policy.window + policy.chunk, prompt));
    theirs::settings s;
    s.window = policy.window;
    s.chunk_size = policy.chunk;
    s.n_reuse = policy.layers.reuse;
    s.budget_tokens = policy.tokens;
    s.pool = theirs::chunk_pool::before_window;
    s.rule = theirs::budget_rule::floor_k;
    theirs::sequence other(s, 4);
    auto state = start(policy, w.shape);
    for (std::int64_t l = 0; l < 4; ++l) {
      state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
      theirs::layer_input in;
      in.tokens = static_cast<int>(prompt);
      in.kv_heads = static_cast<int>(w.shape.kv_heads);
      in.q_heads = static_cast<int>(w.shape.q_heads);
      in.dim = static_cast<int>(w.shape.head_dim);
      in.rows = policy.window;
      in.scale = static_cast<double>(w.scale);
      in.keys = keys_of(w, l, prompt);
      in.queries = queries_of(w, l, prompt - policy.window, prompt);
      lists const kept = other.prompt(static_cast<int>(l), in);
      found.add("case " + std::to_string(i) + " layer " + std::to_string(l) + " prompt " + std::to_string(prompt) + " tokens " +
                    std::to_string(policy.tokens) + " window " + std::to_string(policy.window),
                tokens_in(state.retained({l}).of({0})), kept[0]);
    }
  }
  return found;
}

TEST_CASE("chunkkv:paper keeps what an implementation from the paper's text keeps", "[methods]") {
  differences const found = compare_chunkkv(presets::chunkkv::paper(), many);
  INFO(found.different << " of " << found.cases << " differ; " << found.first);
  CHECK(found.different == 0);
}

/// Token 1 ends a sentence.
constexpr std::array<std::uint8_t, 6> boundary{0, segments::sentence_mark(".")};

differences compare_sentencekv(presets::sentencekv policy, int cases) {
  namespace theirs = witness::sentencekv;
  random_source random(3201);
  differences found;
  host_exec exec;
  policy.sentences.boundary = boundary;
  for (int i = 0; i < cases; ++i) {
    std::int64_t const prompt = random.between(30, 80);
    world w = random_world(random, 1, prompt + 8);
    for (std::int32_t& id : w.ids) id %= 6;
    policy.window = narrow(random.between(1, 6));
    policy.tokens = narrow(random.between(10, prompt / 2));
    theirs::settings s;
    s.tau = policy.tokens;
    s.r = policy.keep;
    s.window = policy.window;
    // Where the text is silent: the window's own tokens stay, within floor(r tau), in their sentences' buckets; a bucket is cut
    // behind its first tokens; every generated token is read, beside tau.
    s.window_use = theirs::settings::window_tokens::in_buckets;
    s.window_in_keep_count = true;
    s.cut = theirs::settings::cut_order::first;
    s.generated_use = theirs::settings::generated::all;
    s.generated_in_budget = false;
    theirs::prompt_input in;
    in.kv_heads = static_cast<int>(w.shape.kv_heads);
    in.q_heads = static_cast<int>(w.shape.q_heads);
    in.dim = static_cast<int>(w.shape.head_dim);
    in.rows = policy.window;
    in.scale = w.scale;
    in.ids.assign(w.ids.begin(), w.ids.begin() + prompt);
    in.keys = keys_of(w, 0, prompt);
    in.queries = queries_of(w, 0, prompt - policy.window, prompt);
    theirs::sequence other(s, {1}, in);
    auto state = start(policy, w.shape);
    state.prefill(w.view(prompt), {0}, w.prompt(0, prompt), exec);
    auto const where = [&](std::int64_t n, std::int64_t h) {
      return "case " + std::to_string(i) + " prompt " + std::to_string(prompt) + " tokens " + std::to_string(policy.tokens) +
             " window " + std::to_string(policy.window) + " n " + std::to_string(n) + " head " + std::to_string(h);
    };
    for (std::int64_t h = 0; h < w.shape.kv_heads; ++h)
      found.add("retained, " + where(prompt, h), tokens_in(state.retained({0}).of({h})),
                other.retained[static_cast<std::size_t>(h)]);
    for (std::int64_t n = prompt + 1; n <= prompt + 8; ++n) {
      selection const kept = state.choose(w.view(n), {0}, w.step(0, n), exec);
      auto const read = other.step(at(w.ids, n - 1), queries_of(w, 0, n - 1, n), key_of(w, 0, n - 1)).read;
      for (std::int64_t h = 0; h < w.shape.kv_heads; ++h)
        found.add(where(n, h), tokens_in(kept.of({h})), read[static_cast<std::size_t>(h)]);
    }
  }
  return found;
}

TEST_CASE("sentencekv:paper reads what an implementation from the paper's text reads", "[methods]") {
  differences const found = compare_sentencekv(presets::sentencekv::paper(), many);
  INFO(found.different << " of " << found.cases << " differ; " << found.first);
  CHECK(found.different == 0);
}

namespace heterocache {

namespace theirs = witness::heterocache;

/// Where the text is silent, or has two readings: see docs/methods.md.
theirs::settings setting(int window, bool strict = false) {
  theirs::settings s;
  s.W = window;
  s.pool_kernel = 5;
  s.pool_online = true;  // the authors average online too, and count the padding
  s.pool_counts_padding = true;
  s.strict_edges = strict;
  s.prompt_attention = true;  // satellites have the prompt alone in a tier
  s.monitor_prompt_only = true;
  s.from = theirs::candidates::prompt_only;
  s.keep_generated = true;
  return s;
}

std::vector<std::vector<float>> random_weights(random_source& random, std::int64_t heads, std::int64_t tokens) {
  std::vector<std::vector<float>> made(static_cast<std::size_t>(heads));
  for (auto& row : made) {
    for (std::int64_t t = 0; t < tokens; ++t) row.push_back(std::abs(random.real()));
  }
  return made;
}

std::vector<std::vector<std::int32_t>> sets_of(std::vector<std::vector<float>> const& weights, std::int64_t heads,
                                               theirs::settings const& s) {
  std::vector<std::vector<std::int32_t>> made;
  for (auto const& set : theirs::active_sets(weights, static_cast<int>(heads), static_cast<int>(weights[0].size()), s))
    made.emplace_back(set.begin(), set.end());
  return made;
}

head_role ours_of(theirs::role role) {
  return role == theirs::role::anchor      ? head_role::anchor
         : role == theirs::role::volatile_ ? head_role::shifting
         : role == theirs::role::pivot     ? head_role::pivot
                                           : head_role::satellite;
}

}  // namespace heterocache

TEST_CASE("roles by eqs. 3 to 6 are those of an implementation from the paper's text", "[methods]") {
  using namespace heterocache;
  random_source random(3301);
  std::array<int, 4> seen{};
  for (int i = 0; i < many; ++i) {
    std::int64_t const heads = random.between(1, 8);
    std::int64_t const tokens = random.between(8, 20);
    theirs::settings s = setting(5);
    s.calib_k = static_cast<int>(random.between(2, tokens / 2));
    s.tau_stable = s.tau_sim = static_cast<double>(random.between(2, 6)) / 8;
    std::vector<theirs::calib_sample> samples(static_cast<std::size_t>(random.between(1, 2)));
    head_calibration calibration(1, heads);
    for (theirs::calib_sample& sample : samples) {
      sample.prefill = random_weights(random, heads, tokens);
      calibration.begin(sets_of(sample.prefill, heads, s));
      for (std::int64_t step = random.between(1, 4); step > 0; --step) {
        sample.steps.push_back(random_weights(random, heads, tokens));
        calibration.add(0, sets_of(sample.steps.back(), heads, s));
      }
      calibration.end();
    }
    auto const tau = static_cast<float>(s.tau_stable);
    auto const ours = calibration.profile({.stable = tau, .similar = tau, .by = similar_heads::scores});
    theirs::layer_roles const wanted = theirs::make_roles(samples, static_cast<int>(heads), s);
    for (std::int64_t h = 0; h < heads; ++h) {
      auto const at_h = static_cast<std::size_t>(h);
      INFO("case " << i << " head " << h << " of " << heads);
      REQUIRE(ours[at_h].role == ours_of(wanted.roles[at_h]));
      REQUIRE(ours[at_h].pivot == (ours[at_h].role == head_role::satellite ? wanted.pivot[at_h] : -1));
      ++seen[static_cast<std::size_t>(ours[at_h].role)];
    }
  }
  for (int const of_role : seen) CHECK(of_role > 100);
}

differences compare_heterocache(presets::heterocache policy, int cases, std::int64_t& fired) {
  using namespace heterocache;
  random_source random(3302);
  differences found;
  host_exec exec;
  for (int i = 0; i < cases; ++i) {
    std::int64_t const prompt = random.between(40, 90);
    cache_shape shape{1, 0, random.between(3, 8), random.between(2, 8), prompt + 16, element_type::f32};
    shape.q_heads = shape.kv_heads * random.between(1, 3);
    world const w(shape, random);
    auto const heads = static_cast<int>(shape.kv_heads);
    theirs::settings s = setting(policy.window);
    s.tau_sim = .3;
    s.calib_k = 3;
    std::vector<theirs::calib_sample> samples(1);
    samples[0].prefill = random_weights(random, heads, 12);
    for (int step = 0; step < 3; ++step) samples[0].steps.push_back(random_weights(random, heads, 12));
    theirs::layer_roles const roles = theirs::make_roles(samples, heads, s);
    std::vector<head_profile> profile;
    for (std::size_t h = 0; h < roles.roles.size(); ++h) {
      bool const follows = roles.roles[h] == theirs::role::satellite;
      profile.push_back({.role = ours_of(roles.roles[h]),
                         .pivot = follows ? roles.pivot[h] : -1,
                         .stability = static_cast<float>(roles.stable[h])});
    }
    policy.heads = profile;
    theirs::budget const budget = theirs::make_budget({roles}, static_cast<int>(prompt), s);
    if (budget.l_base < 1) continue;  // whole heads spend the budget: refused here
    std::vector<std::int64_t> lengths(profile.size());
    auto const parts = policy.parts();
    if (parts.retain.budget.base(prompt) < 1) continue;
    parts.retain.budget.lengths(prompt, lengths);
    std::vector<int> of_head;
    for (std::size_t h = 0; h < profile.size(); ++h) {
      bool const whole = theirs::is_full(roles.roles[h]);
      of_head.push_back(whole ? 0 : static_cast<int>(lengths[h]));
      // Theirs are rounded down; ours share what that leaves, and what a head longer than the prompt leaves.
      if (!whole && std::ranges::max(budget.l[0]) < prompt && std::ranges::max(lengths) < prompt)
        REQUIRE(std::abs(lengths[h] - budget.l[0][h]) <= 1);
    }
    double const base = std::floor(budget.l_base + 1e-9);  // a set has whole tokens, and overlaps are shares of it
    theirs::sequence other(s, {heads, static_cast<int>(shape.q_heads), static_cast<int>(shape.head_dim), w.scale}, roles, base,
                           of_head);
    auto state = start(policy, shape);
    state.prefill(w.view(prompt), {0}, w.prompt(0, prompt), exec);
    lists const held = other.prompt(keys_of(w, 0, prompt), static_cast<int>(prompt), queries_of(w, 0, prompt - 1, prompt), 1);
    for (std::int64_t n = prompt + 1; n <= prompt + 16; ++n) {
      selection const kept = state.choose(w.view(n), {0}, w.step(0, n), exec);
      theirs::step_result const step = other.step(key_of(w, 0, n - 1), queries_of(w, 0, n - 1, n));
      fired += std::ssize(step.fired);
      for (std::int64_t h = 0; h < heads; ++h) {
        found.add("case " + std::to_string(i) + " prompt " + std::to_string(prompt) + " n " + std::to_string(n) + " head " +
                      std::to_string(h) + " " + name_of(profile[static_cast<std::size_t>(h)].role),
                  tokens_in(kept.of({h})), step.reads[static_cast<std::size_t>(h)]);
      }
    }
    static_cast<void>(held);
  }
  return found;
}

TEST_CASE("heterocache:paper reads what an implementation from the paper's text reads", "[methods]") {
  presets::heterocache policy = presets::heterocache::paper();
  std::int64_t fired = 0;
  differences const found = compare_heterocache(policy, many, fired);
  INFO(found.different << " of " << found.cases << " differ; " << found.first);
  CHECK(found.different == 0);
  CHECK(fired > 100);
}

witness::chess::layer_keys layer_of(world const& w, std::int64_t l, std::int64_t first, std::int64_t last) {
  witness::chess::layer_keys made{
      static_cast<int>(w.shape.kv_heads), static_cast<int>(last - first), static_cast<int>(w.shape.head_dim), {}};
  for (std::int64_t h = 0; h < w.shape.kv_heads; ++h) {
    for (std::int64_t t = first; t < last; ++t) {
      for (std::int64_t d = 0; d < w.shape.head_dim; ++d) made.k.push_back(static_cast<float>(w.cache.key(l, h, t, d)));
    }
  }
  return made;
}

/// `printed`: Algorithm 1 to the letter; if not, section 3.2.
differences compare_chess(presets::chess policy, bool printed, int cases, int& renewals) {
  namespace theirs = witness::chess;
  random_source random(3401);
  differences found;
  host_exec exec;
  for (int i = 0; i < cases; ++i) {
    std::int64_t const prompt = random.between(60, 140);
    world const w = random_world(random, random.between(1, 2), prompt + 30);
    policy.units = {.page = narrow(random.between(2, 6)),
                    .pages_per_chunk = narrow(random.between(1, 4)),
                    .chunks_per_grid = narrow(random.between(1, 3))};
    policy.recent_pages = narrow(random.between(1, 3));
    policy.sink_pages = narrow(random.between(0, 2));
    policy.entropy = 1.5f;
    policy.varentropy = .3f;
    policy.paper_literal = printed;
    theirs::settings s;
    s.page_size = policy.units.page;
    s.pages_per_chunk = policy.units.pages_per_chunk;
    s.chunks_per_grid = policy.units.chunks_per_grid;
    s.sink_pages = policy.sink_pages;
    s.window = policy.recent_pages;
    s.rho_g = std::round(1000 * static_cast<double>(policy.fractions.grids)) / 1000;
    s.rho_c = std::round(1000 * static_cast<double>(policy.fractions.chunks)) / 1000;
    s.rho_p = std::round(1000 * static_cast<double>(policy.fractions.pages)) / 1000;
    s.tau_entropy = static_cast<double>(policy.entropy);
    s.tau_varentropy = static_cast<double>(policy.varentropy);
    s.page_mean_over_members = s.group_mean_over_members = true;
    s.rule = policy.both ? theirs::combine::both : theirs::combine::either;
    s.reads = policy.slides ? theirs::between::window_slides : theirs::between::frozen_and_growing;
    if (!printed) {
      s.ranking = theirs::ranked::survivors;
      s.cut = theirs::threshold::top_ceil;
      s.ranked_pages = theirs::candidates::outside_safety;
      s.left_out_in_means = true;
    }
    theirs::sequence other(s);
    auto state = start(policy, w.shape);
    std::vector<theirs::layer_keys> of_prompt;
    for (std::int64_t l = 0; l < w.shape.layers; ++l) {
      state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
      of_prompt.push_back(layer_of(w, l, 0, prompt));
    }
    other.prompt(of_prompt);
    for (std::int64_t n = prompt + 1; n <= prompt + 30; ++n) {
      std::vector<theirs::layer_keys> of_step;
      for (std::int64_t l = 0; l < w.shape.layers; ++l) of_step.push_back(layer_of(w, l, n - 1, n));
      range_list ours;
      for (std::int64_t l = 0; l < w.shape.layers; ++l) ours = state.choose(w.view(n), {l}, w.step(l, n), exec).of({0});
      std::vector<int> const theirs_read = other.step(of_step);
      found.add("case " + std::to_string(i) + " prompt " + std::to_string(prompt) + " n " + std::to_string(n) + " page " +
                    std::to_string(s.page_size) + " chunk " + std::to_string(s.pages_per_chunk) + " grid " +
                    std::to_string(s.chunks_per_grid) + " W " + std::to_string(s.window) + " sinks " +
                    std::to_string(s.sink_pages),
                tokens_in(ours), theirs_read);
      float const nats = 3 * std::abs(random.real());
      state.observe({.entropy = nats}, exec);
      other.observe({static_cast<double>(nats), 0});
    }
    renewals += other.renewals() - 1;
  }
  return found;
}

TEST_CASE("chess:paper reads what an implementation from the paper's text reads", "[methods]") {
  for (presets::chess const& policy :
       {presets::chess::aggressive(), presets::chess::moderate(), presets::chess::conservative()}) {
    int renewals = 0;
    differences const found = compare_chess(policy, false, many, renewals);
    INFO(found.different << " of " << found.cases << " differ; " << found.first);
    CHECK(found.different == 0);
    CHECK(renewals > 300);
  }
}

TEST_CASE("chess's Algorithm 1 to the letter is that of an implementation from the paper's text", "[methods]") {
  int renewals = 0;
  presets::chess policy = presets::chess::moderate();
  differences const found = compare_chess(policy, true, many, renewals);
  INFO(found.different << " of " << found.cases << " differ; " << found.first);
  CHECK(found.different == 0);
}

// Each is one setting away from the paper's.
TEST_CASE("a setting that is not the paper's is found by the comparison with its text", "[methods]") {
  std::int64_t fired = 0;
  int renewals = 0;
  presets::chunkkv chunks = presets::chunkkv::paper();
  chunks.reduce = selectors::merge::maximum;
  CHECK(compare_chunkkv(chunks, few).different > 0);
  chunks = presets::chunkkv::paper();
  chunks.smooth = {.how = smoothing::kind::average, .width = 3};
  CHECK(compare_chunkkv(chunks, few).different > 0);

  presets::sentencekv sentences = presets::sentencekv::paper();
  sentences.all_heads = false;
  CHECK(compare_sentencekv(sentences, few).different > 0);
  sentences = presets::sentencekv::paper();
  sentences.sinks = 2;
  CHECK(compare_sentencekv(sentences, few).different > 0);
  sentences = presets::sentencekv::paper();
  sentences.generated = false;
  CHECK(compare_sentencekv(sentences, few).different > 0);

  presets::heterocache heads = presets::heterocache::paper();
  heads.next_step = false;
  CHECK(compare_heterocache(heads, few, fired).different > 0);
  heads = presets::heterocache::paper();
  heads.protect = true;
  CHECK(compare_heterocache(heads, few, fired).different > 0);
  heads = presets::heterocache::paper();
  heads.own = true;
  CHECK(compare_heterocache(heads, few, fired).different > 0);

  for (bool const printed : {false, true}) {
    presets::chess pages = presets::chess::moderate();
    pages.units.pages_per_chunk = 4;
    pages.every = 7;
    CHECK(compare_chess(pages, printed, few, renewals).different > 0);
  }
  CHECK(compare_chess(presets::chess::moderate(), false, few, renewals).different == 0);
}

}  // namespace
}  // namespace kvpolicy_test::methods
