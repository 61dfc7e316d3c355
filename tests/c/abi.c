/* Prints what a caller's compiler knows of kvpolicy.h: sizes, offsets, values. As strict C11; that it compiles says that every
 * function is called as it was. Part of abi.txt, see abi.sh. */
#include <kvpolicy.h>
#include <kvpolicy.h> /* twice: nothing changes */
#include <stddef.h>
#include <stdio.h>

char const* (*const version)(void) = kvpolicy_version;
char const* (*const message)(void) = kvpolicy_message;
char const* const* (*const policies)(void) = kvpolicy_policies;
kvpolicy_status (*const plugin_load)(char const*) = kvpolicy_plugin_load;
kvpolicy_status (*const parse)(char const*, uint8_t const*, int64_t, kvpolicy_policy**) = kvpolicy_policy_parse;
uint8_t (*const ends_sentence)(char const*, int64_t) = kvpolicy_ends_sentence;
void (*const policy_free)(kvpolicy_policy*) = kvpolicy_policy_free;
uint32_t (*const needs)(kvpolicy_policy const*) = kvpolicy_policy_needs;
int64_t (*const observation_queries)(kvpolicy_policy const*) = kvpolicy_observation_queries;
kvpolicy_status (*const start)(kvpolicy_policy const*, kvpolicy_shape const*, kvpolicy_state**) = kvpolicy_start;
kvpolicy_status (*const start_cuda)(kvpolicy_policy const*, kvpolicy_shape const*, int32_t, void*,
                                    kvpolicy_state**) = kvpolicy_start_cuda;
void (*const state_free)(kvpolicy_state*) = kvpolicy_state_free;
kvpolicy_status (*const bind)(kvpolicy_state*, int64_t, kvpolicy_tensor const*, kvpolicy_tensor const*,
                              kvpolicy_tensor const*) = kvpolicy_bind;
kvpolicy_status (*const bind_terms)(kvpolicy_state*, int64_t, kvpolicy_terms const*) = kvpolicy_bind_terms;
kvpolicy_status (*const prefill)(kvpolicy_state*, int64_t, int64_t, kvpolicy_prompt const*) = kvpolicy_prefill;
kvpolicy_status (*const choose)(kvpolicy_state*, int64_t, int64_t, kvpolicy_tensor const*, float, int32_t) = kvpolicy_choose;
kvpolicy_status (*const list)(kvpolicy_state const*, int64_t, int64_t, kvpolicy_range const**, int64_t*) = kvpolicy_list;
kvpolicy_status (*const retained)(kvpolicy_state const*, int64_t, int64_t, kvpolicy_range const**,
                                  int64_t*) = kvpolicy_retained;
kvpolicy_status (*const page_table)(kvpolicy_state const*, int64_t, int64_t, int32_t*, int64_t, int64_t*,
                                    int32_t*) = kvpolicy_page_table;
kvpolicy_status (*const attend)(kvpolicy_state*, int64_t, kvpolicy_tensor const*, float,
                                kvpolicy_tensor const*) = kvpolicy_attend;
kvpolicy_status (*const start_ranked)(kvpolicy_policy const*, kvpolicy_shape const*, kvpolicy_ranks const*,
                                      kvpolicy_state**) = kvpolicy_start_ranked;
kvpolicy_status (*const step)(kvpolicy_state* const*, int64_t, int64_t, kvpolicy_tensor const*, kvpolicy_tensor const*,
                              kvpolicy_tensor const*, float, kvpolicy_tensor const*, kvpolicy_tensor const*, int64_t*, int32_t,
                              kvpolicy_threads const*) = kvpolicy_step;
kvpolicy_status (*const observe)(kvpolicy_state*, kvpolicy_tensor const*) = kvpolicy_observe;
kvpolicy_status (*const decoder_start)(kvpolicy_policy const*, kvpolicy_shape const*, kvpolicy_decoder_options const*,
                                       kvpolicy_decoder**) = kvpolicy_decoder_start;
