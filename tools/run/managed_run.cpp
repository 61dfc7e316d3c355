#include "managed_run.hpp"

#include <chrono>

#include <kvpolicy/interop/llama/repetition.hpp>
#include <kvpolicy/presets/full.hpp>

#include "named_tier.hpp"
#include "progress.hpp"

namespace kvpolicy {
namespace {

constexpr std::int64_t cells = 1024;  // beside the windows that the engine keeps of each sequence
constexpr llama_seq_id whole = 0;     // the prompt's sequence
constexpr llama_seq_id decoded = 1;   // its copy

}  // namespace

managed_run::managed_run(run_options const& options, text_model const& model, std::int64_t longest,
                         std::int64_t observation_queries)
    : tier_(make_tier(options.tier, model.cache(longest), model.row_bytes(model.cache(longest)), model.values_as_keys())),
      session_(presets::full{},
               {.observation_queries = observation_queries,
                .cache = llama::managed_cache{.longest = longest,
                                              .tier = tier_ ? &*tier_ : nullptr,
                                              .resident = {.slots = options.tier_slots, .wait = !options.tier_async}}}) {
  llama_context_params params = model.parameters(cells + 2 * llama_model_n_swa(model.get()), options.threads, true);
  params.n_seq_max = 2;
  params.kv_unified = true;
  session_.attach(params, model.get());
  context_ = model.context(params);
}

void managed_run::prompt(std::vector<llama_token> const& tokens) {
  prompt_ = std::ssize(tokens);
  prompt_bytes_ = nlohmann::ordered_json::array();
  llama_memory_clear(llama_get_memory(context_.get()), true);
  progress_bar bar("prompt, managed cache", tokens.size());
  decode_prompt(
      context_.get(), tokens,
      [&](std::size_t done) {
        bar.show(done);
        prompt_bytes_.push_back({done, session_.memory(whole).bytes});
      },
      [&] { session_.check(); }, [&](llama_context* with, llama_batch batch) { return session_.decode(with, batch); });
}

managed_steps managed_run::decode(host_policy const& policy, std::vector<llama_token> const& tokens) {
  llama_memory_t const memory = llama_get_memory(context_.get());
  session_.use(policy, decoded);
  llama_memory_seq_rm(memory, decoded, -1, -1);
  llama_memory_seq_cp(memory, whole, decoded, -1, -1);
  session_.copy(whole, decoded);
  llama::repeat(session_, context_.get(), {}, decoded);
  managed_steps made;
  tiers::resident_statistics const before = session_.tier_statistics(decoded);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    auto const start = std::chrono::steady_clock::now();
    step(tokens[i], static_cast<llama_pos>(prompt_ + static_cast<std::int64_t>(i)));
    double const ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (i > 0) made.ms.push_back(ms);
    made.bytes.push_back(session_.memory(decoded).bytes);
  }
  made.tier = session_.tier_statistics(decoded) - before;
  return made;
}

void managed_run::step(llama_token token, llama_pos position) {
  llama_seq_id of = decoded;
  llama_seq_id* sequence = &of;
  std::int32_t one = 1;
  std::int8_t output = 1;
  int const status = session_.decode(context_.get(), {1, &token, nullptr, &position, &one, &sequence, &output});
  session_.check();
  if (status != 0) throw error("llama_decode failed with " + std::to_string(status));
}

}  // namespace kvpolicy
