// Lossless decoding in llama.cpp: drafts under a policy, verified by one batch that reads everything.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <span>

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/interop/llama.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/scorers/window_attention.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::llama {

/// The usual draft policy: drafts read what the last verified tokens attended to, and the tokens since. Between verifications
/// nothing is scored. Source: PillarAttn (SparseSpec).
struct verified_draft {
  std::int32_t tokens = 512;  ///< tokens that each KV head of a draft reads
  std::int32_t window = 8;    ///< last verified tokens whose attention counts
  std::int32_t sinks = 4;     ///< first tokens, always read
  std::int32_t recent = 64;   ///< last tokens, always read

  constexpr auto parts() const {
    return policy{keep_all{},
                  keep{segments::tokens{}, pools::none{},
                       scorers::window_attention{.window = window, .smooth = {.how = smoothing::kind::average, .width = 5}},
                       budgets::tokens{.count = tokens}, selectors::top{}, windows::tokens{.sinks = sinks, .recent = recent},
                       triggers::prefill{}}};
  }
};

/// How a request drafts.
struct lossless_options {
  std::int32_t drafts = 7;    ///< most drafts of a round; 0: none
  std::int32_t renewed = 32;  ///< tokens after which the policy takes a verification for a prompt's end, and chooses anew by it
  bool adapt = true;          ///< draft fewer, or none, where that is faster by the times and acceptance measured so far
  std::int32_t shortest = 2048;  ///< tokens of a sequence from which on drafts are tried, if the number adapts
};

/// What lossless decoding did to one sequence.
struct lossless_statistics {
  std::int64_t tokens = 0;    ///< tokens given to decode()
  std::int64_t rounds = 0;    ///< verifying batches
  std::int64_t drafted = 0;   ///< drafts
  std::int64_t accepted = 0;  ///< drafts that the caller's own tokens turned out to be
  double draft_seconds = 0;   ///< a batch of several sequences counts whole for each
  double verify_seconds = 0;
};

/// A token, and its sequence.
struct lossless_token {
  llama_token token = 0;
  llama_seq_id sequence = 0;
};

/// Decodes what dense decoding decodes, in long contexts in less time. Give decode() each token that your sampler takes, greedy
/// or not: it returns the logits of dense attention behind it. A call drafts the tokens behind it under the session's policy,
/// verifies all in one batch, and keeps their logits: while your sampler takes the drafted tokens, the next calls compute
/// nothing. Not thread-safe. After decode(), the context may hold drafts that nobody took: call settle() before anything else
/// is done to a sequence (a prompt, a copy, a save). Source: drafting with sparse attention over the model's own cache,
/// TriForce (arXiv 2404.11912), MagicDec (2408.11049).
class lossless {
 public:
  /// Prepares lossless decoding.
  /// @param with  attached to the context's parameters, with the draft policy, which keeps every row
  /// @param context  the context; both must outlive this object
  /// @param options  how to draft
  /// @throws invalid_value for fewer than 0 drafts, or more than a verifying batch holds: most_step_tokens - 1
  /// @throws unsupported with a managed cache, for a policy that drops rows, and for a model whose sequences can't be cut
  lossless(session& with, llama_context* context, lossless_options const& options = {});
  ~lossless();
  lossless(lossless const&) = delete;
  lossless& operator=(lossless const&) = delete;

  /// Decodes one token behind what its sequence holds.
  /// @param token  the token
  /// @param of  its sequence
  /// @return `[vocabulary]` logits behind it, valid until the next call for this sequence
  /// @throws error if llama_decode fails: the reason of the session, if it has one. The sequence then holds what it held before
  std::span<float const> decode(llama_token token, llama_seq_id of = 0);
  /// Decodes a token of each of several sequences, drafts and verifications in common batches.
  /// @param tokens  at most one of each sequence; logits() has what is behind them
  /// @throws error as above
  void decode(std::span<lossless_token const> tokens);
  /// Returns the logits behind a sequence's last token.
  /// @param of  a sequence that was decoded
  /// @return `[vocabulary]`, valid until the next call for this sequence
  std::span<float const> logits(llama_seq_id of = 0) const;

  /// Removes drafts that nobody took from the context.
  /// @param of  the sequence
  void settle(llama_seq_id of = 0);
  /// Removes those of every sequence.
  void settle_all();

  /// Returns how many tokens a sequence has, without drafts that nobody took.
  /// @param of  the sequence
  std::int64_t tokens(llama_seq_id of = 0) const;
  /// Returns what happened to a sequence so far.
  /// @param of  the sequence
  lossless_statistics statistics(llama_seq_id of = 0) const noexcept;

 private:
  class rounds;
  std::unique_ptr<rounds> rounds_;
};

}  // namespace kvpolicy::llama
