// One context of the engine with a policy in it, and what its requests did.
#pragma once

#include <kvpolicy/interop/llama.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "log.hpp"
#include "published.hpp"
#include "request_line.hpp"
#include "settings.hpp"

namespace kvpolicy::preload {

class served_context {
 public:
  /// Attaches to what a context will be made from. Throws what session::attach throws, and leaves params alone then.
  served_context(settings const& how, llama_model const* model, llama_context_params& params, log& to);

  /// The engine's own counters begin anew, or its memory, behind a warm-up for instance: so do these.
  void begin_anew();

  /// A sequence's end is set anew (-1: all sequences'), as before each piece of a prompt; `removes`: some of its tokens go.
  void cut(llama_seq_id of, bool removes);

  /// Around each decode: the (first) sequence of each of its tokens, in order. after() returns the status for the caller.
  void before(std::span<llama_seq_id const> sequences);
  int after(std::span<llama_seq_id const> sequences, int status);

  /// Beside the engine's own state of a sequence. load() of what does not fit leaves the sequence to the engine.
  llama::saved_prompt save(llama_seq_id of) const { return session_.save(of); }
  void load(llama::saved_prompt const& saved, llama_seq_id of);

  /// Says what the requests did that are there, where nothing was decoded for so long. Any thread.
  void say_ended(std::chrono::steady_clock::duration idle);

 private:
  using clock = std::chrono::steady_clock;
  struct request {
    request_statistics all;
    std::int64_t steps_before = 0;  ///< the session's count
  };

  void end(llama_seq_id of, request& ended);

  named_host_policy policy_;
  llama::session session_;
  log& log_;
  bool begun_ = false;
  std::mutex counting_;
  std::map<llama_seq_id, request> requests_;
  bool decoding_ = false;
  clock::time_point decoded_{};  ///< the last time
};

}  // namespace kvpolicy::preload
