// Gives llama.cpp's own cache what a policy retains of a prompt: on any backend, and the engine's own steps go on with that.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <span>

#include "kvpolicy/interop/llama.hpp"

namespace kvpolicy::llama {

/// What a compaction did to a sequence.
struct compaction {
  std::int64_t tokens = 0;  ///< cells before
  std::int64_t kept = 0;    ///< cells now
};

/// A sequence has no cells any more, and its prompt must be decoded again.
struct sequence_lost : error {
  using error::error;
};

/// Replaces the cells of a sequence by those rows that a policy retains of each KV head. Steps read fewer cells, and are the
/// engine's own: so this serves models on GPUs, too, which session does not. The other cells are free for longer answers and
/// other sequences; the engine's buffers keep their size. The price is the sequence's state on the host
/// (llama_state_seq_get_data), and positions: n kept cells have the last n positions, and a text that shares only a part of
/// the prompt must be read anew.
/// - Serves policies that choose once, when a prompt ends, as many tokens for each head of each layer, and need nothing but
///   keys, values and the prompt's last queries: snapkv, knorm, keydiff, lagkv, ...
/// - Serves models whose layers all attend to all tokens, with rotary positions. Needs flash attention not disabled.
/// - A policy that looks at queries has the engine wait once a layer while a prompt is decoded, and in the steps before the
///   first compaction.
/// - Compact a sequence before llama_memory_seq_cp shares its cells: a compaction of one would not free them. After
///   llama_memory_seq_add decode once before a compaction: only then are the keys moved. After another text's state was
///   restored, decode the end of its prompt.
/// Not thread-safe. Must outlive the context that it is attached to.
class compactor {
 public:
  /// Makes a compactor of a policy.
  /// @param policy  the policy; one that waits for tokens of the answer needs its `after` set to 0: call compact() that
  ///        much later
  /// @throws unsupported for a policy of another kind
  template <policy_like Policy>
    requires serves<adapter, parts_t<Policy>>
  explicit compactor(Policy const& policy) : compactor(erase<layer_table_view, simd_exec>(policy)) {}
  /// Does the same for an erased policy.
  explicit compactor(host_policy policy);
  ~compactor();
  compactor(compactor const&) = delete;
  compactor& operator=(compactor const&) = delete;

  /// Attaches the compactor to parameters; call it before llama_init_from_model(model, params). A callback in them is kept.
  /// Makes a small context of its own for a moment, to see the model's layers. An exception leaves `params` as it was.
  /// @param params,model  the context's parameters, and its model
  /// @throws unsupported for a model that is not served, and for several streams
  /// @throws invalid_value for an impossible budget, or if the compactor is attached already
  void attach(llama_context_params& params, llama_model const* model);

  /// Returns the layers, heads and sizes of the model's cache, once the compactor is attached.
  cache_shape shape() const;

  /// Says of which sequence each token of the next batch is, if the policy looks at queries: call it before each llama_decode
  /// of a context of several sequences.
  /// @param sequences  `[tokens of the batch]`, in the batch's order
  /// @param at_rest  sequences that are not compacted before another prompt of theirs: the engine need not wait for their
  ///        queries, which are not kept
  void set_batch(std::span<llama_seq_id const> sequences, std::span<llama_seq_id const> at_rest = {});
  /// Forgets a sequence's queries: another text takes its place, from a state for instance.
  /// @param of  the sequence
  void forget(llama_seq_id of);

  /// Compacts a sequence. Call it when the prompt was decoded, and again after a further prompt.
  /// @param context  the context that the compactor is attached to
  /// @param of  the sequence
  /// @return how many cells it had, and has
  /// @throws invalid_value for a sequence that there is not, or without tokens; for one whose last token's queries were not
  ///         seen, as its tail was removed; without set_batch() where that is needed; and before attach()
  /// @throws unsupported where heads retain different numbers of tokens, and for a state of another form than this version of
  ///         llama.cpp writes
  /// @throws error if the engine does not take the compacted state; the sequence is as before then
  /// @throws sequence_lost if the engine does not take that either: it has no cells for it
  compaction compact(llama_context* context, llama_seq_id of = 0);

 private:
  struct inside;
  std::unique_ptr<inside> inside_;
};

}  // namespace kvpolicy::llama
