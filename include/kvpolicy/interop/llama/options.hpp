// How a session in llama.cpp runs its policies.
#pragma once

#include <llama.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "kvpolicy/exec/host_policy.hpp"
#include "kvpolicy/prompt_pages.hpp"
#include "kvpolicy/tiers/any_tier.hpp"
#include "kvpolicy/tiers/resident_options.hpp"

namespace kvpolicy::llama {

/// A cache whose rows the session holds itself, so that it frees the rows that a policy drops. See session::decode().
struct managed_cache {
  std::int64_t longest = 0;  ///< most tokens of a sequence; 0: as many as the model was trained for
  std::int64_t memory = 0;   ///< most bytes of all sequences' rows; 0: what all of them could need
  /// Drops rows after each piece of a prompt, so that memory stays flat. A policy that retains all drops none.
  /// It chooses among the rows that it left before and the piece's own, and a piece's tokens attend to no more than these. The
  /// session's policy decides in the end among the rows that are left, so this policy usually retains more.
  host_policy between_pieces{};
  /// Takes a prompt's retained rows when the prompt ends, except the most recently read; null: they stay in memory.
  /// Its blocks hold a key and a value; sequence s is request `resident.request + s`. A prompt that goes on has the rows of one
  /// layer at a time in memory (under chess, of all layers). The tier must outlive the session.
  tiers::any_tier* tier = nullptr;
  tiers::resident_options resident{};  ///< how rows come from the tier
};

/// How a session runs its policies.
struct session_options {
  /// The least prompt queries to keep, for a later policy that needs more than this one; all_queries: every one.
  /// They take `layers * tokens * q_heads * head_dim` floats.
  std::int64_t observation_queries = 0;
  /// Whether the session computes the attention of prompts too, by the primitive attend_block; else the engine does.
  bool prompts = true;
  /// What prompts read while they are read; none: all tokens before each. Needs `prompts`.
  std::optional<prompt_pages> prompt_policy{};
  /// Whether a context that would run without the session runs with it; else what can't be served is refused.
  /// The engine then does what the session can't serve, at attach or later, and report() says so. A sequence that the session
  /// can't serve attends to all of its tokens until its next prompt; others go on.
  bool lenient = false;
  /// Called in every step for each layer with the chosen tokens, on one of the engine's threads.
  std::function<void(llama_seq_id, layer_id, std::int64_t tokens, selection const&)> on_choice{};
  /// Called before each choice with its inputs, the first token's of a step of several, on one of the engine's threads. With a
  /// tier, some rows are absent.
  std::function<void(llama_seq_id, layer_id, layer_table_view const&, query_heads const&, simd_exec&)> on_queries{};
  /// The rows' place in the session; none: the engine holds them. Needs `prompts`, and excludes `lenient`.
  std::optional<managed_cache> cache{};
};

}  // namespace kvpolicy::llama
