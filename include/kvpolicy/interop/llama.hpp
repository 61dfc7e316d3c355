// llama.cpp as the host engine: attach a policy to an ordinary llama_context; the caller's decode loop does not change.
#pragma once

#include <llama.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/exec/host_policy.hpp"
#include "kvpolicy/prompt_pages.hpp"
#include "kvpolicy/tiers/any_tier.hpp"
#include "kvpolicy/tiers/resident_options.hpp"

namespace kvpolicy::llama {

/// What this adapter feeds and obeys; a policy that needs more does not compile.
struct adapter {
  static constexpr signals provides = signals::keys | signals::values | signals::queries | signals::observation_queries |
                                      signals::rotation | signals::logits | signals::token_ids;
  static constexpr scope finest_scope = scope::head;
};

/// What one decode step did, summed over layers.
struct step_statistics {
  std::int64_t tokens = 0;     ///< in the cache, the current one included
  double tokens_read = 0;      ///< mean over layers and KV heads
  double choose_seconds = 0;   ///< pooling, scoring and selecting; with the logits' entropy where a trigger reads it
  double fetch_seconds = 0;    ///< bringing rows from their tier
  double attend_seconds = 0;   ///< attention over what was chosen
  double prefill_seconds = 0;  ///< on the first step after a prompt: what the policy made of the prompt
};

/// Tells one token in the cache from all others, by hashes of its keys; 0: not known.
struct fingerprint {
  std::uint64_t self = 0;     ///< the first served layer's key, which follows from the token's id and position
  std::uint64_t history = 0;  ///< the last one's, which follows from every token before it too

  bool operator==(fingerprint const&) const = default;
};

/// What a sequence left with the session beside the engine's own state; goes with llama_state_get_data's bytes.
struct saved_prompt {
  std::int64_t tokens = 0;                  ///< of the prompt whose last queries these are
  std::int64_t window = 0;                  ///< queries of each layer
  std::vector<float> queries{};             ///< `[layers, window, q_heads, head_dim]`
  std::vector<std::int32_t> ids{};          ///< of the first tokens
  std::vector<fingerprint> fingerprints{};  ///< of all tokens in the cache; none: see session::load
  std::int32_t first_position = 0;          ///< of the first token
};

/// The session's attention of prompts since the sequence was given its policy.
struct prompt_statistics {
  double pairs = 0;           ///< with a prompt policy, (query, token) pairs of a KV head, with those behind in its block
  double read = 0;            ///< of them
  double choose_seconds = 0;  ///< of a prompt policy
  double attend_seconds = 0;
};

/// The session holds the rows itself, and rows that a policy drops are freed: see session::decode.
struct managed_cache {
  std::int64_t longest = 0;  ///< the most tokens that a sequence may have; 0: as many as the model was trained for
  std::int64_t memory = 0;   ///< the most bytes of all sequences' rows; 0: what all of them could need
  /// Drops rows after each piece of a prompt, among what it left of those before and the piece: memory stays flat, and a
  /// piece's tokens attend to no more than that. What is retained in the end is the policy's to decide, among those that are
  /// left. Usually a policy that retains more than the session's. One that retains all: prompts are whole until they end.
  host_policy between_pieces{};
  /// Where a prompt's retained rows go when it ends, but for those that were read last; null: they stay in memory. A prompt
  /// that goes on has one layer's rows at a time in memory (under chess all layers'). Its blocks hold a key and a value; it
  /// must outlive the session. Sequence s is request `resident.request + s` there.
  tiers::any_tier* tier = nullptr;
  tiers::resident_options resident{};
};

struct session_options {
  /// Prompt queries to keep whatever the policy asks for, so that a later policy may ask for them; all_queries for every one:
  /// layers * tokens * q_heads * head_dim floats.
  std::int64_t observation_queries = 0;
  /// Attention of prompts, over all before each token, is computed here too (primitive attend_block); false: by the engine.
  bool prompts = true;
  /// What prompts read while they are read, where that is not all before each token; none: all. Needs `prompts`.
  std::optional<prompt_pages> prompt_policy{};
  /// A context that would run without the session runs with it: what can't be served, at attach or later, is left to the
  /// engine, and report() says so. A sequence that can't be served attends to all of its tokens until its next prompt; others
  /// go on. False: it is refused.
  bool lenient = false;
  /// Called at every step for every layer, with what was chosen; on one of the engine's threads.
  std::function<void(llama_seq_id, layer_id, std::int64_t tokens, selection const&)> on_choice{};
  /// Called before each choice with what it is made from; on one of the engine's threads. With a tier, not every row is there.
  std::function<void(llama_seq_id, layer_id, layer_table_view const&, query_heads const&, simd_exec&)> on_queries{};
  /// None: rows are the engine's. Needs `prompts`, and not `lenient`: nothing can be left to the engine.
  std::optional<managed_cache> cache{};
};

/// Cells of the engine that each sequence keeps beside a managed cache.
inline constexpr llama_pos cells_kept = 8;

/// What a session's managed cache holds.
struct memory_statistics {
  std::int64_t rows = 0;        ///< of a token, layer and KV head; of all sequences, shared ones counted for each
  std::int64_t bytes = 0;       ///< in the blocks that are taken
  std::int64_t most_bytes = 0;  ///< the most that there ever were
  std::int64_t limit = 0;
};

/// `[vocabulary]`: which tokens' texts end a sentence, as sentencekv wants to know (segments::sentences::boundary).
std::vector<std::uint8_t> sentence_ends(llama_model const* model);

/// Runs policies inside one llama_context. Decode steps (one token of a sequence in a micro-batch) attend over what the
/// sequence's policy chooses, prompts over all that is before them, as a ggml custom op over the engine's own cells, zero copy;
/// everything else is the engine's. The engine is not modified, nor is any of its memory beside the nodes of its current graph.
///
/// Each sequence has its own state, and its own policy where it is given one. Sequences may share a batch, join, leave and
/// share prefixes (llama_memory_seq_cp); in a unified cache, set_batch() each batch that is not all sequence 0's. Causal
/// models on the CPU, flash attention not disabled; policies act on the layers that attend to all tokens, in their order:
/// sliding windows, recurrent layers, and layers with other heads than most, stay the engine's. Everything else is refused by
/// name: at attach where it can be seen there, else by the llama_decode that would have gone wrong, which then returns 2 with
/// the failed micro-batch undone, and check() throws the reason.
/// After llama_state_set_data or the like, call load(). What a cell holds is told by fingerprints of its keys, which the
/// session takes while it is detached too. Not thread-safe. Must outlive the context it is attached to.
class session {
 public:
  template <policy_like Policy>
    requires serves<adapter, parts_t<Policy>>
  explicit session(Policy const& policy, session_options options = {})
      : session(erase<layer_table_view, simd_exec>(policy), std::move(options)) {}
  explicit session(host_policy policy, session_options options = {});
  ~session();
  session(session const&) = delete;
  session& operator=(session const&) = delete;

