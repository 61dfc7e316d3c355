// A user's own engine: its paged cache becomes a view, CHESS chooses pages, and the page table goes to its attention.
#include <kvpolicy/interop/page_table.hpp>
#include <kvpolicy/kvpolicy.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace kv = kvpolicy;

// What the engine has: pages of 16 tokens, [page][K or V][head][token][dim], one pool for each layer.
struct paged_cache {
  static constexpr std::int64_t layers = 4, heads = 2, dim = 64, page = 16, pool_pages = 256;
  static constexpr std::int64_t row = dim * 2, half_page = heads * page * row;  // bytes
  std::vector<std::vector<std::uint16_t>> pools{layers, std::vector<std::uint16_t>(pool_pages* half_page)};
  std::vector<std::int32_t> table;  // of the one sequence
  std::int64_t tokens = 0;
};

// What kvpolicy needs to know of it: about twenty lines, and nothing is copied.
struct engine_view {
  using memory = kv::host_memory;
  paged_cache const* cache;

  kv::cache_shape shape() const { return {cache->layers, 4, cache->heads, cache->dim, 4096, kv::element_type::f16}; }
  std::int64_t tokens() const { return cache->tokens; }
  kv::rows keys(kv::layer_id l) const { return at(l, 0); }
  kv::rows values(kv::layer_id l) const { return at(l, cache->half_page); }

 private:
  kv::rows at(kv::layer_id l, std::int64_t offset) const {
    auto const* pool = reinterpret_cast<std::byte const*>(cache->pools[static_cast<std::size_t>(l.value)].data());
    return {.base = pool + offset,
            .type = kv::element_type::f16,
            .heads = cache->heads,
            .tokens = cache->tokens,
            .head_dim = cache->dim,
            .head_stride = cache->page * cache->row,
            .token_stride = cache->row,
            .dim_stride = 2,
            .pages = cache->table.data(),
            .page_size = cache->page,
            .page_stride = 2 * cache->half_page};
  }
};
static_assert(kv::kv_cache_view<engine_view>);

int main() {
  paged_cache cache;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (auto& pool : cache.pools) {
    for (auto& element : pool) element = kv::float_to_half(normal(random));
  }
  for (std::int32_t i = 0; i < 160; ++i) cache.table.push_back((i * 37 + 11) % 256);  // pages lie anywhere in the pool
  cache.tokens = 2000;

  std::array<float, 32> frequency{};  // of each channel pair, heads of 64
  for (std::size_t i = 0; i < frequency.size(); ++i) frequency[i] = std::pow(1e4f, -static_cast<float>(i) / 32);

  kv::presets::chess const policy{.fractions = {.tokens = 256}};  // pages of 16 tokens
  engine_view const view{&cache};
  kv::host_exec exec;
  auto state = kv::start(policy, kv::shape_of(view));                             // the only allocation
  kv::prompt_signals const prompt{.rope = {frequency.data(), frequency.size()}};  // how the model's keys were turned
  for (std::int64_t l = 0; l < cache.layers; ++l) state.prefill(view, {l}, prompt, exec);

  std::vector<float> logits(1000);
  std::vector<std::int32_t> pages(256);
  for (int step = 0; step < 48; ++step) {
    ++cache.tokens;  // the engine has a slot for the token that it decodes
    kv::selection const kept = state.choose(view, kv::layer_id{0}, {}, exec);
    kv::page_list const list = kv::page_table(kept.of({0}), cache.page, cache.table, pages);
    if (step % 16 == 0) {
      std::printf("step %2d: %lld of %lld tokens, pages", step, static_cast<long long>(kv::token_count(kept.of({0}))),
                  static_cast<long long>(cache.tokens));
      for (std::int64_t i = 0; i < list.count; ++i) std::printf(" %d", pages[static_cast<std::size_t>(i)]);
      std::printf(", the last one holds %d\n", list.last_page_tokens);
    }
    for (float& logit : logits) logit = normal(random);  // here the engine attends over these pages, and decodes
    state.observe({.logits = logits}, exec);
  }
}
