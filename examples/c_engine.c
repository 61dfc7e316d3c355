/* An engine in C: a paged cache, a policy from text, and attention over what it chooses. Nothing is copied. */
#include <kvpolicy.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { layers = 2, q_heads = 4, kv_heads = 2, dim = 64, page = 16, pool_pages = 160, prompt_tokens = 2000, steps = 32 };

/* What the engine has: of each layer, [pages][K or V][kv_heads][page][dim] floats, and the sequence's page table. */
static float pools[layers][pool_pages][2][kv_heads][page][dim];
static int32_t table[pool_pages];

static void must(kvpolicy_status status) {
  if (status == KVPOLICY_OK) return;
  fprintf(stderr, "c_engine: %s\n", kvpolicy_message());
  exit(1);
}

static void fill_with_noise(float* values, size_t count) {
  static uint32_t seed = 7;
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

static kvpolicy_tensor floats(void* data, int32_t axes, int64_t const* shape) {
  kvpolicy_tensor const tensor = {data, {1, 0}, axes, {2, 32, 1}, shape, NULL, 0};
  return tensor;
}

int main(int count, char** arguments) {
  char const* const text = count > 1 ? arguments[1] : "quest:tokens=256,page=16";
  float const scale = 1.0f / sqrtf((float)dim);
  fill_with_noise((float*)pools, sizeof pools / sizeof(float));
  for (int32_t i = 0; i < pool_pages; ++i) table[i] = (i * 37 + 11) % pool_pages; /* pages lie anywhere */

  kvpolicy_policy* policy = NULL;
  must(kvpolicy_policy_parse(text, NULL, 0, &policy));
  kvpolicy_shape const shape = {layers, q_heads, kv_heads, dim, pool_pages * page, KVPOLICY_F32, 0};
  kvpolicy_state* state = NULL;
  must(kvpolicy_start(policy, &shape, &state));

  /* [pages, kv_heads, page_size, head_dim]; a page's values lie behind its keys. */
  int64_t const rows[] = {pool_pages, kv_heads, page, dim};
  int64_t const strides[] = {2 * kv_heads * page * dim, page * dim, dim, 1};
  int64_t const entries[] = {pool_pages};
  for (int l = 0; l < layers; ++l) {
    kvpolicy_tensor keys = floats(pools[l][0][0], 4, rows);
    kvpolicy_tensor values = floats(pools[l][0][1], 4, rows);
    kvpolicy_tensor const pages = {table, {1, 0}, 1, {0, 32, 1}, entries, NULL, 0};
    keys.strides = values.strides = strides;
    must(kvpolicy_bind(state, l, &keys, &values, &pages));
  }

  int64_t const window = kvpolicy_observation_queries(policy);
  int64_t const given = window < prompt_tokens ? window : prompt_tokens;
  float* const observation_queries = calloc((size_t)given * q_heads * dim + 1, sizeof(float));
  if (observation_queries == NULL) return 1;
  fill_with_noise(observation_queries, (size_t)given * q_heads * dim);
  int64_t const prompt_shape[] = {given, q_heads, dim};
  kvpolicy_tensor const last_queries = floats(observation_queries, 3, prompt_shape);
  kvpolicy_prompt prompt = {0};
  prompt.scale = scale;
  if (given > 0) prompt.queries = &last_queries;
  for (int l = 0; l < layers; ++l) must(kvpolicy_prefill(state, l, prompt_tokens, &prompt));

  float queries[q_heads * dim], out[q_heads * dim];
  int64_t const heads_shape[] = {q_heads, dim};
  kvpolicy_tensor const query = floats(queries, 2, heads_shape);
  kvpolicy_tensor const output = floats(out, 2, heads_shape);
  for (int64_t tokens = prompt_tokens + 1; tokens <= prompt_tokens + steps; ++tokens) {
    int64_t read = 0;
    for (int l = 0; l < layers; ++l) {
      fill_with_noise(queries, q_heads * dim); /* here the engine computes its q, k and v */
      must(kvpolicy_choose(state, l, tokens, &query, scale, -1));
      must(kvpolicy_attend(state, l, &query, scale, &output));
      for (int h = 0; h < kv_heads; ++h) {
        kvpolicy_range const* ranges = NULL;
        int64_t ranges_count = 0;
        must(kvpolicy_list(state, l, h, &ranges, &ranges_count));
        for (int64_t i = 0; i < ranges_count; ++i) read += ranges[i].end - ranges[i].begin;
      }
    }
    int32_t physical[pool_pages], last = 0;
    int64_t pages = 0;
    if (tokens % 16 == 1 && kvpolicy_page_table(state, 0, 0, physical, pool_pages, &pages, &last) == KVPOLICY_OK) {
      printf("step %2d: head 0 reads %d pages, the first is %d, the last one holds %d;", (int)(tokens - prompt_tokens),
             (int)pages, (int)physical[0], (int)last);
      printf(" %.0f of %d tokens a head\n", (double)read / (layers * kv_heads), (int)tokens);
    }
  }
  printf("%s: out[0] is %f\n", text, (double)out[0]);
  kvpolicy_state_free(state);
  kvpolicy_policy_free(policy);
  free(observation_queries);
  return 0;
}
