// The sequences of a context whose cells a policy drops: behind each prompt the engine goes on with what is retained of it.
#pragma once

#include <kvpolicy/interop/llama/compact.hpp>

#include <cstdint>
#include <map>
#include <utility>

#include "batch_tokens.hpp"

namespace kvpolicy::preload {

class compacted_sequences {
 public:
  /// @param after  tokens of the answer that a compaction waits for
  compacted_sequences(host_policy policy, std::int64_t after) : compactor_(std::move(policy)), after_(after) {}

  void attach(llama_context_params& params, llama_model const* model) { compactor_.attach(params, model); }
  cache_shape shape() const { return compactor_.shape(); }

  /// Before a decode: compacts the batch's sequences whose prompt has ended, and whose answer has the tokens that the policy
  /// waits for. After the decode nobody would know yet which of a step's tokens stay. Throws what llama::compactor::compact
  /// throws; the sequence goes on with all of its cells then, unless it is lost.
  void before(llama_context* context, batch_tokens const& batch);
  /// After it: which prompts have ended.
  void after(llama_context* context, batch_tokens const& batch);

  /// What a sequence's last step read, and the seconds of compactions since this was asked.
  llama::step_statistics last_step(llama_memory_t memory, llama_seq_id of);
  /// The last position of a sequence's last compaction, or -1: a text that leaves what the sequence has before that must be
  /// read anew, as the cells up to there have other tokens' positions.
  llama_pos compacted(llama_seq_id of) const noexcept;
  /// Whether tokens [from, to) can be taken away, as llama_memory_seq_rm names them. Forgets what they say, if so.
  bool cut(llama_seq_id of, llama_pos from, llama_pos to);
  void keep(llama_seq_id of);
  /// The two share cells, which a compaction of one would not free: they are not compacted until most of their text is another.
  void copy(llama_memory_t memory, llama_seq_id from, llama_seq_id to);
  /// The engine restored a sequence's state, of a text that may have been compacted.
  void restored(llama_memory_t memory, llama_seq_id of);

 private:
  struct progress {
    bool answering = false;     ///< its prompt has ended
    bool waits = false;         ///< and is not compacted yet
    llama_pos shared = 0;       ///< its tokens before this one may have cells that another sequence has, too
    llama_pos prompt_end = -1;  ///< its last token
    llama_pos compacted = -1;   ///< the last one when it was compacted
    double seconds = 0;
  };

  void reset(llama_seq_id of, progress const& to);
  bool can_cut(llama_seq_id of, llama_pos from, llama_pos to) const noexcept;
  /// Whether a compaction frees most of a sequence's cells.
  static bool frees(progress const& p, llama_pos last) noexcept { return 4 * p.shared <= last + 1; }
  /// Whether a batch is a step of a sequence, not a part of a prompt: each of its tokens has an output.
  bool is_step(llama_seq_id of, batch_tokens const& batch) const noexcept;

  llama::compactor compactor_;
  std::int64_t after_;
  std::map<llama_seq_id, progress> sequences_;
};

}  // namespace kvpolicy::preload