kvpolicy_status (*const decoder_on)(kvpolicy_decoder*, void*) = kvpolicy_decoder_on;
void (*const decoder_free)(kvpolicy_decoder*) = kvpolicy_decoder_free;
kvpolicy_status (*const decoder_bind)(kvpolicy_decoder*, int64_t, kvpolicy_tensor const*, kvpolicy_tensor const*,
                                      kvpolicy_tensor const*) = kvpolicy_decoder_bind;
kvpolicy_status (*const decoder_bind_terms)(kvpolicy_decoder*, int64_t, kvpolicy_terms const*) = kvpolicy_decoder_bind_terms;
kvpolicy_status (*const decoder_prefill)(kvpolicy_decoder*, int64_t, int64_t, int64_t, int64_t,
                                         kvpolicy_prompt const*) = kvpolicy_decoder_prefill;
kvpolicy_status (*const decoder_plan)(kvpolicy_decoder*, int64_t, int32_t const*, int32_t const*, int32_t const*,
                                      int32_t*) = kvpolicy_decoder_plan;
kvpolicy_status (*const decoder_settle)(kvpolicy_decoder*, float) = kvpolicy_decoder_settle;
kvpolicy_status (*const decoder_cut)(kvpolicy_decoder*, int64_t, int64_t) = kvpolicy_decoder_cut;
kvpolicy_status (*const decoder_end)(kvpolicy_decoder*, int64_t) = kvpolicy_decoder_end;
kvpolicy_status (*const decoder_decide)(kvpolicy_decoder*, int64_t, kvpolicy_tensor const*, float) = kvpolicy_decoder_decide;
kvpolicy_status (*const decoder_standing)(kvpolicy_decoder*, int64_t, kvpolicy_device_lists*) = kvpolicy_decoder_standing;
kvpolicy_status (*const decoder_choose)(kvpolicy_decoder*, int64_t, kvpolicy_tensor const*, float, kvpolicy_tensor const*,
                                        kvpolicy_device_lists*) = kvpolicy_decoder_choose;
kvpolicy_status (*const decoder_renew)(kvpolicy_decoder*, int64_t, kvpolicy_tensor const*, float) = kvpolicy_decoder_renew;
kvpolicy_status (*const decoder_attend)(kvpolicy_decoder*, int64_t, kvpolicy_tensor const*, float,
                                        kvpolicy_tensor const*) = kvpolicy_decoder_attend;
kvpolicy_status (*const decoder_observe)(kvpolicy_decoder*, kvpolicy_tensor const*) = kvpolicy_decoder_observe;

#define TYPE(type) printf("%s: %zu bytes, aligned to %zu\n", #type, sizeof(type), _Alignof(type))
#define FIELD(type, field) printf("  %s at %zu\n", #field, offsetof(type, field))
#define VALUE(name) printf("%s = %d\n", #name, (int)(name))

