/* kvpolicy for C and for whatever speaks C: policies from text, the four verbs over tensors where they lie.
 *
 *   kvpolicy_policy_parse("snapkv:tokens=512", NULL, 0, &policy);
 *   kvpolicy_start(policy, &shape, &state);                        a state for each sequence
 *   kvpolicy_bind(state, layer, &keys, &values, NULL);             each layer, and again where its memory moved
 *   kvpolicy_prefill(state, layer, tokens, &prompt);               each layer in order, when its prompt is written
 *   kvpolicy_choose(state, layer, tokens, &queries, scale, id);    each layer in order, before attention of one token
 *   kvpolicy_list(state, layer, kv_head, &ranges, &count);         which tokens this step reads
 *   kvpolicy_attend(state, layer, &queries, scale, &out);          or your own attention
 *   kvpolicy_observe(state, &logits);
 *
 * Every call that can fail returns a status; where it is not KVPOLICY_OK, kvpolicy_message() says why, on the same thread. No
 * exception crosses, nothing aborts. A call that is refused leaves what it was given as it was; only where a device, memory
 * or a policy (heterocache, of a prompt that its budget can't hold) fails within prefill or choose does the state want its
 * prompt again, from token 0.
 *
 * Policies are immutable, and shared by threads as they are. States are independent of each other; one state is used by one
 * thread at a time, and works on that thread alone. Tensors are borrowed, their descriptors copied: memory must live while it
 * is bound, all else for the call. Nothing but parse and start allocates, errors aside. */
#ifndef KVPOLICY_H
#define KVPOLICY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVPOLICY_API __attribute__((visibility("default")))
#else
#define KVPOLICY_API
#endif

typedef enum kvpolicy_status {
  KVPOLICY_OK = 0,
  KVPOLICY_INVALID = 1,     /* a value that no engine could serve, or a call out of order */
  KVPOLICY_UNSUPPORTED = 2, /* refused by name by this version */
  KVPOLICY_NO_MEMORY = 3,
  KVPOLICY_FAILED = 4 /* anything else: a device, say */
} kvpolicy_status;

/* What keys and values are stored as. */
typedef enum kvpolicy_type { KVPOLICY_F32 = 0, KVPOLICY_F16 = 1, KVPOLICY_BF16 = 2 } kvpolicy_type;

/* What a policy needs beside the token counts: a set of these. */
typedef enum kvpolicy_need {
  KVPOLICY_NEEDS_KEYS = 1,
  KVPOLICY_NEEDS_VALUES = 2,
  KVPOLICY_NEEDS_QUERIES = 4,             /* of the current token, at choose */
  KVPOLICY_NEEDS_OBSERVATION_QUERIES = 8, /* the last kvpolicy_observation_queries() of a prompt, at prefill */
  KVPOLICY_NEEDS_ROTATION = 16,           /* at prefill */
  KVPOLICY_NEEDS_LOGITS = 32,             /* at observe */
  KVPOLICY_NEEDS_TOKEN_IDS = 64           /* at prefill and at choose */
} kvpolicy_need;

/* Why tokens are read. OPEN: their unit is not complete yet, or they came after the choice. */
typedef enum kvpolicy_reason { KVPOLICY_SINK = 0, KVPOLICY_SCORED = 1, KVPOLICY_RECENT = 2, KVPOLICY_OPEN = 3 } kvpolicy_reason;

/* How a rotary embedding pairs channels: (i, i + pairs), or (2 i, 2 i + 1). */
typedef enum kvpolicy_pairing { KVPOLICY_HALVES = 0, KVPOLICY_NEIGHBOURS = 1 } kvpolicy_pairing;

typedef struct kvpolicy_device {
  int32_t type; /* 1 CPU, 2 CUDA, 3 the host's memory that CUDA pinned: as 1 */
  int32_t id;
} kvpolicy_device;

typedef struct kvpolicy_dtype {
  uint8_t code; /* 0 int, 2 float, 4 bfloat */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} kvpolicy_dtype;

/* The same bytes as DLPack's DLTensor (0.2 to 1.x): a DLTensor* may be passed as it is, cast. */
typedef struct kvpolicy_tensor {
  void* data;
  kvpolicy_device device;
  int32_t ndim;
  kvpolicy_dtype dtype;
  int64_t const* shape;
  int64_t const* strides; /* in elements, none negative; or NULL: dense, the last axis innermost */
  uint64_t byte_offset;
} kvpolicy_tensor;

