/* kvpolicy for C, and for all that speaks C: policies from text, and the four verbs over tensors where they lie.
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
 * Every call that can fail returns a status. If it is not KVPOLICY_OK, kvpolicy_message() says why, on the same thread. No
 * exception leaves a call, nothing aborts. A refused call changes nothing. If memory or a policy (heterocache, for a prompt
 * that its budget can't hold) fails within prefill or choose, the call does not count: repeat the prompt or the step from layer
 * 0. After a device failed, repeat the whole prompt, from token 0.
 *
 * Policies are immutable, and threads share them as they are. States are independent of each other; one thread at a time uses
 * a state, which works on that thread alone. Tensors are borrowed and their descriptors copied: memory must live while it is
 * bound, everything else for the call. Only parse, start and a decoder's prefill and plan allocate, errors aside. */
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

/** How a call ended. Comments below leave KVPOLICY_ out. */
typedef enum kvpolicy_status {
  KVPOLICY_OK = 0,
  KVPOLICY_INVALID = 1,     /**< a value that no engine could serve, NULL among them, or a call out of order */
  KVPOLICY_UNSUPPORTED = 2, /**< this version refuses it by name */
  KVPOLICY_NO_MEMORY = 3,
  KVPOLICY_FAILED = 4 /**< anything else, such as a device */
} kvpolicy_status;

/** The type of stored keys and values. */
typedef enum kvpolicy_type { KVPOLICY_F32 = 0, KVPOLICY_F16 = 1, KVPOLICY_BF16 = 2 } kvpolicy_type;

/** What a policy needs beside token counts: a set of these. */
typedef enum kvpolicy_need {
  KVPOLICY_NEEDS_KEYS = 1,
  KVPOLICY_NEEDS_VALUES = 2,
  KVPOLICY_NEEDS_QUERIES = 4,             /**< of the current token, at choose */
  KVPOLICY_NEEDS_OBSERVATION_QUERIES = 8, /**< the last kvpolicy_observation_queries() of a prompt, at prefill */
  KVPOLICY_NEEDS_ROTATION = 16,           /**< at prefill */
  KVPOLICY_NEEDS_LOGITS = 32,             /**< at observe */
  KVPOLICY_NEEDS_TOKEN_IDS = 64,          /**< at prefill and at choose */
  KVPOLICY_NEEDS_REPETITION = 128         /**< a repetition of the prompt, see kvpolicy_prompt::repeats_begin */
} kvpolicy_need;

/** Why tokens are read. OPEN: their unit is not complete yet, or they came after the choice. */
typedef enum kvpolicy_reason { KVPOLICY_SINK = 0, KVPOLICY_SCORED = 1, KVPOLICY_RECENT = 2, KVPOLICY_OPEN = 3 } kvpolicy_reason;

/** How a rotary embedding pairs channels: (i, i + pairs), or (2 i, 2 i + 1). */
typedef enum kvpolicy_pairing { KVPOLICY_HALVES = 0, KVPOLICY_NEIGHBOURS = 1 } kvpolicy_pairing;

/** Where a tensor lies. */
typedef struct kvpolicy_device {
  int32_t type; /**< 1 CPU; 2 CUDA; 3 host memory that CUDA pinned, used as 1 */
  int32_t id;
} kvpolicy_device;

/** The type of a tensor's elements. */
typedef struct kvpolicy_dtype {
  uint8_t code; /**< 0 int, 2 float, 4 bfloat */
  uint8_t bits;
  uint16_t lanes; /**< 1 */
} kvpolicy_dtype;

/** A tensor. It has the bytes of DLPack's DLTensor (0.2 to 1.x), so a DLTensor* may be passed by a cast. */
typedef struct kvpolicy_tensor {
  void* data;
  kvpolicy_device device;
  int32_t ndim;
  kvpolicy_dtype dtype;
  int64_t const* shape;
  int64_t const* strides; /**< in elements, none negative; NULL: dense, the last axis innermost */
  uint64_t byte_offset;
} kvpolicy_tensor;

/** Tokens [begin, end) of a sequence. */
typedef struct kvpolicy_range {
  int32_t begin;
  int32_t end;
  uint8_t why; /**< a kvpolicy_reason */
} kvpolicy_range;

