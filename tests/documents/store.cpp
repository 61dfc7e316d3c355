// Snippets of docs/memory.md on row stores and tiers, as the page has them: compiled, not run.
#include <kvpolicy/exec/simd.hpp>
#include <kvpolicy/kvpolicy.hpp>
#include <kvpolicy/store/resident_rows.hpp>
#include <kvpolicy/store/row_store.hpp>

namespace kv = kvpolicy;
using policy_type = kv::presets::snapkv;

void store(kv::cache_shape const& shape, std::int64_t blocks, kv::layer_id layer, kv::rows const& keys, kv::rows const& values,
           kv::request_of<policy_type>& state, std::int64_t tokens, kv::prompt_signals const& prompt, kv::simd_exec& exec);
void store(kv::cache_shape const& shape, std::int64_t blocks, kv::layer_id layer, kv::rows const& keys, kv::rows const& values,
           kv::request_of<policy_type>& state, std::int64_t tokens, kv::prompt_signals const& prompt, kv::simd_exec& exec) {
  kv::block_arena arena(kv::row_store::block_bytes(shape), blocks);
  kv::row_store store(arena, shape);
  store.append(layer, keys, values);
  store.released();
  state.prefill(store.view(tokens), layer, prompt, exec);
  store.retain(layer, state.retained(layer), tokens);
  store.truncate(tokens);
  kv::row_store copy = store.fork(tokens);
}

void tier(kv::tiers::any_tier& tier, kv::row_store& store, std::uint64_t id, kv::layer_id layer, policy_type const& policy,
          kv::request_of<policy_type>& state, std::int64_t tokens, std::span<std::int64_t const> stay,
          kv::step_signals const& step, kv::simd_exec& exec);
void tier(kv::tiers::any_tier& tier, kv::row_store& store, std::uint64_t id, kv::layer_id layer, policy_type const& policy,
          kv::request_of<policy_type>& state, std::int64_t tokens, std::span<std::int64_t const> stay,
          kv::step_signals const& step, kv::simd_exec& exec) {
  using namespace kv;
  kv::resident_rows resident(tier, store, {.request = id, .slots = 2048});
  resident.put_away(layer, state.retained(layer), tokens, stay);
  kv::selection reads = resident.ready(layer, state.choose(store.view(tokens), layer, step, exec));
  resident.prefetch(layer, state.ahead(layer));
  resident.bring(layer);
  resident.shed(layer);
  resident.truncate(tokens);
  if (resident.was_cut()) {
    resident.mend_cut(requirements_of(policy).unit);
  }
}