/* Tokens [begin, end) of a sequence. */
typedef struct kvpolicy_range {
  int32_t begin;
  int32_t end;
  uint8_t why; /* a kvpolicy_reason */
} kvpolicy_range;

/* The fixed sizes of one sequence's cache. */
typedef struct kvpolicy_shape {
  int64_t layers;
  int64_t q_heads; /* of a layer, a multiple of kv_heads */
  int64_t kv_heads;
  int64_t head_dim;
  int64_t max_tokens; /* the most that the sequence can ever hold */
  int32_t type;       /* of keys and values: a kvpolicy_type */
} kvpolicy_shape;

/* What prefill is told beside the cache. Tensors that the policy does not need may be NULL. */
typedef struct kvpolicy_prompt {
  int64_t first;                  /* tokens that were there before; 0 for a new prompt */
  kvpolicy_tensor const* queries; /* [n, q_heads, head_dim] f32: of the last n tokens, oldest first, after rotation */
  float scale;                    /* multiplies q.k, 1 / sqrt(head_dim) in most models */
  int32_t pairing;                /* of the rotation: a kvpolicy_pairing */
  kvpolicy_tensor const* inverse_frequencies; /* [pairs] f32: pair i turns by position * inverse_frequencies[i] */
  kvpolicy_tensor const* token_ids;           /* [tokens - first] int32 */
} kvpolicy_prompt;

/* The ranks of a group that run one model, a part of its KV heads each. */
typedef struct kvpolicy_ranks {
  int32_t rank; /* 0 <= rank < size */
  int32_t size;
  /* Sums values [count] over the ranks, in place; all call it equally often, in the same order, and get the same numbers. 0, or
   * anything else where it failed; it must return, whatever became of the others. */
  int32_t (*sum)(void* user, float* values, int64_t count);
  void* user;
} kvpolicy_ranks;

typedef struct kvpolicy_policy kvpolicy_policy;
typedef struct kvpolicy_state kvpolicy_state;
typedef struct kvpolicy_arena kvpolicy_arena;
typedef struct kvpolicy_store kvpolicy_store;

/* "0.1.0" */
KVPOLICY_API char const* kvpolicy_version(void);

/* Why the last call that failed on this thread did; "" before the first. Valid until the next failure on this thread. */
KVPOLICY_API char const* kvpolicy_message(void);

/* The policies' names, then NULL. The list stays as it is; after a plugin was loaded another one is given. */
KVPOLICY_API char const* const* kvpolicy_policies(void);

/* The policies of a shared object that was made with KVPOLICY_PLUGIN (kvpolicy/text/plugin.hpp) have names from here on, in
 * this process, for sequences in host memory. It stays loaded. INVALID where it can't be loaded, or has a name that there is.
 */
KVPOLICY_API kvpolicy_status kvpolicy_plugin_load(char const* path);

/* A policy from text as on the command line: NAME[:key=value,...][+NAME...]. `boundary` [vocabulary] is not 0 where a token
 * ends a sentence; for sentencekv, NULL and 0 for others; it is copied. A profile that is named in the text is read now. */
KVPOLICY_API kvpolicy_status kvpolicy_policy_parse(char const* text, uint8_t const* boundary, int64_t vocabulary,
                                                   kvpolicy_policy** policy);
/* Whether a token that reads as these bytes ends a sentence, for a boundary table: 1 or 0. */
KVPOLICY_API uint8_t kvpolicy_ends_sentence(char const* piece, int64_t bytes);
/* States that were started with it live on. NULL is nothing. */
KVPOLICY_API void kvpolicy_policy_free(kvpolicy_policy* policy);

/* A set of kvpolicy_need; 0 for NULL. */
KVPOLICY_API uint32_t kvpolicy_policy_needs(kvpolicy_policy const* policy);

/* How many of a prompt's last queries prefill must be given (all, where the prompt is shorter); 2147483647 for every one. */
KVPOLICY_API int64_t kvpolicy_observation_queries(kvpolicy_policy const* policy);

/* A sequence begins: its tensors are in host memory. */
KVPOLICY_API kvpolicy_status kvpolicy_start(kvpolicy_policy const* policy, kvpolicy_shape const* shape, kvpolicy_state** state);

/* A sequence begins: keys and values are on CUDA device `device`, which must be the calling thread's at every call; work goes
 * to `stream` (a cudaStream_t) and has been done when a call returns. Queries, logits and `out` may be on that device or on the
 * host, where those on the device are copied first; all else is on the host. UNSUPPORTED in a library that was built without
 * CUDA. */