/** The fixed sizes of one sequence's cache. */
typedef struct kvpolicy_shape {
  int64_t layers;
  int64_t q_heads; /**< of a layer, a multiple of kv_heads */
  int64_t kv_heads;
  int64_t head_dim;
  int64_t max_tokens; /**< the most that the sequence can ever hold */
  int32_t type;       /**< of keys and values: a kvpolicy_type */
  int64_t value_dim;  /**< of a value; 0: head_dim. A latent row's values (MLA) may be the first channels of the keys' tensor */
} kvpolicy_shape;

/** What prefill gets beside the cache. Tensors that the policy does not need may be NULL. */
typedef struct kvpolicy_prompt {
  int64_t first;                  /**< earlier tokens of the sequence; 0 for a new prompt */
  /** `[n, q_heads, head_dim]` f32, f16 or bf16: of the last n tokens, oldest first, after rotation; of a prompt's earlier pieces
   * too. */
  kvpolicy_tensor const* queries;
  float scale;                    /**< multiplies q.k, 1 / sqrt(head_dim) in most models */
  int32_t pairing;                /**< of the rotation: a kvpolicy_pairing */
  kvpolicy_tensor const* inverse_frequencies; /**< `[pairs]` f32: pair i turns by position * inverse_frequencies[i] */
  kvpolicy_tensor const* token_ids;           /**< `[tokens - first]` int32 */
  /** The new tokens repeat tokens [repeats_begin, repeats_end) before `first`, for a policy that needs a repetition; 0 and 0: they
   * repeat none. `queries` are then all the new tokens'. Remove the new tokens after each piece. The piece whose repeats_end is
   * `first` makes the choice. */
  int64_t repeats_begin;
  int64_t repeats_end;
} kvpolicy_prompt;

/** What a model adds to attention's logits scale q.k. They apply in this order; zeros and NULL add nothing. */
typedef struct kvpolicy_terms {
  float soft_cap;                /**< a logit becomes soft_cap tanh(logit / soft_cap) (Gemma 2) */
  kvpolicy_tensor const* slopes; /**< `[q_heads]` f32: a logit gets slope * (token of the key - token of the query) (ALiBi) */
  kvpolicy_tensor const* sinks;  /**< `[q_heads]` f32: one more logit, whose value is zero (gpt-oss) */
} kvpolicy_terms;

/** A group of ranks that run one model, each with a part of its KV heads. */
typedef struct kvpolicy_ranks {
  int32_t rank; /**< 0 <= rank < size */
  int32_t size;
  /** Sums values `[count]` over the ranks, in place. All ranks call it equally often and in the same order, and get the same
   * numbers. It returns 0, or anything else if it failed. It must return, whatever became of the other ranks. */
  int32_t (*sum)(void* user, float* values, int64_t count);
  void* user; /**< passed to sum */
} kvpolicy_ranks;

/** A policy with its parameters. */
typedef struct kvpolicy_policy kvpolicy_policy;
/** A policy at work on one sequence. */
typedef struct kvpolicy_state kvpolicy_state;
/** The memory of stores. */
typedef struct kvpolicy_arena kvpolicy_arena;
/** The rows of one sequence. */
typedef struct kvpolicy_store kvpolicy_store;

/** Returns the library's version, "0.2.0". */
KVPOLICY_API char const* kvpolicy_version(void);

/** Returns why the last call that failed on this thread did; "" before the first. Valid until this thread's next failure. */
KVPOLICY_API char const* kvpolicy_message(void);

/** Returns the names of the policies, then NULL. A list stays valid; once a plugin was loaded, another one is returned. */
KVPOLICY_API char const* const* kvpolicy_policies(void);

/** Adds the policies of a shared object made with KVPOLICY_PLUGIN (kvpolicy/text/plugin.hpp), for the process.
 * They serve sequences in host memory. The object stays loaded.
 * @param path  the shared object
 * @return INVALID if it can't be loaded, is no plugin of this version, or has a name that exists */
KVPOLICY_API kvpolicy_status kvpolicy_plugin_load(char const* path);

/** Makes a policy from text, as on the command line. Reads a profile that the text names at once.
 * @param text  `NAME[:key=value,...][+NAME...]`
 * @param boundary,vocabulary  `[vocabulary]`, kvpolicy_sentence_mark() of each token, for sentencekv; copied. Else NULL and 0
 * @param policy  receives the policy
 * @return INVALID for text that is no policy */
KVPOLICY_API kvpolicy_status kvpolicy_policy_parse(char const* text, uint8_t const* boundary, int64_t vocabulary,
                                                   kvpolicy_policy** policy);
/** Says whether a token ends a sentence by itself. A boundary table made of these misses marks that a tokenizer splits.
 * @param piece,bytes  the bytes that the token reads as
 * @return 1 or 0 */
