// llama.cpp as the host engine: attaches a policy to an ordinary llama_context; the caller's decode loop does not change.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/adapter.hpp"
#include "kvpolicy/exec/host_policy.hpp"
#include "kvpolicy/interop/llama/options.hpp"
#include "kvpolicy/interop/llama/statistics.hpp"
#include "kvpolicy/tiers/resident_options.hpp"

namespace kvpolicy::llama {

/// What this adapter feeds and obeys. A policy that needs more does not compile.
struct adapter {
  static constexpr signals provides = signals::keys | signals::values | signals::queries | signals::observation_queries |
                                      signals::rotation | signals::logits | signals::token_ids | signals::repetition;
  static constexpr scope finest_scope = scope::head;
};

/// Identifies one token in the cache by hashes of its keys; 0: not known.
struct fingerprint {
  std::uint64_t self = 0;     ///< of its key in the first served layer, which follows from the token's id and position
  std::uint64_t history = 0;  ///< of its key in the last served layer, which follows from every earlier token too

  bool operator==(fingerprint const&) const = default;
};

/// What the session knows of a sequence beside the engine's own state. Store it with llama_state_get_data's bytes.
struct saved_prompt {
  std::int64_t tokens = 0;                  ///< tokens of the prompt that the queries belong to
  std::int64_t window = 0;                  ///< queries of each layer
  std::vector<float> queries{};             ///< `[layers, window, q_heads, head_dim]`
  std::vector<std::int32_t> ids{};          ///< ids of the sequence's first tokens
  std::vector<fingerprint> fingerprints{};  ///< of all tokens in the cache; empty: see session::load()
  std::int32_t first_position = 0;          ///< position of the first token
};

/// Cells that each sequence keeps in the engine beside a managed cache.
inline constexpr llama_pos cells_kept = 8;

/// Finds the tokens whose texts end a sentence, for sentencekv (segments::sentences::boundary).
/// @param model  whose vocabulary is read
/// @return `[vocabulary]`: 1 if the token ends a sentence, else 0
std::vector<std::uint8_t> sentence_ends(llama_model const* model);

/// What the steps of a batch read.
enum class batch_reading : std::uint8_t {
  by_policy,            ///< what the policy chooses
  everything,           ///< all tokens before them, whatever the policy chooses
  everything_as_prompt  ///< the same, and the policy takes them for a piece of a prompt, at whose end it chooses anew
};

/// Runs policies inside one llama_context, as a ggml custom op over the engine's own cells, without copies.
/// A decode step is one token of a sequence in a micro-batch, or several that set_batch() announces: it attends over what the
/// sequence's policy chooses. Prompts attend over all tokens before them. The engine does everything else; it is not modified,
/// nor is its memory, beside the nodes of its current graph. Not thread-safe. Must outlive the context that it is attached to.
/// - Each sequence has its own state, and may have its own policy. Sequences may share a batch, join, leave and share prefixes
///   (llama_memory_seq_cp). In a unified cache, call set_batch() for each batch with other sequences than 0.
/// - Served are causal models on the CPU with flash attention not disabled. Policies act on the layers that attend to all
///   tokens, in their order; sliding windows, recurrent layers and layers with uncommon heads stay the engine's.
/// - Everything else is refused by name: by attach() if it shows there, else by the llama_decode that would go wrong. That
///   decode returns 2, its failed micro-batch is undone, and check() throws the reason.
/// - After llama_state_set_data or the like, call load(). The session knows a cell's token by fingerprints of its keys, which
///   it takes while detached too.
class session {
 public:
  /// Makes a session that runs a policy for all sequences.
  /// @param policy,options  the policy, and how to run it
  /// @throws invalid_value for invalid options, or options that exclude each other
  template <policy_like Policy>
    requires serves<adapter, parts_t<Policy>>
  explicit session(Policy const& policy, session_options options = {})
      : session(erase<layer_table_view, simd_exec>(policy), std::move(options)) {}
  /// Does the same for an erased policy.
  explicit session(host_policy policy, session_options options = {});
  ~session();
  session(session const&) = delete;
  session& operator=(session const&) = delete;

  /// Attaches the session to parameters; call it before llama_init_from_model(model, params).
  /// Makes a small context of its own for a moment, to see the model's layers. An exception leaves `params` as it was.
  /// @param params  the context's parameters; callbacks in them are kept
  /// @param model  the context's model
  /// @throws unsupported for a model, parameters or policy that this version can't serve; not if `lenient` leaves them to the
  ///        engine
  /// @throws invalid_value for an invalid budget, or if the session is attached already
  void attach(llama_context_params& params, llama_model const* model);

