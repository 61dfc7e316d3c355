#include "served_context.hpp"

#include <kvpolicy/presets/full.hpp>

#include <algorithm>
#include <utility>

#include "named_tier.hpp"

namespace kvpolicy::preload {
namespace {

constexpr int compute_error = -3;  // the engine's, for which llama-server ends the requests of a batch

constexpr std::uint32_t padded(std::uint32_t tokens) noexcept { return (tokens + 255) / 256 * 256; }

/// As the engine reckons with it.
context_size size_of(llama_context_params const& params, llama_model const* model) noexcept {
  std::uint32_t const sequences = std::max(params.n_seq_max, 1u);
  std::uint32_t const all =
      padded(params.n_ctx != 0 ? params.n_ctx : static_cast<std::uint32_t>(llama_model_n_ctx_train(model)));
  if (params.kv_unified) return {all, all};
  std::uint32_t const of_sequence = padded(all / sequences);
  return {of_sequence * sequences, of_sequence};
}

/// For batches as large as before, beside the few cells that each sequence keeps. One cache for all: streams of their own would
/// have to hold a batch each.
llama_context_params small(llama_context_params params, context_size const& asked) noexcept {
  params.n_batch = std::min(params.n_batch, asked.all);
  params.n_ctx = params.n_batch + static_cast<std::uint32_t>(llama::cells_kept) * std::max(params.n_seq_max, 1u);
  params.kv_unified = true;
  return params;
}

std::int64_t bytes_of_row(llama_context_params const& params, cache_shape const& shape) noexcept {
  return static_cast<std::int64_t>(ggml_row_size(params.type_k, shape.head_dim) +
                                   ggml_row_size(params.type_v, shape.values_dim()));
}

std::optional<tiers::any_tier> tier_of(std::string const& name, llama_context_params params, llama_model const* model,
                                       context_size const& asked) {
  if (name.empty()) return std::nullopt;
  llama::session any(presets::full{});  // to see the model's layers
  llama_context_params const before = params;
  any.attach(params, model);
  cache_shape shape = any.shape();
  shape.max_tokens = std::int64_t{asked.of_sequence} * std::max(params.n_seq_max, 1u);
  return make_tier(name, shape, bytes_of_row(before, shape), before.type_k == before.type_v);
}

named_host_policy policy_of(settings const& how, policy_inputs const& inputs) {
  if (how.policy != "lossless") return known_policies().parse(how.policy, inputs);
  return {.name = "lossless",
          .text = "lossless",
          .parameters = "drafts read what the last verified tokens attended to",
          .policy = erase<layer_table_view, simd_exec>(llama::verified_draft{})};
}

llama::session_options session_options_of(settings const& how, context_size const& asked, tiers::any_tier* tier) {
  llama::session_options made{.prompt_policy = how.prompts, .lenient = !how.strict && !how.managed_cache};
  if (how.managed_cache) made.cache = llama::managed_cache{.longest = asked.of_sequence, .tier = tier};
  return made;
}

}  // namespace

served_context::served_context(settings const& how, llama_model const* model, llama_context_params& params, log& to)
    : how_(how),
      policy_(policy_of(how, inputs_for(llama::sentence_ends(model)))),
      asked_(how.managed_cache ? size_of(params, model) : context_size{}),
      sequences_(std::max(params.n_seq_max, 1u)),
      tier_name_(how.tier),
      tier_(tier_of(how.tier, params, model, asked_)),
      session_(policy_.policy, session_options_of(how, asked_, tier_ ? &*tier_ : nullptr)),
      log_(to) {
  if (how.compact) {
    if (params.embeddings) throw unsupported("a compaction of embeddings' texts, behind which nothing is generated");
    compacted_.emplace(policy_.policy, how.after);
    compacted_->attach(params, model);
    row_bytes_ = bytes_of_row(params, shape());
    return;
  }
  if (manages_cache() && (llama_model_is_hybrid(model) || llama_model_n_swa(model) > 0))
    throw unsupported(
        "a program saves and restores sequences, and a managed cache has no states of models with recurrent layers or sliding "
        "windows; leave managed-cache away");
  llama_context_params made = manages_cache() ? small(params, asked_) : params;
  if (how.lossless && params.embeddings) throw unsupported("lossless decoding gives logits, and no embeddings");
  if (how.lossless) {
    // A verification has an output for each token. Samplers inside the engine would sample each draft.
    auto const room = [](std::uint32_t asked, std::uint32_t least) { return asked == 0 ? 0 : std::max(asked, least); };
    constexpr auto most = static_cast<std::uint32_t>(most_step_tokens);
    made.n_outputs_max = room(made.n_outputs_max, most * sequences_);
    made.n_outputs_max_per_seq = room(made.n_outputs_max_per_seq, most);
    made.samplers = nullptr;
    made.n_samplers = 0;
  }
  session_.attach(made, model);
  row_bytes_ = bytes_of_row(params, shape());
  params = made;
}

void served_context::made(llama_context* context) {
  if (!how_.lossless) return;
  llama::lossless_options options{};
  if (how_.drafts) options.drafts = *how_.drafts, options.adapt = false;
  lossless_.emplace(session_, context, options);
}

std::optional<int> served_context::step(batch_tokens const& batch) {
  if (!lossless_) return std::nullopt;
  if (!lossless_->takes(batch)) {
    lossless_->leave();
    return std::nullopt;
  }
  if (!begun_) begin();
  {
    std::lock_guard const lock(counting_);
    decoding_ = true;
  }
  bool decoded = true;
  try {
    lossless_->decode(batch);
  } catch (std::exception const& why) {
    log_.say_once(std::string("lossless decoding: ") + why.what() + "; the engine decodes this batch");
    decoded = false;
  }
  std::lock_guard const lock(counting_);
  decoding_ = false;
  decoded_ = clock::now();
  if (!decoded) {  // the engine says how it fails itself, should it
    lossless_->leave();
    return std::nullopt;
  }
  for (auto& [of, r] : requests_) {
    if (std::ranges::find(batch.sequences, of) == batch.sequences.end()) end(of, r);
  }
  for (llama_seq_id const of : batch.sequences) ++requests_[of].all.steps;
  return 0;
}

/// Said before the first decode: the engine and its program have said by then what they are.
void served_context::begin() {
  begun_ = true;
  if (compacted_) {
    std::string const waits = how_.after == 0 ? "" : " and " + std::to_string(how_.after) + " tokens of its answer";
    return log_.say(how_.said + " compacts the engine's cells behind each prompt" + waits);
  }
  if (shape().layers == 0) return;
  log_.say(policy_.text + " (" + policy_.parameters + ") on " + std::to_string(shape().layers) + " layers, for up to " +
           std::to_string(shape().max_tokens) + " tokens" + (manages_cache() ? ", with a managed cache" : "") +
           (tier_ ? " in " + tier_name_ : ""));
}

void served_context::before(llama_context* context, batch_tokens const& batch) {
  if (!begun_) begin();
  if (compacted_) return compact(context, batch);
  state_.reset();
  session_.set_batch(batch.sequences, batch.outputs,
                     lossless_ ? llama::batch_reading::everything_as_prompt : llama::batch_reading::by_policy);
  std::lock_guard const lock(counting_);
  decoding_ = true;
}

int served_context::decode(llama_context* context, llama_batch const& batch) {
  try {
    return session_.decode(context, batch);
  } catch (std::exception const& refusal) {
    log_.say(refusal.what());
    return compute_error;
  }
}

int served_context::after(llama_context* context, batch_tokens const& batch, int status) {
  std::span const sequences = batch.sequences;
  if (manages_cache()) {
    session_.give_back(context, sequences);
    session_.give_back(context, batch.others);
  }
  if (compacted_) {
    if (status == 0) compacted_->after(context, batch);
    if (std::exchange(refused_, false)) status = compute_error;
  } else {
    // The engine's status of a decode that was refused is that of one which was aborted, on which llama-server tries again.
    try {
      session_.check();
    } catch (std::exception const& refusal) {
      log_.say(refusal.what());
      status = compute_error;
    }
    for (std::string const& line : session_.report()) log_.say_once(line);
  }
  std::lock_guard const lock(counting_);
  decoding_ = false;
  decoded_ = clock::now();
  if (status != 0 || shape().layers == 0) return status;
  for (auto& [of, r] : requests_) {
    // Who generates is in every batch.
    if (r.all.steps > 0 && std::ranges::count(sequences, of) != 1) end(of, r);
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    llama_seq_id const of = sequences[i];
    if (std::ranges::find(sequences.first(i), of) != sequences.first(i).end()) continue;
    auto const count = std::ranges::count(sequences, of);
    request& r = requests_[of];
    std::int64_t const steps = compacted_ ? 0 : session_.steps(of);
    bool const stepped = compacted_ || steps > std::exchange(r.steps_before, steps);
    llama::step_statistics const last =
        compacted_ ? compacted_->last_step(llama_get_memory(context), of) : session_.last_step(of);
    // A prompt's first piece may be one token.
    if (count == 1 && batch.has_output(i) && last.tokens > 1) r.all.add(last, !stepped);
    else r.all.prompt += count;
    r.all.bytes = manages_cache() ? session_.memory(of).bytes
                                  : bytes_of(compacted_ ? last.tokens_read : static_cast<double>(last.tokens));
  }
  return status;
}

void served_context::compact(llama_context* context, batch_tokens const& batch) {
  {
    std::lock_guard const lock(counting_);
    decoding_ = true;
  }
  try {
    compacted_->before(context, batch);
  } catch (llama::sequence_lost const& why) {
    log_.say(why.what());
    refused_ = true;
  } catch (std::exception const& why) {
    // Most later ones differ by numbers alone.
    if (!std::exchange(told_, true))
      log_.say(std::string(why.what()) + (how_.strict ? "" : "; the request goes on with all of its cells"));
    refused_ = how_.strict;
  }
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

llama_pos served_context::first_position(llama_seq_id of) const noexcept {
  // Where some of a text is gone, as with a sliding window's rows: a server reads another one anew that leaves it before.
  return session_.tokens(of) == 0 ? -1 : static_cast<llama_pos>(std::max<std::int64_t>(session_.goes_on_from(of) - 1, 0));
}

llama_pos served_context::last_position(llama_seq_id of) const noexcept {
  return static_cast<llama_pos>(session_.tokens(of) - 1);
}

void served_context::remove(llama_seq_id of, llama_pos from) noexcept {
  state_.reset();
  for (llama_seq_id id = std::max(of, 0); id < (of < 0 ? static_cast<llama_seq_id>(sequences_) : of + 1); ++id)
    session_.cut(id, from);
}

void served_context::keep(llama_seq_id of) noexcept {
  for (llama_seq_id id = 0; id < static_cast<llama_seq_id>(sequences_); ++id) {
    if (id != of) remove(id, 0);
  }
}

void served_context::copy(llama_seq_id from, llama_seq_id to) {
  state_.reset();
  session_.copy(from, to);
}

std::span<std::byte const> served_context::state(llama_seq_id of) {
  // Its size is asked for first.
  if (!state_ || state_->of != of) state_ = {of, session_.save_state(policy_.text, of)};
  return state_->bytes;
}

void served_context::load_state(std::span<std::byte const> state, llama_seq_id of) {
  session_.load_state(state, policy_.text, of);
  state_.reset();
  std::lock_guard const lock(counting_);
  requests_[of].steps_before = session_.steps(of);
}

void served_context::say_ended(clock::duration idle) {
  std::lock_guard const lock(counting_);
  if (decoding_ || clock::now() - decoded_ < idle) return;
  for (auto& [of, r] : requests_) {
    if (r.all.steps > 0) end(of, r);
  }
}

void served_context::end(llama_seq_id of, request& ended) {
  if (lossless_) {
    llama::lossless_statistics const now = lossless_->statistics(of);
    if (now.tokens > ended.lossless_before.tokens) log_.say(describe(of, now, ended.lossless_before));
    ended.lossless_before = now;
  } else if (ended.all.steps > 0) {
    log_.say(describe(of, ended.all));
  }
  ended.all = {};
}

}  // namespace kvpolicy::preload