KVPOLICY_API uint8_t kvpolicy_ends_sentence(char const* piece, int64_t bytes);
/** Returns a token's entry in a boundary table, pieces of marks included that a tokenizer splits into bytes.
 * @param piece,bytes  the bytes that the token reads as, not replaced where they are no whole characters
 * @return 1 where the token ends a sentence, 2 and more for a piece of a mark, else 0 */
KVPOLICY_API uint8_t kvpolicy_sentence_mark(char const* piece, int64_t bytes);
/** Frees a policy, or does nothing for NULL. States that were started with it live on. */
KVPOLICY_API void kvpolicy_policy_free(kvpolicy_policy* policy);

/** Returns what a policy needs, a set of kvpolicy_need; 0 for NULL. */
KVPOLICY_API uint32_t kvpolicy_policy_needs(kvpolicy_policy const* policy);

/** Returns how many of a prompt's last queries prefill must get, or all of a shorter prompt; 2147483647: every one. */
KVPOLICY_API int64_t kvpolicy_observation_queries(kvpolicy_policy const* policy);

/** Begins a sequence whose tensors are in host memory.
 * @param policy,shape  the policy, and the sequence's cache
 * @param state  receives the state
 * @return INVALID for a wrong shape, or parameters that do not fit it; UNSUPPORTED for two rules that can't work together */
KVPOLICY_API kvpolicy_status kvpolicy_start(kvpolicy_policy const* policy, kvpolicy_shape const* shape, kvpolicy_state** state);

/** Begins a sequence whose keys and values are on a CUDA device.
 * Queries, logits and `out` may be on the device or the host; device queries are copied to the host first. All else is on the
 * host. The work goes to the stream, and is done when a call returns.
 * @param policy,shape  the policy, and the sequence's cache
 * @param device  the device; it must be the calling thread's at every call
 * @param stream  a cudaStream_t
 * @param state  receives the state
 * @return UNSUPPORTED if the library was built without CUDA; INVALID also for a plugin's policy */
KVPOLICY_API kvpolicy_status kvpolicy_start_cuda(kvpolicy_policy const* policy, kvpolicy_shape const* shape, int32_t device,
                                                 void* stream, kvpolicy_state** state);
/** Begins a sequence of which this rank has the shape's heads. Tensors are in host memory.
 * A policy that makes one choice for the whole request (chess) makes the same one on all ranks: choose and step are collective
 * when that choice is due, and return FAILED if the sum failed. Other policies choose for the rank's own heads.
 * @param policy,shape  the policy, and this rank's part of the sequence's cache
 * @param ranks  the group; copied
 * @param state  receives the state
 * @return INVALID also for a plugin's policy */
KVPOLICY_API kvpolicy_status kvpolicy_start_ranked(kvpolicy_policy const* policy, kvpolicy_shape const* shape,
                                                   kvpolicy_ranks const* ranks, kvpolicy_state** state);
/** Copies a state in host memory: what it knows of its sequence. Tensors that are bound stay so in the copy. A store does not:
 * bind the copy to a store of its own, such as kvpolicy_store_fork makes.
 * @param state  the state
 * @param copy  receives the copy
 * @return UNSUPPORTED for a state on a device, or of ranks */
KVPOLICY_API kvpolicy_status kvpolicy_state_copy(kvpolicy_state const* state, kvpolicy_state** copy);
/** Frees a state, or does nothing for NULL. */
KVPOLICY_API void kvpolicy_state_free(kvpolicy_state* state);

/** Says where a layer's rows are. The rows have the shape's type and any strides; the caller slices a batch.
 * @param state,layer  which layer
 * @param keys,values  `[kv_heads, tokens, head_dim]`, `tokens` being the room; with `pages` `[pages, kv_heads, page_size,
 *        head_dim]`; values have the shape's value_dim, and are NULL if the policy does not need them and attend is not called
 * @param pages  int32 `[ceil(tokens / page_size)]` in host memory, read at every call: token t is row t % page_size of page
 *        pages[t / page_size]. NULL: no pages
 * @return INVALID for tensors of other axes, type or place */
KVPOLICY_API kvpolicy_status kvpolicy_bind(kvpolicy_state* state, int64_t layer, kvpolicy_tensor const* keys,
                                           kvpolicy_tensor const* values, kvpolicy_tensor const* pages);
/** Says what the model adds to a layer's attention: attend, attend_prompt and step compute it from then on. Policies choose by
 * scale q.k alone.
 * @param state,layer  which layer
 * @param terms  its tensors are read at every call
 * @return INVALID for a negative cap, and for tensors of another length, type or place */