  /// Leaves everything to the engine from the next llama_decode on, which runs as if never attached, bit by bit.
  /// With a managed cache the engine lacks the rows: its decodes are refused until use().
  void detach() noexcept;

  /// Replaces the policy of all sequences from the next llama_decode on, also after detach().
  /// A policy that needs only keys can use what is in the cache. One that needs the prompt's queries must see a prompt first,
  /// or load().
  /// @param policy  the policy
  /// @throws invalid_value for an invalid budget, or while a loaded state waits for the first decode
  /// @throws unsupported for a policy that can't run on the cache
  template <policy_like Policy>
    requires serves<adapter, parts_t<Policy>>
  void use(Policy const& policy) { use(erase<layer_table_view, simd_exec>(policy)); }
  void use(host_policy policy);
  /// Replaces the policy of one sequence.
  /// Throws as use() of all sequences does.
  /// @param policy,of  the policy, and its sequence
  template <policy_like Policy>
    requires serves<adapter, parts_t<Policy>>
  void use(Policy const& policy, llama_seq_id of) { use(erase<layer_table_view, simd_exec>(policy), of); }
  void use(host_policy policy, llama_seq_id of);

  /// Announces the batch of the next llama_decode. Has no effect while detached.
  /// A sequence's tokens in the batch are a step if each of them has an output and there are at most most_step_tokens; else
  /// they are a piece of a prompt. A step of several tokens brings a sampled token and drafts of those behind it: all read what
  /// the policy chooses for the first, and the next batch shows how many stayed. It is a prompt's piece with a managed cache,
  /// at a sequence's beginning, and where the engine cuts it into several micro-batches. A unified cache (kv_unified) does not
  /// say which sequence a token belongs to: there, call this before each decode once there are other sequences than 0.
  /// Elsewhere it is optional; without it, a micro-batch with one token of a prompt counts as a step.
  /// @param batch  the batch
  /// @param how  whether its steps read what the policy chooses, or everything
  /// @throws invalid_value for a sequence that llama.cpp can't have
  void set_batch(llama_batch const& batch, batch_reading how = batch_reading::by_policy);
  /// Announces the batch of the next llama_process, which the session can't read.
  /// @param sequences  the (first) sequence of each token, in order
  /// @param outputs,how  whether each token has an output, or empty: all have; as above
  /// @throws invalid_value for a sequence that llama.cpp can't have, or if `outputs` has another length
  void set_batch(std::span<llama_seq_id const> sequences, std::span<std::int8_t const> outputs = {},
                 batch_reading how = batch_reading::by_policy);

  /// Returns what the session knows of a sequence.
  /// @param of  the sequence
  /// @return the argument for load(), once the engine's state is restored to where it is now
  saved_prompt save(llama_seq_id of = 0) const;
  /// Tells the session that a sequence's state was replaced by the one that `saved` belongs to.
  /// Without fingerprints nothing is known of the sequence's tokens, and a decode after tokens that no session saw written is
  /// refused. The exception: `saved.tokens` says how many tokens there are, and thereby that they lie in the order of their
  /// cells, as in a sequence that was never cut or moved.
  /// @param saved  what save() returned
  /// @param of  the sequence
  /// @throws invalid_value for what this context can't have saved; before the first decode, that decode is refused instead
  /// @throws unsupported with a managed cache
  void load(saved_prompt const& saved = {}, llama_seq_id of = 0);

  /// Decodes a batch of any length, in pieces that fit the context. Calls set_batch() itself.
  /// With a managed cache it gives the engine's cells back after each piece, except a sequence's last few: n_ctx bounds neither
  /// a prompt nor a chat. A token's position says how many tokens come before it, so a tail that llama_memory_seq_rm removed is
  /// forgotten.
  /// @param context  the context that the session is attached to
  /// @param batch  the batch; only the last piece's outputs are available
  /// @return what llama_decode returned last; pieces before a failed one stay
  /// @throws invalid_value for an output before the last piece, or if the context has too few cells
  int decode(llama_context* context, llama_batch const& batch);

