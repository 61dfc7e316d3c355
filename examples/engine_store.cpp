// A user's own engine that has room for a few tokens only: it hands each layer's rows to a store, and forgets them.
#include <kvpolicy/exec/simd.hpp>
#include <kvpolicy/kvpolicy.hpp>
#include <kvpolicy/store/row_store.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace kv = kvpolicy;

constexpr kv::cache_shape model{.layers = 4, .q_heads = 8, .kv_heads = 2, .head_dim = 64, .max_tokens = 8192};

// What the engine has: rows of the tokens that it is computing, `[tokens, kv_heads, head_dim]` of one layer at a time.
class small_engine {
 public:
  static constexpr std::int64_t room = 256;  // tokens

  /// Keys and values of the next `count` tokens in a layer, and their queries.
  void compute(std::int64_t count) {
    tokens_ = count;
    for (auto* const of : {&keys_, &values_}) {
      for (std::int64_t i = 0; i < count * model.kv_heads * model.head_dim; ++i)
        (*of)[at(i)] = kv::float_to_half(normal_(random_));
    }
    for (std::int64_t i = 0; i < count * model.q_heads * model.head_dim; ++i) queries_[at(i)] = normal_(random_);
  }
  kv::rows keys() const { return rows_of(keys_); }
  kv::rows values() const { return rows_of(values_); }
  kv::query_window queries() const {
    return {queries_.data(), tokens_, model.q_heads, model.q_heads * model.head_dim, model.head_dim, 1 / std::sqrt(64.0f)};
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  kv::rows rows_of(std::vector<std::uint16_t> const& from) const {
    constexpr std::int64_t row = model.head_dim * 2;  // bytes
    return {.base = reinterpret_cast<std::byte const*>(from.data()),
            .type = model.type,
            .heads = model.kv_heads,
            .tokens = tokens_,
            .head_dim = model.head_dim,
            .head_stride = row,
            .token_stride = model.kv_heads * row,
            .dim_stride = 2};
  }

  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
  std::int64_t tokens_ = 0;
  std::vector<std::uint16_t> keys_ = std::vector<std::uint16_t>(room * model.kv_heads * model.head_dim);
  std::vector<std::uint16_t> values_ = keys_;
  std::vector<float> queries_ = std::vector<float>(room * model.q_heads * model.head_dim);
};

int main() {
  small_engine engine;
  kv::simd_exec exec(model);
  kv::block_arena arena(kv::row_store::block_bytes(model), 4096);  // of all sequences; 64 MiB of address space
  kv::row_store store(arena, model);
  kv::presets::snapkv const policy{.tokens = 256};
  auto state = kv::start(policy, model);
  std::vector<float> out(small_engine::room * model.q_heads * model.head_dim);
  kv::table<float> const heads{out.data(), small_engine::room * model.q_heads, model.head_dim, model.head_dim};
  auto const report = [&](char const* when) {
    std::printf("%s: %lld tokens, %lld rows a head, %.1f MiB\n", when, static_cast<long long>(store.released()),
                static_cast<long long>(store.rows_of({0}, 0)), static_cast<double>(store.bytes_held()) / (1 << 20));
  };

  // The prompt: piece by piece, each over all before it.
  constexpr std::int64_t prompt = 6000;
  for (std::int64_t done = 0; done < prompt; done = store.released()) {  // the engine's rows of these tokens are free again
    std::int64_t const tokens = std::min(prompt, done + small_engine::room);
    for (kv::layer_id layer{0}; layer.value < model.layers; ++layer.value) {
      engine.compute(tokens - done);
      store.append(layer, engine.keys(), engine.values());
      kv::layer_table_view const view = store.view(tokens);
      kv::range_list const all{{0, static_cast<std::int32_t>(tokens)}};
      kv::attend_block(engine.queries(), view.keys(layer), view.values(layer), {kv::scope::request, {&all, 1}, model.kv_heads},
                       {}, heads, exec);
      // Its last piece brings the queries that SnapKV looks at.
      if (tokens < prompt) continue;
      state.prefill(view, layer, {.queries = engine.queries()}, exec);
    }
  }
  report("prompt");
  for (std::int64_t tokens = prompt + 1; tokens <= prompt + 100; ++tokens) {
    for (kv::layer_id layer{0}; layer.value < model.layers; ++layer.value) {
      engine.compute(1);
      store.append(layer, engine.keys(), engine.values());
      kv::layer_table_view const view = store.view(tokens);
      kv::query_heads const queries{engine.queries().data, model.q_heads, model.head_dim, engine.queries().scale};
      kv::selection const kept = state.choose(view, layer, {queries}, exec);
      kv::attend(queries, view.keys(layer), view.values(layer), kept, heads, {}, exec);
      // SnapKV decides with the answer's first tokens. What it does not retain is gone.
      store.retain(layer, state.retained(layer), tokens);
    }
    if (tokens == prompt + policy.after) report("chosen");
  }
  report("100 steps");
}