KVPOLICY_API kvpolicy_status kvpolicy_bind_terms(kvpolicy_state* state, int64_t layer, kvpolicy_terms const* terms);

/** Tells a state that the keys of a prompt, or of a further piece, are written. For every layer, in order.
 * @param state,layer  which layer
 * @param tokens  tokens of the sequence now, the same in every layer
 * @param prompt  the prompt; tokens from `first` on that the state knew are forgotten, and `first` is the same in every layer
 * @return INVALID for a gap, a layer out of order or a missing signal */
KVPOLICY_API kvpolicy_status kvpolicy_prefill(kvpolicy_state* state, int64_t layer, int64_t tokens,
                                              kvpolicy_prompt const* prompt);

/** Chooses what one token reads, before its attention. For every layer, in order; layer 0 begins a step.
 * The token is the last of `tokens`, and its key is written in this layer.
 * @param state,layer  which layer
 * @param tokens  one more than before; after kvpolicy_cut, one more than were left
 * @param queries  `[q_heads, head_dim]` f32, if the policy needs them
 * @param scale  multiplies q.k
 * @param token_id  the token's id, if the policy needs it
 * @return INVALID for a jump, a layer out of order or without rows, or missing queries; UNSUPPORTED for a missing id */
KVPOLICY_API kvpolicy_status kvpolicy_choose(kvpolicy_state* state, int64_t layer, int64_t tokens,
                                             kvpolicy_tensor const* queries, float scale, int32_t token_id);

/** Tells a state that the engine removed tokens from the sequence's end, before the step behind those that are left. A prompt
 * says by `first` where it begins, and drafts that did not stay need no call. A state that is bound to a store follows
 * kvpolicy_store_truncate by itself.
 * @param state  the state
 * @param tokens  tokens that are left; as many as the state knows, or more, change nothing
 * @return INVALID for a negative number */
KVPOLICY_API kvpolicy_status kvpolicy_cut(kvpolicy_state* state, int64_t tokens);

/** Says, before a prefill in all layers, that the engine lacks the queries of tokens before `token`: another request computed
 * them, say. That prefill's `queries` may then be those from `token` on, though the policy reads more of the prompt.
 * @param state,token  the state, and the first token whose query the engine has
 * @return INVALID for a negative number */
KVPOLICY_API kvpolicy_status kvpolicy_observed_from(kvpolicy_state* state, int64_t token);

/** Lists the tokens that a KV head reads in this step, after the layer's choose.
 * @param state,layer,kv_head  which head
 * @param ranges,count  receive the ranges: ascending, disjoint, valid until the next prefill, choose or free
 * @return INVALID before the layer's choose */
KVPOLICY_API kvpolicy_status kvpolicy_list(kvpolicy_state const* state, int64_t layer, int64_t kv_head,
                                           kvpolicy_range const** ranges, int64_t* count);

/** Chooses what several tokens read: one that was sampled, and drafts of those behind it. All of them read what the first one
 * chooses, and themselves, each up to its own row. For every layer, in order. The next prefill or choose shows how many stayed, by
 * where it begins; at least the first must. The state then is as if they had been chosen for one by one. In host memory alone.
 * @param state,layer  which layer
 * @param tokens  tokens of the sequence, these included
 * @param brought  how many these are, 1 to 16
 * @param queries  `[brought, q_heads, head_dim]` f32, if the policy needs them
 * @param scale  multiplies q.k
 * @param token_ids  `[brought]` ids in host memory, if the policy needs them, else NULL
 * @return as kvpolicy_choose, and UNSUPPORTED for a state on a device */
KVPOLICY_API kvpolicy_status kvpolicy_choose_several(kvpolicy_state* state, int64_t layer, int64_t tokens, int64_t brought,
                                                     kvpolicy_tensor const* queries, float scale, int32_t const* token_ids);

/** Lists the tokens that an engine that frees rows must keep, read or not, after the layer's prefill or choose.
 * @param state,layer,kv_head  which head
 * @param ranges,count  receive the ranges, as kvpolicy_list
 * @return INVALID before the layer's prefill or choose */
KVPOLICY_API kvpolicy_status kvpolicy_retained(kvpolicy_state const* state, int64_t layer, int64_t kv_head,
                                               kvpolicy_range const** ranges, int64_t* count);