  /// Shares the rows of one sequence with another: call it beside llama_memory_seq_cp of a whole sequence.
  /// With the same policy, `to` continues from what the policy of `from` knows. Without this call the first decode of `to`
  /// notices the copy: then it lacks what `from` has dropped since, and if `from` has ended, the decode is refused.
  /// @param from,to  the sequences
  /// @throws unsupported without a managed cache
  /// @throws error if a tier lost rows, or has no room for the copy
  void copy(llama_seq_id from, llama_seq_id to);
  /// Frees a sequence's rows at once: call it beside llama_memory_seq_rm of a whole sequence. Needs a managed cache.
  /// Without this call its rows go when its next first token is decoded.
  /// @param of  the sequence
  void end(llama_seq_id of) noexcept;
  /// Frees the rows of a sequence's last tokens: call it beside llama_memory_seq_rm of that tail. Needs a managed cache.
  /// @param of  the sequence
  /// @param tokens  how many first tokens stay
  void cut(llama_seq_id of, std::int64_t tokens) noexcept;
  /// Gives the engine's cells back as decode() does, except each sequence's last few. Only with a managed cache.
  /// Call it after each llama_decode or llama_process that decode() did not make, whatever it returned. Such a batch must fit
  /// beside the cells that stay.
  /// @param context,sequences  the context, and the batch's sequences
  void give_back(llama_context* context, std::span<llama_seq_id const> sequences);
  /// Returns the tokens that a sequence has in the managed cache; 0 without one.
  /// @param of  the sequence
  std::int64_t tokens(llama_seq_id of = 0) const noexcept;
  /// Returns the least position at which another text may continue a sequence's first tokens. Needs a managed cache.
  /// The policy has dropped rows of earlier tokens that it did not need for the text that it saw: a text that differs there
  /// must be read anew.
  /// @param of  the sequence
  /// @return a position; 0 if nothing was dropped; more than tokens() if no text may continue, because the policy decides with
  ///        the whole prompt (requirements::whole_prompts)
  std::int64_t goes_on_from(llama_seq_id of = 0) const noexcept;

  /// Returns a sequence's rows, their positions and what its policy remembers, for another process to load.
  /// @param policy  a name for the sequence's policy, its text as a rule
  /// @param of  the sequence
  /// @return the state
  /// @throws unsupported without a managed cache, and for a policy with a part whose memory has no archive()
  ///        (kvpolicy/archive.hpp)
  /// @throws invalid_value before attach()
  /// @throws error if a tier lost rows
  std::vector<std::byte> save_state(std::string const& policy, llama_seq_id of = 0);
  /// Makes a sequence what was saved. The engine must have no token of it (llama_memory_seq_rm).
  /// Its next token follows the saved ones: decode() counts on from there if a batch has no positions.
  /// @param state  what save_state() returned
  /// @param policy  the name that save_state() got
  /// @param of  the sequence
  /// @throws invalid_value for a state that is cut or damaged, or of another model, cache (managed_cache::longest too), policy
  ///        or version: nothing has changed then. If a state does not fit after all, the sequence is empty; before the first
  ///        decode, that decode is refused
  /// @throws unsupported without a managed cache
  void load_state(std::span<std::byte const> state, std::string const& policy, llama_seq_id of = 0);

  /// Throws what stopped the last llama_decode, once; returns if nothing did.
  /// After llama_set_abort_callback the session can't stop the engine. Then a decode that it refuses returns 0, with the logits
  /// of dense attention, and this throws all the same.
  /// @throws error with the reason
  void check();

  /// Returns the shape of the layers that policies act on, for the longest sequence of the context; empty before attach().
  cache_shape shape() const noexcept;
  /// Returns a line for each thing that is left to the engine, with the reason.
  std::vector<std::string> report() const;

  /// Returns what the last step of a sequence did.
  /// @param of  the sequence
  step_statistics last_step(llama_seq_id of = 0) const noexcept;
  /// Returns what the attention of a sequence's prompts did.
  /// @param of  the sequence
  prompt_statistics prompts(llama_seq_id of = 0) const noexcept;
  /// Returns what happened to a sequence in the tier since it began; all zero without a tier.
  /// @param of  the sequence
  tiers::resident_statistics tier_statistics(llama_seq_id of = 0) const noexcept;
  /// Returns what all sequences hold in the managed cache; all zero without one, or before the first decode.
  memory_statistics memory() const noexcept;
  /// Returns what one sequence holds, the blocks that it shares included.
  /// @param of  the sequence
  memory_statistics memory(llama_seq_id of) const noexcept;
  /// Returns how many steps the running policy has made since the sequence got it.
  /// @param of  the sequence
  std::int64_t steps(llama_seq_id of = 0) const noexcept;
  /// Visits what the running policy did in these steps.
  /// @param visit,of  the callback for each number, and the sequence
  void visit_statistics(statistic_visitor const& visit, llama_seq_id of = 0) const;

 private:
  friend class lossless;
  friend void repeat(session&, llama_context*, struct repeat_options const&, llama_seq_id);
  class engine;
  std::unique_ptr<engine> engine_;
};

}  // namespace kvpolicy::llama
