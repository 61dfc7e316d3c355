/* Snippets of docs/c.md, as the page has them: compiled, not run. */
#include <kvpolicy.h>

#include <stddef.h>

void verbs(kvpolicy_shape shape, int64_t layers, kvpolicy_tensor* keys, kvpolicy_tensor* values, int64_t tokens,
           kvpolicy_prompt* prompts, kvpolicy_tensor* queries, float scale, int32_t token_id, int64_t kv_head,
           kvpolicy_tensor* out, kvpolicy_tensor logits);
void verbs(kvpolicy_shape shape, int64_t layers, kvpolicy_tensor* keys, kvpolicy_tensor* values, int64_t tokens,
           kvpolicy_prompt* prompts, kvpolicy_tensor* queries, float scale, int32_t token_id, int64_t kv_head,
           kvpolicy_tensor* out, kvpolicy_tensor logits) {
  kvpolicy_policy* policy;
  kvpolicy_state* state;
  kvpolicy_range const* ranges;
  int64_t count, l;
  kvpolicy_policy_parse("snapkv:tokens=512", NULL, 0, &policy);
  kvpolicy_start(policy, &shape, &state);
  for (l = 0; l < layers; ++l) kvpolicy_bind(state, l, &keys[l], &values[l], NULL);
  for (l = 0; l < layers; ++l) kvpolicy_prefill(state, l, tokens, &prompts[l]);
  for (l = 0; l < layers; ++l) {
    kvpolicy_choose(state, l, tokens, &queries[l], scale, token_id);
    kvpolicy_list(state, l, kv_head, &ranges, &count);
    kvpolicy_attend(state, l, &queries[l], scale, &out[l]);
  }
  kvpolicy_observe(state, &logits);
}

void store(kvpolicy_shape shape, int64_t bytes, kvpolicy_state* state, int64_t l, kvpolicy_tensor keys, kvpolicy_tensor values);
void store(kvpolicy_shape shape, int64_t bytes, kvpolicy_state* state, int64_t l, kvpolicy_tensor keys,
           kvpolicy_tensor values) {
  kvpolicy_arena* arena;
  kvpolicy_store* store;
  kvpolicy_arena_start(&shape, bytes, &arena);
  kvpolicy_store_start(arena, &shape, &store);
  kvpolicy_bind_store(state, store);
  kvpolicy_store_append(store, l, &keys, &values);
  kvpolicy_store_released(store);
  kvpolicy_store_retain(store, l, state);
}