/** Writes the physical pages of kvpolicy_list, in order.
 * @param state,layer,kv_head  which head
 * @param pages,room  receive the pages, at most `room`
 * @param count  receives their number
 * @param last_page_tokens  receives the tokens of the last page; all others are whole
 * @return INVALID for lists that are not made of whole pages of the bound table, or too little room */
KVPOLICY_API kvpolicy_status kvpolicy_page_table(kvpolicy_state const* state, int64_t layer, int64_t kv_head, int32_t* pages,
                                                 int64_t room, int64_t* count, int32_t* last_page_tokens);

/** Computes a step's attention over the layer's lists, after its choose.
 * @param state,layer  which layer
 * @param queries  `[q_heads, head_dim]` f32; after kvpolicy_choose_several `[brought, q_heads, head_dim]`
 * @param scale  multiplies q.k
 * @param out  as queries; of several tokens dense
 * @return INVALID before the layer's choose, or for other tensors */
KVPOLICY_API kvpolicy_status kvpolicy_attend(kvpolicy_state* state, int64_t layer, kvpolicy_tensor const* queries, float scale,
                                             kvpolicy_tensor const* out);

/** Computes attention of a prompt's last n tokens, each over all earlier tokens that there are and itself.
 * Call it before the layer's prefill or after.
 * @param state,layer  which layer
 * @param tokens  tokens of the sequence, whose rows are written in this layer
 * @param queries  `[n, q_heads, head_dim]` f32
 * @param scale  multiplies q.k
 * @param out  as queries, dense
 * @return UNSUPPORTED for a state on a device */
KVPOLICY_API kvpolicy_status kvpolicy_attend_prompt(kvpolicy_state* state, int64_t layer, int64_t tokens,
                                                    kvpolicy_tensor const* queries, float scale, kvpolicy_tensor const* out);

/** Ends a step. After kvpolicy_choose_several, call it once for each token that stays, in order.
 * @param state  the state
 * @param logits  the step's logits `[vocabulary]` f32; NULL if the policy does not need them
 * @return INVALID for missing logits, or before a step */
KVPOLICY_API kvpolicy_status kvpolicy_observe(kvpolicy_state* state, kvpolicy_tensor const* logits);

/* Decoders: the steps of a batch of sequences on a CUDA device. start, bind and prefill wait, and plan copies numbers. settle,
 * choose, attend, renew and observe only enqueue kernels, with the same arguments at every step: capture the calls of one step in a CUDA
 * graph, and replay it after each plan. Each plan has exactly one step, captured or not. A capture may not load kernels: before
 * it make one step, with a plan of its own; before the first prompt a plan of zeros serves. Keys and values are written on the
 * stream, or before it was synchronised. A slot whose prompt was refused has no step until the prompt was given again from
 * token 0. docs/cuda.md has the limits. */

/** The steps of a batch under one policy. */
typedef struct kvpolicy_decoder kvpolicy_decoder;

/** What the KV heads of a layer read, in device memory, valid until the next step.
 * List l of slot s (whatever its row) names `named[s * lists + l]` tokens, ascending: the first is unit_size * units[(s * lists + l) * stride],
 * and each unit has unit_size tokens. Then come the tokens from tail[s] on to the last of tokens[s]; from tail[s * lists + l]
 * on if each list has its own. */
typedef struct kvpolicy_device_lists {
  int32_t const* units;
  int32_t const* named;  /**< NULL: no list names any */
  int32_t const* tail;   /**< NULL: tail_of_all is every list's */
  int32_t const* tokens; /**< 0: the slot reads nothing in this step */
  int64_t stride;
  int64_t tail_of_all;
  int32_t lists; /**< of a slot: 1 for all KV heads, or kv_heads */
  int32_t unit_size;
  int32_t tails; /**< of a slot: 1, or `lists` */
} kvpolicy_device_lists;

/** How a decoder is made. Zeros are defaults, except of `sequences`. */
typedef struct kvpolicy_decoder_options {
  int64_t sequences;   /**< slots: each may hold any sequence, one after the other */
  int64_t rows;        /**< of a batch at most, if sequences' rows move from step to step; 0: a slot's number is its row */
  int64_t workspace;   /**< bytes of scratch on the device, 0 for 64 MiB; a call that needs more says so */
  void* stream;        /**< a cudaStream_t */
  int32_t device;      /**< it must be the calling thread's at every call */
  int32_t step_tokens; /**< that a sequence brings to a step at most, 1 to 16; 0: 1 */
} kvpolicy_decoder_options;