int main(void) {
  TYPE(kvpolicy_device);
  FIELD(kvpolicy_device, type);
  FIELD(kvpolicy_device, id);
  TYPE(kvpolicy_dtype);
  FIELD(kvpolicy_dtype, code);
  FIELD(kvpolicy_dtype, bits);
  FIELD(kvpolicy_dtype, lanes);
  TYPE(kvpolicy_tensor);
  FIELD(kvpolicy_tensor, data);
  FIELD(kvpolicy_tensor, device);
  FIELD(kvpolicy_tensor, ndim);
  FIELD(kvpolicy_tensor, dtype);
  FIELD(kvpolicy_tensor, shape);
  FIELD(kvpolicy_tensor, strides);
  FIELD(kvpolicy_tensor, byte_offset);
  TYPE(kvpolicy_range);
  FIELD(kvpolicy_range, begin);
  FIELD(kvpolicy_range, end);
  FIELD(kvpolicy_range, why);
  TYPE(kvpolicy_shape);
  FIELD(kvpolicy_shape, layers);
  FIELD(kvpolicy_shape, q_heads);
  FIELD(kvpolicy_shape, kv_heads);
  FIELD(kvpolicy_shape, head_dim);
  FIELD(kvpolicy_shape, max_tokens);
  FIELD(kvpolicy_shape, type);
  FIELD(kvpolicy_shape, value_dim);
  TYPE(kvpolicy_prompt);
  FIELD(kvpolicy_prompt, first);
  FIELD(kvpolicy_prompt, queries);
  FIELD(kvpolicy_prompt, scale);
  FIELD(kvpolicy_prompt, pairing);
  FIELD(kvpolicy_prompt, inverse_frequencies);
  FIELD(kvpolicy_prompt, token_ids);
  FIELD(kvpolicy_prompt, repeats_begin);
  FIELD(kvpolicy_prompt, repeats_end);
  TYPE(kvpolicy_terms);
  FIELD(kvpolicy_terms, soft_cap);
  FIELD(kvpolicy_terms, slopes);
  FIELD(kvpolicy_terms, sinks);
  TYPE(kvpolicy_decoder_options);
  FIELD(kvpolicy_decoder_options, sequences);
  FIELD(kvpolicy_decoder_options, rows);
  FIELD(kvpolicy_decoder_options, workspace);
  FIELD(kvpolicy_decoder_options, stream);
  FIELD(kvpolicy_decoder_options, device);
  FIELD(kvpolicy_decoder_options, step_tokens);
  TYPE(kvpolicy_device_lists);
  FIELD(kvpolicy_device_lists, units);
  FIELD(kvpolicy_device_lists, named);
  FIELD(kvpolicy_device_lists, tail);
  FIELD(kvpolicy_device_lists, tokens);
  FIELD(kvpolicy_device_lists, stride);
  FIELD(kvpolicy_device_lists, tail_of_all);
  FIELD(kvpolicy_device_lists, lists);
  FIELD(kvpolicy_device_lists, unit_size);
  FIELD(kvpolicy_device_lists, tails);
  TYPE(kvpolicy_threads);
  FIELD(kvpolicy_threads, run);
  FIELD(kvpolicy_threads, user);
  TYPE(kvpolicy_ranks);
  FIELD(kvpolicy_ranks, rank);
  FIELD(kvpolicy_ranks, size);
  FIELD(kvpolicy_ranks, sum);
  FIELD(kvpolicy_ranks, user);
  TYPE(kvpolicy_status);
  VALUE(KVPOLICY_OK);
  VALUE(KVPOLICY_INVALID);
  VALUE(KVPOLICY_UNSUPPORTED);
  VALUE(KVPOLICY_NO_MEMORY);
  VALUE(KVPOLICY_FAILED);
  VALUE(KVPOLICY_F32);
  VALUE(KVPOLICY_F16);
  VALUE(KVPOLICY_BF16);
  VALUE(KVPOLICY_NEEDS_KEYS);
  VALUE(KVPOLICY_NEEDS_VALUES);
  VALUE(KVPOLICY_NEEDS_QUERIES);
  VALUE(KVPOLICY_NEEDS_OBSERVATION_QUERIES);
  VALUE(KVPOLICY_NEEDS_ROTATION);
  VALUE(KVPOLICY_NEEDS_LOGITS);
  VALUE(KVPOLICY_NEEDS_TOKEN_IDS);
  VALUE(KVPOLICY_NEEDS_REPETITION);
  VALUE(KVPOLICY_STEP_IDLE);
  VALUE(KVPOLICY_STEP_DECIDES);
  VALUE(KVPOLICY_STEP_UNSETTLED);
  VALUE(KVPOLICY_SINK);
  VALUE(KVPOLICY_SCORED);
  VALUE(KVPOLICY_RECENT);
  VALUE(KVPOLICY_OPEN);
  VALUE(KVPOLICY_HALVES);
  VALUE(KVPOLICY_NEIGHBOURS);
  return 0;
}