KVPOLICY_API kvpolicy_status kvpolicy_start_cuda(kvpolicy_policy const* policy, kvpolicy_shape const* shape, int32_t device,
                                                 void* stream, kvpolicy_state** state);
/* A sequence begins, of which this rank has the shape's heads: a policy that makes one choice for the whole request (chess)
 * makes the same one on all ranks, and choose, or step, is collective where that is due; others choose for their own heads as
 * ever. FAILED where the sum did. Tensors are in host memory. INVALID for a plugin's policy, which is not known on ranks. */
KVPOLICY_API kvpolicy_status kvpolicy_start_ranked(kvpolicy_policy const* policy, kvpolicy_shape const* shape,
                                                   kvpolicy_ranks const* ranks, kvpolicy_state** state);
KVPOLICY_API void kvpolicy_state_free(kvpolicy_state* state);

/* Where a layer's rows are, of the shape's type, any strides: keys and values [kv_heads, tokens, head_dim], tokens being what
 * there is room for. With `pages`, int32 [ceil(tokens / page_size)] in host memory, they are [pages, kv_heads, page_size,
 * head_dim] and token t is row t % page_size of page pages[t / page_size]; the table is read at every call. Batches are sliced
 * by the caller: a pointer and strides. `values` may be NULL where the policy does not need them and attend is not called. */
KVPOLICY_API kvpolicy_status kvpolicy_bind(kvpolicy_state* state, int64_t layer, kvpolicy_tensor const* keys,
                                           kvpolicy_tensor const* values, kvpolicy_tensor const* pages);

/* The keys of a prompt, or of a further piece of one, are written: the sequence has `tokens` tokens now. Every layer, in order,
 * with the same tokens and first. What lay behind `first` is forgotten. */
KVPOLICY_API kvpolicy_status kvpolicy_prefill(kvpolicy_state* state, int64_t layer, int64_t tokens,
                                              kvpolicy_prompt const* prompt);

/* Before attention of one token, the last of `tokens`, whose key is written in this layer. Every layer, in order; layer 0
 * begins a step. One token more than before, or as many or fewer where a tail was removed. `queries` [q_heads, head_dim] f32
 * and `token_id` where needed. */
KVPOLICY_API kvpolicy_status kvpolicy_choose(kvpolicy_state* state, int64_t layer, int64_t tokens,
                                             kvpolicy_tensor const* queries, float scale, int32_t token_id);

/* The tokens that a KV head reads in this step, after choose of the layer: ascending, disjoint. Valid until the next prefill,
 * choose or free. */
KVPOLICY_API kvpolicy_status kvpolicy_list(kvpolicy_state const* state, int64_t layer, int64_t kv_head,
                                           kvpolicy_range const** ranges, int64_t* count);

/* The tokens that are there at all, read or not, after prefill or choose of the layer: what an engine that frees rows keeps. */
KVPOLICY_API kvpolicy_status kvpolicy_retained(kvpolicy_state const* state, int64_t layer, int64_t kv_head,
                                               kvpolicy_range const** ranges, int64_t* count);

/* The physical pages of kvpolicy_list, in order: at most `room` are written to `pages`; all but the last are whole, that holds
 * `last_page_tokens`. INVALID for lists that are not made of whole pages of the bound table's size. */
KVPOLICY_API kvpolicy_status kvpolicy_page_table(kvpolicy_state const* state, int64_t layer, int64_t kv_head, int32_t* pages,
                                                 int64_t room, int64_t* count, int32_t* last_page_tokens);

/* One token's attention over the layer's lists: out [q_heads, head_dim] f32. */
KVPOLICY_API kvpolicy_status kvpolicy_attend(kvpolicy_state* state, int64_t layer, kvpolicy_tensor const* queries, float scale,
                                             kvpolicy_tensor const* out);

/* Attention of a prompt's last n tokens, each over all that is there before it and itself: queries [n, q_heads, head_dim] f32,
 * out the same, dense. The rows of `tokens` tokens are written in this layer; before its prefill, or after. UNSUPPORTED for a
 * state on a device. */
KVPOLICY_API kvpolicy_status kvpolicy_attend_prompt(kvpolicy_state* state, int64_t layer, int64_t tokens,
                                                    kvpolicy_tensor const* queries, float scale, kvpolicy_tensor const* out);

/* After a step: its logits [vocabulary] f32, NULL where the policy does not need them. */
KVPOLICY_API kvpolicy_status kvpolicy_observe(kvpolicy_state* state, kvpolicy_tensor const* logits);