/** What a planned step asks for beside choose and attend, in any combination. */
enum {
  KVPOLICY_STEP_IDLE = 1,     /**< kvpolicy_decoder_standing may take choose's place: the lists follow from lengths alone */
  KVPOLICY_STEP_DECIDES = 2,  /**< each layer calls kvpolicy_decoder_decide before choose, and the step is not captured */
  KVPOLICY_STEP_UNSETTLED = 4 /**< call kvpolicy_decoder_settle before choose */
};

/** Makes a decoder. Its tensors are on the device, except those of prompts.
 * @param policy,shape  the policy, and the shape of each sequence's cache
 * @param options  the slots, and where and how they step
 * @param decoder  receives the decoder
 * @return INVALID for a wrong shape, 0 slots, step_tokens above 16 or another current device; UNSUPPORTED if the library was built
 *         without CUDA, for a policy without kernels for its steps, a plugin's say; FAILED if the device has too little memory */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_start(kvpolicy_policy const* policy, kvpolicy_shape const* shape,
                                                    kvpolicy_decoder_options const* options, kvpolicy_decoder** decoder);
/** Frees a decoder once its work is done, or does nothing for NULL. */
KVPOLICY_API void kvpolicy_decoder_free(kvpolicy_decoder* decoder);
/** Uses another stream from now on. Order its work behind what was enqueued before: scratch is shared.
 * @param decoder,stream  the decoder, a cudaStream_t */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_on(kvpolicy_decoder* decoder, void* stream);
/** Says where a layer's rows are, before the layer's first call. A captured step keeps these places. A batch has as many rows as
 * slots, or the options' `rows` where they move.
 * @param decoder,layer  which layer
 * @param keys,values  `[pages, kv_heads, page_size, head_dim]` of the shape's type, any strides; without pages `[rows, kv_heads,
 *        tokens, head_dim]`
 * @param pages  int32 `[rows, n]`: token t of row r is row t % page_size of page pages[r, t / page_size]. Its numbers may change
 *        between steps. NULL: no pages
 * @return INVALID for tensors of other axes, type or place */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_bind(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* keys,
                                                   kvpolicy_tensor const* values, kvpolicy_tensor const* pages);
/** Says what the model adds to a layer's attention, as kvpolicy_bind_terms, with tensors on the device. A captured step keeps their
 * places, and the cap.
 * @param decoder,layer,terms  as there */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_bind_terms(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_terms const* terms);
/** Takes in a layer's keys of a slot's prompt, or of a further piece, as kvpolicy_prefill. Waits for the device.
 * @param decoder,sequence,layer  which slot, which layer
 * @param row  the sequence's row of the batch, where rows move; else -1
 * @param tokens  tokens of the sequence now
 * @param prompt  the prompt; its queries may be on the device or the host, all else is on the host
 * @return INVALID for a gap, a layer out of order or a missing signal */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_prefill(kvpolicy_decoder* decoder, int64_t sequence, int64_t row,
                                                      int64_t layer, int64_t tokens, kvpolicy_prompt const* prompt);
/** Plans a step, before it and outside of what is captured.
 * @param decoder  the decoder
 * @param rows  of the arrays: the slots; where rows move, the rows of this step
 * @param tokens  `[rows]` in host memory: each sequence's tokens, with those that are decoded now; 0 for an empty slot, -1 for a
 *        sequence that pauses. Empty and paused slots read nothing, and their `out` is 0
 * @param brought  `[rows]` how many of them are decoded now, 1 to step_tokens: those before them say how many of the last step's
 *        stayed. NULL: one of each
 * @param slots  `[rows]` the slot of each row, where rows move: each has one row of a step at most, slots without a row pause,
 *        and `out` of rows without a slot is not written. Else NULL
 * @param step  receives what the step asks for, KVPOLICY_STEP_IDLE and others; may be NULL
 * @return INVALID for a sequence whose tokens are not those that stayed and the new ones, and for slots that are none or are named
 *         twice; FAILED if the device has too little memory: then slots with 0 tokens are empty. Nothing else has changed */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_plan(kvpolicy_decoder* decoder, int64_t rows, int32_t const* tokens,
                                                   int32_t const* brought, int32_t const* slots, int32_t* step);
/** Enqueues the steps of the last one's later tokens that stayed: the policy learns from each as if it had come alone. Call it
 * after plan and before choose where the step is KVPOLICY_STEP_UNSETTLED. It may be captured.
 * @param decoder,scale  the decoder, and what multiplies q.k */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_settle(kvpolicy_decoder* decoder, float scale);
