#include "served_context.hpp"

#include <algorithm>
#include <utility>

namespace kvpolicy::preload {

served_context::served_context(settings const& how, llama_model const* model, llama_context_params& params, log& to)
    : policy_(known_policies().parse(how.policy, facts_for(llama::sentence_ends(model)))),
      session_(policy_.policy, {.prompt_policy = how.prompts, .lenient = !how.strict}),
      log_(to) {
  session_.attach(params, model);
}

void served_context::before(std::span<llama_seq_id const> sequences) {
  if (!begun_) {
    begun_ = true;
    cache_shape const shape = session_.shape();
    if (shape.layers > 0) {
      log_.say(policy_.text + " (" + policy_.parameters + ") on " + std::to_string(shape.layers) + " layers, for up to " +
               std::to_string(shape.max_tokens) + " tokens");
    }
  }
  session_.set_batch(sequences);
  std::lock_guard const lock(counting_);
  decoding_ = true;
}

int served_context::after(std::span<llama_seq_id const> sequences, int status) {
  // The engine's status of a decode that was refused is that of one which was aborted, on which llama-server tries again.
  constexpr int compute_error = -3;
  try {
    session_.check();
  } catch (std::exception const& refusal) {
    log_.say(refusal.what());
    status = compute_error;
  }
  for (std::string const& line : session_.report()) log_.say_once(line);
  std::lock_guard const lock(counting_);
  decoding_ = false;
  decoded_ = clock::now();
  if (status != 0 || session_.shape().layers == 0) return status;
  for (auto& [of, r] : requests_) {
    // Who generates is in every batch.
    if (r.all.steps > 0 && std::ranges::count(sequences, of) != 1) end(of, r);
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    llama_seq_id const of = sequences[i];
    if (std::ranges::find(sequences.first(i), of) != sequences.first(i).end()) continue;
    auto const count = std::ranges::count(sequences, of);
    request& r = requests_[of];
    std::int64_t const steps = session_.steps(of);
    bool const stepped = steps > std::exchange(r.steps_before, steps);
    // A prompt's first piece may be one token.
    if (count == 1 && session_.last_step(of).tokens > 1) r.all.add(session_.last_step(of), !stepped);
    else r.all.prompt += count;
  }
  return status;
}

void served_context::cut(llama_seq_id of, bool removes) {
  std::lock_guard const lock(counting_);
  for (auto& [id, r] : requests_) {
    if ((of < 0 || id == of) && (removes || r.all.steps > 0)) end(id, r);
  }
}

void served_context::begin_anew() {
  std::lock_guard const lock(counting_);
  for (auto& [of, r] : requests_) end(of, r);
}

void served_context::load(llama::saved_prompt const& saved, llama_seq_id of) {
  {
    std::lock_guard const lock(counting_);
    end(of, requests_[of]);
  }
  try {
    session_.load(saved, of);
  } catch (std::exception const& refusal) {
    log_.say_once(std::string("a state that was restored: ") + refusal.what());
  }
}

void served_context::say_ended(clock::duration idle) {
  std::lock_guard const lock(counting_);
  if (decoding_ || clock::now() - decoded_ < idle) return;
  for (auto& [of, r] : requests_) {
    if (r.all.steps > 0) end(of, r);
  }
}

void served_context::end(llama_seq_id of, request& ended) {
  if (ended.all.steps > 0) log_.say(describe(of, ended.all));
  ended.all = {};
}

}  // namespace kvpolicy::preload