/* Rows that the library holds, in host memory: an engine that hands them over may free its own, and of what a policy drops
 * nothing is left (docs/memory.md). Not thread-safe: stores of one arena are used by one thread at a time. */

/* Memory of stores of such a shape, at most so many bytes; what is not used takes none. */
KVPOLICY_API kvpolicy_status kvpolicy_arena_start(kvpolicy_shape const* shape, int64_t bytes, kvpolicy_arena** arena);
/* Stores of it live on. */
KVPOLICY_API void kvpolicy_arena_free(kvpolicy_arena* arena);
/* That its stores take; 0 for NULL. */
KVPOLICY_API int64_t kvpolicy_arena_bytes(kvpolicy_arena const* arena);

/* A sequence's store, of the shape that its state has. */
KVPOLICY_API kvpolicy_status kvpolicy_store_start(kvpolicy_arena* arena, kvpolicy_shape const* shape, kvpolicy_store** store);
KVPOLICY_API void kvpolicy_store_free(kvpolicy_store* store);
/* The first `tokens` tokens, without copying a row. */
KVPOLICY_API kvpolicy_status kvpolicy_store_fork(kvpolicy_store const* store, int64_t tokens, kvpolicy_store** copy);

/* In place of kvpolicy_bind, for all layers, once: the state's rows are the store's, which must outlive it. Later prompts are
 * decided among the rows that are left. INVALID for a store of another shape, UNSUPPORTED for a state on a device. */
KVPOLICY_API kvpolicy_status kvpolicy_bind_store(kvpolicy_state* state, kvpolicy_store* store);

/* A layer's next tokens are copied: [kv_heads, n, head_dim], rows dense. FAILED where the arena is exhausted, and nothing was
 * copied then. */
KVPOLICY_API kvpolicy_status kvpolicy_store_append(kvpolicy_store* store, int64_t layer, kvpolicy_tensor const* keys,
                                                   kvpolicy_tensor const* values);
/* Of a layer's tokens, those that the state bound to the store does not retain are gone. After the first step behind a prompt,
 * and after each step of a policy that evicts or waits for an answer's first tokens; for every layer. */
KVPOLICY_API kvpolicy_status kvpolicy_store_retain(kvpolicy_store* store, int64_t layer, kvpolicy_state* state);
/* Threads that are the caller's: run(user, work, argument) calls work(argument) on some at once, one at least, and returns when
 * they all have. */
typedef struct kvpolicy_threads {
  void (*run)(void* user, void (*work)(void* argument), void* argument);
  void* user;
} kvpolicy_threads;

/* In one layer, the next token of each of `count` sequences that are bound to stores of one shape: what store_append, choose,
 * attend and, behind the last layer, store_retain and observe (with a policy that needs no logits) would do. Every layer, in
 * order. keys and values [count, kv_heads, head_dim] of the shape's type, queries [count, q_heads, head_dim] f32, out the same,
 * rows dense; token_ids [count] int32, or NULL where the policies need none. read [count]: rows of the layer that each one
 * read, of all its KV heads together.
 *
 * With `threads`, not NULL, sequences are shared out among them, unless ranks choose for whole requests; each has a store of an
 * arena of its own then. Where sequences are refused, the status is the first one's; each of them has read -1, has lost the
 * token in every layer, and may begin the step again; the others have made theirs. All read -1: none has made it.
 *
 * leave_whole, not 0: out stays as it is where a sequence reads all of its tokens, of every KV head: the engine's own
 * attention is as good there, and gives what it gives without a policy to the bit. */
KVPOLICY_API kvpolicy_status kvpolicy_step(kvpolicy_state* const* states, int64_t count, int64_t layer,
                                           kvpolicy_tensor const* keys, kvpolicy_tensor const* values,
                                           kvpolicy_tensor const* queries, float scale, kvpolicy_tensor const* token_ids,
                                           kvpolicy_tensor const* out, int64_t* read, int32_t leave_whole,
                                           kvpolicy_threads const* threads);
/* Tokens from `tokens` on are gone, in every layer. */
KVPOLICY_API kvpolicy_status kvpolicy_store_truncate(kvpolicy_store* store, int64_t tokens);
/* The first tokens, so many, are here in every layer: the engine's own rows of them may go. 0 for NULL. */
KVPOLICY_API int64_t kvpolicy_store_released(kvpolicy_store const* store);
/* Rows of a token, layer and KV head that are held; 0 for NULL. */
KVPOLICY_API int64_t kvpolicy_store_rows(kvpolicy_store const* store);

#ifdef __cplusplus
}
#endif

#endif
