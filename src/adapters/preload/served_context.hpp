// One context of the engine with a policy in it, and what its requests did.
#pragma once

#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/tiers/any_tier.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "batch_tokens.hpp"
#include "compacted_sequences.hpp"
#include "log.hpp"
#include "lossless_steps.hpp"
#include "published.hpp"
#include "request_line.hpp"
#include "settings.hpp"

namespace kvpolicy::preload {

/// Tokens of a context, and of one sequence in it.
struct context_size {
  std::uint32_t all = 0;
  std::uint32_t of_sequence = 0;
};

class served_context {
 public:
  /// Attaches to what a context will be made from; with a managed cache to a small one, for the same tokens. Throws what
  /// session::attach throws, and make_tier; leaves params alone then.
  served_context(settings const& how, llama_model const* model, llama_context_params& params, log& to);
  /// Of what was made from them. Throws what llama::lossless throws.
  void made(llama_context* context);

  /// The engine's own counters begin anew, or its memory, behind a warm-up for instance: so do these.
  void begin_anew();

  /// A sequence's end is set anew (-1: all sequences'), as before each piece of a prompt; `removes`: some of its tokens go.
  void cut(llama_seq_id of, bool removes);

  /// In the engine's place: a step of lossless decoding, or nothing where the batch is no such step. Returns the status.
  std::optional<int> step(batch_tokens const& batch);
  /// Null without lossless decoding.
  lossless_steps* lossless() noexcept { return lossless_ ? &*lossless_ : nullptr; }

  /// Around each decode. after() returns the status for the caller.
  void before(llama_context* context, batch_tokens const& batch);
  int after(llama_context* context, batch_tokens const& batch, int status);
  /// In the engine's place, for a batch that it may be told of: with a managed cache the engine does not know where a sequence
  /// ends.
  int decode(llama_context* context, llama_batch const& batch);

  /// Beside the engine's own state of a sequence. load() of what does not fit leaves the sequence to the engine.
  llama::saved_prompt save(llama_seq_id of) const { return session_.save(of); }
  void load(llama::saved_prompt const& saved, llama_seq_id of);

  /// Null unless the policy drops the engine's cells.
  compacted_sequences* compacts() noexcept { return compacted_ ? &*compacted_ : nullptr; }

  /// Whether rows are the library's, and the engine has a small context: what it would say of its cache is said here.
  bool manages_cache() const noexcept { return asked_.all > 0; }
  context_size const& asked() const noexcept { return asked_; }
  llama_pos first_position(llama_seq_id of) const noexcept;
  llama_pos last_position(llama_seq_id of) const noexcept;
  /// Its tokens from `from` on are gone; -1: of all sequences.
  void remove(llama_seq_id of, llama_pos from) noexcept;
  /// All sequences but this one.
  void keep(llama_seq_id of) noexcept;
  void copy(llama_seq_id from, llama_seq_id to);
  /// In place of the engine's state of a sequence. It stays valid until the next call of anything here. Throws what
  /// session::save_state and load_state throw.
  std::span<std::byte const> state(llama_seq_id of);
  void forget_state() noexcept { state_.reset(); }
  void load_state(std::span<std::byte const> state, llama_seq_id of);

  /// Says what the requests did that are there, where nothing was decoded for so long. Any thread.
  void say_ended(std::chrono::steady_clock::duration idle);

 private:
  using clock = std::chrono::steady_clock;
  struct request {
    request_statistics all;
    std::int64_t steps_before = 0;               ///< the session's count
    llama::lossless_statistics lossless_before;  ///< where steps are those of lossless decoding
  };
  struct saved_state {
    llama_seq_id of;
    std::vector<std::byte> bytes;
  };

  cache_shape shape() const { return compacted_ ? compacted_->shape() : session_.shape(); }
  /// Of so many tokens' rows in the engine's cache.
  std::int64_t bytes_of(double tokens) const {
    return static_cast<std::int64_t>(tokens * static_cast<double>(shape().layers * shape().kv_heads * row_bytes_));
  }
  void begin();
  void compact(llama_context* context, batch_tokens const& batch);
  void end(llama_seq_id of, request& ended);

  settings how_;
  named_host_policy policy_;
  context_size asked_;  ///< with a managed cache
  std::uint32_t sequences_;
  std::string tier_name_;
  std::optional<tiers::any_tier> tier_;
  llama::session session_;  ///< attached unless cells are compacted
  std::optional<compacted_sequences> compacted_;
  std::int64_t row_bytes_ = 0;  ///< of a token in a layer's KV head
  std::optional<lossless_steps> lossless_;
  std::optional<saved_state> state_;  ///< the last one, until something changes
  log& log_;
  bool begun_ = false;
  bool refused_ = false;  ///< a compaction of the batch, which is to fail then
  bool told_ = false;     ///< why one was
  std::mutex counting_;
  std::map<llama_seq_id, request> requests_;
  bool decoding_ = false;
  clock::time_point decoded_{};  ///< the last time
};

}  // namespace kvpolicy::preload