  /// Before llama_init_from_model(model, params). Makes a small context of its own for a moment, to see the model's layers.
  /// Throws unsupported, invalid_value (a budget that can't be), and leaves params alone then.
  void attach(llama_context_params& params, llama_model const* model);

  /// From the next llama_decode on, the engine runs as if it had never been attached, bit by bit. With a managed cache it
  /// can't: its decodes are refused then, until use().
  void detach() noexcept;

  /// Another policy from the next llama_decode on (also after detach), for all sequences. What is in the cache stays known to
  /// policies that need keys alone; one that needs the prompt's queries must see a prompt first, or load(). Throws
  /// invalid_value.
  template <policy_like Policy>
    requires serves<adapter, parts_t<Policy>>
  void use(Policy const& policy) { use(erase<layer_table_view, simd_exec>(policy)); }
  void use(host_policy policy);
  /// The same for one sequence, and those alone that it is named for.
  template <policy_like Policy>
    requires serves<adapter, parts_t<Policy>>
  void use(Policy const& policy, llama_seq_id of) { use(erase<layer_table_view, simd_exec>(policy), of); }
  void use(host_policy policy, llama_seq_id of);

  /// The next llama_decode brings this batch. A unified cache (kv_unified) does not tell the session whose a token is: call it
  /// there before each decode once there are sequences beside 0. Elsewhere it may be left out; a micro-batch that has one token
  /// of a prompt is then taken for a step. Has no effect while detached.
  void set_batch(llama_batch const& batch);
  /// The same for llama_process, whose batch can't be read: the (first) sequence of each of its tokens, in order, and whether
  /// it has an output (none given: all). A token that a sequence has alone is a step where it has one, else a piece of a
  /// prompt.
  void set_batch(std::span<llama_seq_id const> sequences, std::span<std::int8_t const> outputs = {});

  /// What the session knows of a sequence, for load() after the engine's state was restored to where it is now.
  saved_prompt save(llama_seq_id of = 0) const;
  /// A sequence's state was replaced, by the one that `saved` belongs to. Without fingerprints nothing is known of its tokens:
  /// those that no session saw written are refused when they are decoded behind, unless `saved.tokens` says how many there are,
  /// and so that they lie in the order of their cells, as those of a sequence that was never cut or moved do. Throws
  /// invalid_value for what this context can't have saved.
  void load(saved_prompt const& saved = {}, llama_seq_id of = 0);