/** Takes back a sequence's last tokens, which an engine drafted step by step.
 * @param decoder,sequence  which slot
 * @param tokens  how many it has left
 * @return INVALID for an empty slot, for fewer tokens than its prompt, and for more than it has; UNSUPPORTED for a policy that
 *         learns from steps: let a step bring several tokens */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_cut(kvpolicy_decoder* decoder, int64_t sequence, int64_t tokens);
/** Empties a slot: its sequence has ended.
 * @param decoder,sequence  which slot
 * @return INVALID for a slot that there is not */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_end(kvpolicy_decoder* decoder, int64_t sequence);
/** Makes a layer's choices that are due at the planned step: they waited for tokens of the answer (`after`), or come every so many
 * steps (rkv, triattention). Waits for the device.
 * @param decoder,layer,queries,scale  as kvpolicy_decoder_choose
 * @return INVALID for missing or other tensors. The next kvpolicy_decoder_plan is INVALID where the call is missing */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_decide(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* queries,
                                                     float scale);
/** Enqueues the choice of a layer, before its attention. Each sequence's current key is written.
 * @param decoder,layer  which layer, in order
 * @param queries  `[rows, q_heads, head_dim]` f32, f16 or bf16, if the policy needs them: rows of the whole batch, however many
 *        of them this step's plan has. Where a step may bring several tokens there is an axis of step_tokens behind that of
 *        rows, here, of ids, outputs and logits
 * @param scale  multiplies q.k
 * @param token_ids  `[rows]` int32, if the policy needs them
 * @param lists  receives where the lists are; may be NULL
 * @return INVALID for missing or other tensors; FAILED if the workspace is too small */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_choose(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* queries,
                                                     float scale, kvpolicy_tensor const* token_ids,
                                                     kvpolicy_device_lists* lists);
/** Says where a layer's lists are at an idle step, and enqueues nothing. Capture idle steps in a graph of their own.
 * @param decoder,layer  which layer
 * @param lists  receives where the lists are; may be NULL
 * @return INVALID at a step that is not idle */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_standing(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_device_lists* lists);
/** Enqueues a layer's attention over its lists, after its choose or standing.
 * @param decoder,layer  which layer
 * @param queries  `[rows, q_heads, head_dim]` f32, f16 or bf16
 * @param scale  multiplies q.k
 * @param out  the same axes, any of these types; 0 of tokens that were not brought
 * @return INVALID before the layer's choose, or for other tensors */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_attend(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* queries,
                                                     float scale, kvpolicy_tensor const* out);
/** Enqueues the choice that serves the next step, after a layer's attention, at each step that is not idle: for a policy with
 * `next_step`, such as heterocache:paper. Enqueues nothing for others.
 * @param decoder,layer,queries,scale  as kvpolicy_decoder_choose
 * @return INVALID for other tensors. The next kvpolicy_decoder_plan is INVALID where the call is missing */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_renew(kvpolicy_decoder* decoder, int64_t layer, kvpolicy_tensor const* queries,
                                                    float scale);
/** Enqueues the end of a step.
 * @param decoder  the decoder
 * @param logits  `[rows, vocabulary]` f32, f16 or bf16; NULL if the policy does not need them
 * @return INVALID for missing logits */
KVPOLICY_API kvpolicy_status kvpolicy_decoder_observe(kvpolicy_decoder* decoder, kvpolicy_tensor const* logits);

/* Stores: rows that the library holds, in host memory. An engine that hands its rows over may free its own; what a policy drops
 * is freed too (docs/memory.md). Not thread-safe: one thread at a time uses the stores of an arena. */

/** Makes the memory of stores. What they do not use takes none.
 * @param shape  the stores' shape
 * @param bytes  the most that they may take
 * @param arena  receives the arena
 * @return INVALID for less than a block of 64 rows */
KVPOLICY_API kvpolicy_status kvpolicy_arena_start(kvpolicy_shape const* shape, int64_t bytes, kvpolicy_arena** arena);
/** Frees an arena, or does nothing for NULL. Its stores live on. */
KVPOLICY_API void kvpolicy_arena_free(kvpolicy_arena* arena);
/** Returns the bytes that an arena's stores take; 0 for NULL. */
KVPOLICY_API int64_t kvpolicy_arena_bytes(kvpolicy_arena const* arena);

/** Makes a sequence's store.
 * @param arena,shape  its memory, and the shape of the sequence's state
 * @param store  receives the store
 * @return INVALID for another shape than the arena's */
