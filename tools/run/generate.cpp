#include "generate.hpp"

#include <kvpolicy/interop/llama/lossless.hpp>
#include <kvpolicy/interop/llama/repetition.hpp>
#include <kvpolicy/text/prompt_policy.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <span>

#include "lossless_runs.hpp"
#include "named_tier.hpp"
#include "output_file.hpp"
#include "progress.hpp"
#include "read_file.hpp"
#include "recorder.hpp"
#include "tier_json.hpp"

namespace kvpolicy {

namespace {

std::string whole_text(text_model const& model, run_options const& options, prompt_text const& prompt) {
  return (options.chat && !prompt.text.empty() ? model.as_chat(prompt.text) : prompt.text) + options.answer_prefix;
}

/// Of the whole process, model and engine included.
std::int64_t peak_memory_bytes() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return std::int64_t{used.ru_maxrss} * 1024;
}
std::int64_t memory_bytes() {
  std::ifstream status("/proc/self/statm");
  std::int64_t pages = 0;
  status >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

/// Over a request: after each batch of the prompt and each step.
class memory_over_time {
 public:
  void see(llama::session const& session) {
    made_.push_back(
        {{"ms", milliseconds_since(begun_)}, {"process_bytes", memory_bytes()}, {"rows_bytes", session.memory().bytes}});
  }
  nlohmann::ordered_json const& result() const noexcept { return made_; }

 private:
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  nlohmann::ordered_json made_ = nlohmann::ordered_json::array();
};

}  // namespace

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void write_token(text_model const& model, llama_token token, std::string& answer) {
  std::string const piece = model.text_of(token);
  answer += piece;
  std::fputs(piece.c_str(), stdout);
  std::fflush(stdout);
}
void write_end() {
  std::fputs("\n", stdout);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw error("standard output could not be written whole");
}

std::optional<std::pair<std::size_t, std::size_t>> marked_tokens(text_model const& model, run_options const& options,
                                                                 prompt_text const& prompt) {
  std::string const text = whole_text(model, options, prompt);
  std::size_t const at = options.mark.empty() ? std::string::npos : text.find(options.mark);
  if (at == std::string::npos) return std::nullopt;
  auto const tokens_before = [&](std::size_t end) { return model.tokens_of(text.substr(0, end), options.chat).size(); };
  return std::pair{tokens_before(at), tokens_before(at + options.mark.size())};
}

std::vector<llama_token> prompt_tokens(text_model const& model, run_options const& options, prompt_text const& prompt) {
  std::string const text = whole_text(model, options, prompt);
  std::vector<llama_token> tokens = model.tokens_of(text, options.chat);
  if (tokens.empty() || prompt.text.empty()) throw invalid_value("the prompt '" + prompt.name + "' has no tokens");
  return tokens;
}

std::int64_t repetition_tokens(run_options const& options) {
  bool const repeats = std::ranges::any_of(
      options.policies, [](named_host_policy const& p) { return contains(needs_of(p.policy), signals::repetition); });
  return repeats ? llama::repetition_room : 0;
}

std::int64_t context_tokens(text_model const& model, run_options const& options, std::size_t longest_prompt) {
  auto const needed = static_cast<std::int64_t>(longest_prompt) + options.predict;
  std::string const what = "the prompt has " + std::to_string(longest_prompt) + " tokens; with " +
                           std::to_string(options.predict) + " to predict it needs " + std::to_string(needed) + ", ";
  if (options.managed_cache) {
    if (needed > model.trained_context()) {
      std::cerr << "kvpolicy-run: " << what << "the model was trained for " << model.trained_context()
                << "; its answers will suffer\n";
    }
    return options.context != 0 ? options.context : 1024;
  }
  if (needed > model.trained_context()) {
    throw invalid_value(what + "the model's context has " + std::to_string(model.trained_context()) + "; shorten one of them");
  }
  if (options.context > model.trained_context()) {
    throw invalid_value("--ctx " + std::to_string(options.context) + " is above the model's context of " +
                        std::to_string(model.trained_context()));
  }
  if (options.context != 0 && needed > options.context) {
    throw invalid_value(what + "--ctx gives " + std::to_string(options.context) + "; raise it or shorten the prompt");
  }
  // Room for the policies' default budgets too, and for a repetition of the prompt.
  std::int64_t const most = std::max(needed, static_cast<std::int64_t>(longest_prompt) + repetition_tokens(options));
  return options.context != 0 ? options.context
                              : std::min(model.trained_context(), std::max<std::int64_t>(2048, (most + 255) / 256 * 256));
}

void warn_of_idle(std::string const& policy, nlohmann::ordered_json const& at_work) {
  if (at_work.value("following_heads", 1.) > 0) return;
  std::cerr
      << "kvpolicy-run: under " << policy
      << " no head follows what the answer attends to: " << at_work["whole_heads"].get<long>() << " are read whole, "
      << at_work["fixed_heads"].get<long>()
      << " keep what the prompt's end chose; use watch=all, raise the budget, or profile the model with a lower --tau-sim\n";
}

nlohmann::ordered_json prompt_json(std::optional<prompt_pages> const& policy, llama::prompt_statistics const& read) {
  nlohmann::ordered_json made{{"attend_ms", 1e3 * read.attend_seconds}};
  if (!policy) return made;
  made.update({{"policy", prompt_pages::name},
               {"parameters", text::print_parameters(*policy)},
               {"read_share", read.pairs > 0 ? read.read / read.pairs : 1},
               {"choose_ms", 1e3 * read.choose_seconds}});
  return made;
}

/// Null where rows are the engine's.
nlohmann::ordered_json memory_json(llama::memory_statistics const& of) {
  if (of.limit == 0) return nullptr;
  return {{"rows", of.rows}, {"bytes", of.bytes}, {"most_bytes", of.most_bytes}, {"limit_bytes", of.limit}};
}

void generate(run_options const& options) {
  text_model const model(options.model, {cache_type_of(options.key_type), cache_type_of(options.value_type)});
  named_host_policy const chosen =
      options.policies.empty() ? named_host_policy{.name = "verified",
                                                   .text = {},
                                                   .parameters = {},
                                                   .policy = erase<layer_table_view, simd_exec>(llama::verified_draft{})}
                               : options.known.parse(options.policies.front().text, model.inputs());
  std::vector<llama_token> prompt = prompt_tokens(model, options, options.prompts.front());
  if (!options.load_state.empty() && prompt.size() > 1 && model.begins(prompt.front())) prompt.erase(prompt.begin());
  std::optional<output_file> trace;
  if (!options.trace.empty()) trace.emplace(options.trace);
  std::optional<output_file> json;
  if (!options.json.empty()) json.emplace(options.json);
  std::optional<output_file> saved;
  if (!options.save_state.empty()) saved.emplace(options.save_state);

  recorder watch;
  if (trace || json) {
    watch.start(chosen.name, options.prompts.front().name, static_cast<std::int64_t>(prompt.size()),
                trace ? &trace->stream() : nullptr, 0, 0);
  }
  double watching_ms = 0;  // not the policy's: taken off each step's time
  llama::session_options session_options;
  session_options.on_choice = [&](llama_seq_id, layer_id layer, std::int64_t tokens, selection const& kept) {
    auto const start = std::chrono::steady_clock::now();
    watch(layer, tokens, kept);
    watching_ms += milliseconds_since(start);
  };
  session_options.prompt_policy = options.prompt_policy;
  std::int64_t const context_size = context_tokens(model, options, prompt.size());
  std::int64_t const behind = std::max<std::int64_t>(options.predict, repetition_tokens(options));
  std::int64_t const needed = (static_cast<std::int64_t>(prompt.size()) + behind + 255) / 256 * 256;
  std::int64_t const longest = options.longest != 0 ? options.longest : needed;
  host_policy between_pieces{};
  if (!options.between_pieces.empty()) between_pieces = options.known.parse(options.between_pieces, model.inputs()).policy;
  std::optional<tiers::any_tier> row_tier =
      make_tier(options.tier, model.cache(longest), model.row_bytes(model.cache(longest).head_dim), model.values_as_keys());
  if (options.managed_cache) {
    llama::managed_cache cache{.longest = longest,
                               .memory = options.memory,
                               .tier = row_tier ? &*row_tier : nullptr,
                               .resident = {.slots = options.tier_slots, .wait = !options.tier_async}};
    cache.between_pieces = between_pieces;
    session_options.cache = std::move(cache);
  }
  auto session = std::make_unique<llama::session>(chosen.policy, session_options);
  llama_context_params params = model.parameters(context_size, options.threads, true);
  session->attach(params, model.get());
  context_ptr const context = model.context(params);
  std::string const policy_text = chosen.name + ":" + chosen.parameters;
  if (!options.load_state.empty()) {
    std::string const state = read_file(options.load_state);
    session->load_state(std::as_bytes(std::span(state)), policy_text);
  }
  std::optional<llama::lossless> fast;
  if (options.lossless) fast.emplace(*session, context.get(), lossless_options_of(options.drafts));
  auto const failed = [&] { session->check(); };

  decode_function const decode = [&](llama_context* with, llama_batch batch) { return session->decode(with, batch); };
  memory_over_time memory;
  memory.see(*session);
  auto const begun = std::chrono::steady_clock::now();
  {
    progress_bar bar("prompt", prompt.size());
    auto const done = [&](std::size_t tokens) { bar.show(tokens), memory.see(*session); };
    decode_prompt(context.get(), prompt, done, failed, decode);
  }
  double const first_token_ms = milliseconds_since(begun);
  std::span<float const> logits = last_logits(context.get(), model);
  std::vector<float> const of_prompt(logits.begin(), logits.end());
  if (repetition_tokens(options) > 0 && options.load_state.empty()) {
    llama::repeat(*session, context.get());
    logits = of_prompt;
  }
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  std::string answer;
  for (int i = 0; i < options.predict; ++i) {
    llama_token const token = likeliest(logits);
    if (model.ends(token)) break;
    write_token(model, token, answer);
    if (i + 1 == options.predict && !saved) break;  // the next run's prompt comes behind it
    watching_ms = 0;
    auto const start = std::chrono::steady_clock::now();
    if (fast) {
      logits = fast->decode(token);
    } else {
      decode_token(context.get(), token, failed, decode);
      logits = last_logits(context.get(), model);
    }
    double const ms = milliseconds_since(start) - watching_ms;
    llama::step_statistics const& step = session->last_step();
    memory.see(*session);
    steps.push_back({{"tokens", step.tokens},
                     {"tokens_read", step.tokens_read},
                     {"ms", ms},
                     {"choose_ms", 1e3 * step.choose_seconds},
                     {"fetch_ms", 1e3 * step.fetch_seconds},
                     {"attend_ms", 1e3 * step.attend_seconds}});
  }
  if (saved) {
    std::vector<std::byte> const state = session->save_state(policy_text);
    saved->stream().write(reinterpret_cast<char const*>(state.data()), std::ssize(state));
  }
  write_end();
  nlohmann::ordered_json const at_work = watch.at_work(*session);
  warn_of_idle(chosen.name, at_work);
  if (json) {
    json->stream() << nlohmann::ordered_json{{"policy", chosen.name},
                                             {"parameters", chosen.parameters},
                                             {"prompt_tokens", prompt.size()},
                                             {"first_token_ms", first_token_ms},
                                             {"prompt", prompt_json(options.prompt_policy, session->prompts())},
                                             {"peak_memory_bytes", peak_memory_bytes()},
                                             {"rows", memory_json(session->memory())},
                                             {"memory", memory.result()},
                                             {"answer", answer},
                                             {"tier", tier_json(options.tier, session->tier_statistics())},
                                             {"at_work", at_work},
                                             {"lossless", fast ? lossless_json(fast->statistics()) : nullptr},
                                             {"steps", steps}}
                          .dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                   << '\n';
    json->commit();
  }
  if (trace) trace->commit();
  if (saved) saved->commit();
}

}  // namespace kvpolicy
