// From a cache of one's own to a policy of one's own, in the four steps of docs/tutorial.md.
#include <kvpolicy/compose.hpp>
#include <kvpolicy/kvpolicy.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace kv = kvpolicy;

// Step 1: what the engine has, keys and values [layer][token][head][channel], and a view of it.
struct engine_cache {
  static constexpr std::int64_t layers = 2, heads = 2, dim = 16, room = 1024;
  static constexpr std::int64_t row = heads * dim;
  std::vector<float> keys = std::vector<float>(layers * room * row);
  std::vector<float> values = std::vector<float>(layers * room * row);
};

struct engine_view {
  using memory = kv::host_memory;
  engine_cache const* cache;
  std::int64_t count;  ///< tokens

  kv::cache_shape shape() const {
    return {engine_cache::layers, 4, engine_cache::heads, engine_cache::dim, engine_cache::room,
            kv::element_type::f32};  // 4 query heads
  }
  std::int64_t tokens() const { return count; }
  kv::rows keys(kv::layer_id l) const { return at(cache->keys, l); }
  kv::rows values(kv::layer_id l) const { return at(cache->values, l); }

 private:
  kv::rows at(std::vector<float> const& from, kv::layer_id l) const {
    auto const first = static_cast<std::size_t>(l.value * engine_cache::room * engine_cache::row);
    return {.base = reinterpret_cast<std::byte const*>(from.data() + first),
            .type = kv::element_type::f32,
            .heads = engine_cache::heads,
            .tokens = count,
            .head_dim = engine_cache::dim,
            .head_stride = engine_cache::dim * 4,
            .token_stride = engine_cache::row * 4,
            .dim_stride = 4};
  }
};
static_assert(kv::kv_cache_view<engine_view>);

// A prompt of 800 tokens. What the queries ask for stands at tokens 300 to 307, with large values; all else is noise.
constexpr std::int64_t prompt_tokens = 800, q_heads = 4;
constexpr float scale = .25f;  // 1 / sqrt(16)

engine_cache some_cache() {
  engine_cache made;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (float& x : made.keys) x = normal(random);
  for (float& x : made.values) x = normal(random);
  for (std::int64_t l = 0; l < engine_cache::layers; ++l) {
    for (std::int64_t t = 300; t < 308; ++t) {
      for (std::int64_t i = 0; i < engine_cache::row; ++i) {
        auto const at = static_cast<std::size_t>((l * engine_cache::room + t) * engine_cache::row + i);
        made.keys[at] = 5;
        made.values[at] *= 4;
      }
    }
  }
  return made;
}

/// One step of every layer under a policy: [layers][q_heads * dim]. Prints how many tokens a head reads on average.
template <class State>
std::vector<float> step(State& state, engine_cache const& cache, std::vector<float> const& query, kv::host_exec& exec) {
  engine_view const view{&cache, prompt_tokens + 1};  // the token that is decoded now has its key
  std::vector<float> out(static_cast<std::size_t>(engine_cache::layers * q_heads * engine_cache::dim));
  std::int64_t read = 0;
  for (std::int64_t l = 0; l < engine_cache::layers; ++l) {
    kv::query_heads const heads{query.data(), q_heads, engine_cache::dim, scale};
    kv::selection const reads = state.choose(view, {l}, {.queries = heads}, exec);
    read += reads.tokens();
    kv::table<float> const to{out.data() + l * q_heads * engine_cache::dim, q_heads, engine_cache::dim, engine_cache::dim};
    attend(heads, view.keys({l}), view.values({l}), reads, to, {}, exec);
  }
  std::printf("a head reads %lld of %lld tokens\n", static_cast<long long>(read / (engine_cache::layers * engine_cache::heads)),
              static_cast<long long>(prompt_tokens + 1));
  return out;
}

/// The prompt's tokens that a state keeps in layer 0, ten to a character: none, fewer than half, more.
template <class State>
void draw(State const& state) {
  for (std::int64_t h = 0; h < engine_cache::heads; ++h) {
    std::vector<int> kept(prompt_tokens / 10);
    for (kv::token_range const& range : state.retained({0}).of({h})) {
      for (std::int64_t t = range.begin; t < std::min<std::int64_t>(range.end, prompt_tokens); ++t)
        ++kept[static_cast<std::size_t>(t / 10)];
    }
    std::string line;
    for (int const count : kept) line += count == 0 ? '.' : count < 5 ? ':' : '#';
    std::printf("head %lld %s\n", static_cast<long long>(h), line.c_str());
  }
}

double difference(std::vector<float> const& a, std::vector<float> const& b) {
  double sum = 0, whole = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(a[i] - b[i], 2), whole += std::pow(b[i], 2);
  return std::sqrt(sum / whole);
}

int main() {
  engine_cache const cache = some_cache();
  engine_view const view{&cache, prompt_tokens};
  std::vector<float> const query(q_heads * engine_cache::dim, .5f);
  kv::host_exec exec(view.shape());

  // Step 2: full reads everything. Your attention gets ranges of tokens, here one.
  auto full = kv::start(kv::presets::full{}, view.shape());
  for (std::int64_t l = 0; l < engine_cache::layers; ++l) full.prefill(view, {l}, {}, exec);
  std::vector<float> const dense = step(full, cache, query, exec);

  // Step 3: snapkv keeps what the prompt's last queries look at. They are [tokens, q_heads, dim].
  std::vector<float> const last(16 * q_heads * engine_cache::dim, .5f);
  kv::prompt_signals const signals{
      .queries = {last.data(), 16, q_heads, q_heads * engine_cache::dim, engine_cache::dim, scale}};
  auto snapkv = kv::start(kv::presets::snapkv{.tokens = 96, .window = 16, .after = 0}, view.shape());
  for (std::int64_t l = 0; l < engine_cache::layers; ++l) snapkv.prefill(view, {l}, signals, exec);
  std::printf("snapkv: ");
  std::printf("off by %.1f %%\n", 100 * difference(step(snapkv, cache, query, exec), dense));
  draw(snapkv);

  // Step 4: a policy of one's own keeps the tokens of large values, and a step reads 48 of them by Quest's pages.
  constexpr auto by_value = kv::score_tokens([](auto, auto value, auto) { return norm(value); });
  auto const mine = kv::retain(by_value, {.tokens = 96, .recent = 16}) + kv::presets::quest{.tokens = 48};
  auto own = kv::start(mine, view.shape());
  for (std::int64_t l = 0; l < engine_cache::layers; ++l) own.prefill(view, {l}, {}, exec);
  std::printf("mine: ");
  std::printf("off by %.1f %%\n", 100 * difference(step(own, cache, query, exec), dense));
  draw(own);
}