KVPOLICY_API kvpolicy_status kvpolicy_store_start(kvpolicy_arena* arena, kvpolicy_shape const* shape, kvpolicy_store** store);
/** Frees a store, or does nothing for NULL. */
KVPOLICY_API void kvpolicy_store_free(kvpolicy_store* store);
/** Copies a store's first tokens, without copying a row.
 * @param store,tokens  the store, and how many tokens
 * @param copy  receives the copy
 * @return the status */
KVPOLICY_API kvpolicy_status kvpolicy_store_fork(kvpolicy_store const* store, int64_t tokens, kvpolicy_store** copy);

/** Makes a store's rows the state's, for all layers, once: in place of kvpolicy_bind. Later prompts choose among the rows left.
 * @param state,store  the state, and a store that outlives it
 * @return INVALID for a store of another shape, or one that another state is bound to, UNSUPPORTED for a state on a device */
KVPOLICY_API kvpolicy_status kvpolicy_bind_store(kvpolicy_state* state, kvpolicy_store* store);

/** Copies a layer's next tokens into a store.
 * @param store,layer  which layer
 * @param keys,values  `[kv_heads, n, head_dim]`, rows dense
 * @return FAILED, and nothing is copied, if the arena is exhausted */
KVPOLICY_API kvpolicy_status kvpolicy_store_append(kvpolicy_store* store, int64_t layer, kvpolicy_tensor const* keys,
                                                   kvpolicy_tensor const* values);
/** Drops a layer's tokens that the state does not retain. For every layer, after the first step that follows a prompt.
 * For a policy that evicts, or that waits for an answer's first tokens, also after each step.
 * @param store,layer  which layer
 * @param state  the state that is bound to the store
 * @return INVALID for another store's state, or before the layer's prefill or choose */
KVPOLICY_API kvpolicy_status kvpolicy_store_retain(kvpolicy_store* store, int64_t layer, kvpolicy_state* state);
/** Threads of the caller. */
typedef struct kvpolicy_threads {
  /** Calls work(argument) on at least one thread, or on several at once, and returns when all calls have returned. */
  void (*run)(void* user, void (*work)(void* argument), void* argument);
  void* user; /**< passed to run */
} kvpolicy_threads;

/** Makes a step of several sequences in one layer, for the next token of each. For every layer, in order.
 * Does what store_append, choose and attend do, and after the last layer store_retain, and observe for a policy without logits.
 * If a sequence is refused, it loses the token in every layer, and may begin the step again; the others have made their steps.
 * @param states,count  the sequences, bound to stores of one shape
 * @param layer  which layer
 * @param keys,values  `[count, kv_heads, head_dim]` of the shape's type, rows dense
 * @param queries  `[count, q_heads, head_dim]` f32, rows dense
 * @param scale  multiplies q.k
 * @param token_ids  `[count]` int32; NULL if no policy needs them
 * @param out  as queries
 * @param read  `[count]`: rows of the layer that each sequence read, of all its KV heads; -1 if it was refused
 * @param leave_whole  not 0: leaves `out` as it is for a sequence that reads all of its tokens in every KV head. There the
 *        engine's own attention is as good, and gives bit for bit what it gives without a policy
 * @param threads  share the sequences, unless ranks choose for whole requests; each store then needs an arena of its own.
 *        NULL: this thread
 * @return that of the first refused sequence; all read -1: no sequence has made a step */
KVPOLICY_API kvpolicy_status kvpolicy_step(kvpolicy_state* const* states, int64_t count, int64_t layer,
                                           kvpolicy_tensor const* keys, kvpolicy_tensor const* values,
                                           kvpolicy_tensor const* queries, float scale, kvpolicy_tensor const* token_ids,
                                           kvpolicy_tensor const* out, int64_t* read, int32_t leave_whole,
                                           kvpolicy_threads const* threads);
/** Drops a store's tokens from `tokens` on, in every layer.
 * @param store,tokens  the store, and how many first tokens stay
 * @return the status */
KVPOLICY_API kvpolicy_status kvpolicy_store_truncate(kvpolicy_store* store, int64_t tokens);
/** Returns how many first tokens every layer was given: the engine may free its own rows of them. 0 for NULL. */
KVPOLICY_API int64_t kvpolicy_store_released(kvpolicy_store const* store);
/** Returns how many rows of a token, layer and KV head a store holds; 0 for NULL. */
KVPOLICY_API int64_t kvpolicy_store_rows(kvpolicy_store const* store);

#ifdef __cplusplus
}
#endif

#endif