  /// llama_decode of a batch of any length, in pieces that fit the context. With a managed cache the engine's cells are given
  /// back after each piece but for a sequence's last few, so that neither a prompt nor a chat is bound by n_ctx; a batch's
  /// tokens come behind as many as their position says, and a tail that was removed (llama_memory_seq_rm) is followed. Calls
  /// set_batch itself. Returns what llama_decode returned last; pieces before stay. Of outputs, those of the last piece are
  /// there. Throws invalid_value for an output before, or a context of too few cells.
  int decode(llama_context* context, llama_batch const& batch);

  /// With a managed cache, beside llama_memory_seq_cp of a whole sequence: `to` shares the rows of `from`, and with the same
  /// policy goes on from what that knows. Without this call a copy is noticed when it is first decoded: what `from` dropped by
  /// then is gone from it too, and where `from` has ended it is refused. Throws unsupported without a managed cache.
  void copy(llama_seq_id from, llama_seq_id to);
  /// With a managed cache, beside llama_memory_seq_rm of a whole sequence: its rows are freed at once. Without this call they
  /// are when its next first token is decoded.
  void end(llama_seq_id of) noexcept;
  /// The same of its tokens from `tokens` on, beside llama_memory_seq_rm of that tail.
  void cut(llama_seq_id of, std::int64_t tokens) noexcept;
  /// With a managed cache, behind each llama_decode or llama_process that decode() did not make, whatever it returned: what
  /// decode() does with the engine's cells of the batch's sequences. Such a batch must fit beside the cells that stay.
  void give_back(llama_context* context, std::span<llama_seq_id const> sequences);
  /// With a managed cache, the tokens that a sequence has; 0 without.
  std::int64_t tokens(llama_seq_id of = 0) const noexcept;
  /// With a managed cache, the least position at which another text may go on behind the sequence's first tokens. Of those
  /// before, a policy has dropped what it did not need for the text that it saw: another one is to be read anew. 0: nothing was
  /// dropped; more than tokens(): no text can go on, since the policy decides with all of it (requirements::whole_prompts).
  std::int64_t goes_on_from(llama_seq_id of = 0) const noexcept;

  /// With a managed cache: a sequence's rows, the positions that they have, and what its policy remembers, as bytes that
  /// another process may load. `policy` names the policy that the sequence has, its text as a rule. Throws unsupported without
  /// a managed cache, and for a policy with a part of one's own that does not say what of it lasts (kvpolicy/archive.hpp);
  /// error where a tier lost rows.
  std::vector<std::byte> save_state(std::string const& policy, llama_seq_id of = 0);
  /// The sequence becomes what was saved, and has no other tokens; the engine must have none of it (llama_memory_seq_rm). Its
  /// next token is the one behind: decode() counts on from there where a batch has no positions. Throws invalid_value, and
  /// nothing has changed, for a state that is cut or damaged, or of another model, cache (managed_cache::longest too), policy
  /// or version; for one that does not fit after all the sequence is empty, or where nothing was decoded yet the first decode
  /// is refused.
  void load_state(std::span<std::byte const> state, std::string const& policy, llama_seq_id of = 0);

  /// Throws what stopped the last llama_decode, once; returns if nothing did. After llama_set_abort_callback the session can't
  /// stop the engine: a decode that it refuses returns 0 then, with the logits of dense attention, and this throws all the
  /// same.
  void check();

  /// Of the layers that policies act on, and of the sequences that the context can hold; none before attach().
  cache_shape shape() const noexcept;
  /// What is left to the engine, a line each with its reason; empty: nothing.
  std::vector<std::string> report() const;

  step_statistics last_step(llama_seq_id of = 0) const noexcept;
  prompt_statistics prompts(llama_seq_id of = 0) const noexcept;
  /// Since the sequence began, or all zero without a tier.
  tiers::resident_statistics tier_statistics(llama_seq_id of = 0) const noexcept;
  /// Of all sequences in the managed cache. All zero without one, or before the first decode.
  memory_statistics memory() const noexcept;
  /// Of one sequence's; blocks that it shares with others count.
  memory_statistics memory(llama_seq_id of) const noexcept;
  /// Of the running policy, since it was given to the sequence: how many steps it made, and what it did in them.
  std::int64_t steps(llama_seq_id of = 0) const noexcept;
  void visit_statistics(statistic_visitor const& visit, llama_seq_id of = 0) const;

 private:
  class engine;
  std::unique_ptr<engine> engine_;
};

}  // namespace kvpolicy::llama
