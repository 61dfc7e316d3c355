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

namespace {

/// One prompt and its answer.
class generation {
 public:
  explicit generation(run_options const& options)
      : options_(options),
        model_(options.model, {cache_type_of(options.key_type), cache_type_of(options.value_type)}),
        chosen_(chosen()),
        prompt_(prompt()) {
    if (!options.trace.empty()) trace_.emplace(options.trace);
    if (!options.json.empty()) json_.emplace(options.json);
    if (!options.save_state.empty()) saved_.emplace(options.save_state);
    if (trace_ || json_) {
      watch_.start(chosen_.name, options.prompts.front().name, static_cast<std::int64_t>(prompt_.size()),
                   trace_ ? &trace_->stream() : nullptr, 0, 0);
    }
    open();
  }

  void run() {
    std::span<float const> const logits = read_prompt();
    answer(logits);
    if (saved_) {
      std::vector<std::byte> const state = session_->save_state(policy_text());
      saved_->stream().write(reinterpret_cast<char const*>(state.data()), std::ssize(state));
    }
    write_end();
    report();
  }

 private:
  named_host_policy chosen() const {
    if (!options_.policies.empty()) return options_.known.parse(options_.policies.front().text, model_.inputs());
    return {.name = "verified",
            .text = {},
            .parameters = {},
            .policy = erase<layer_table_view, simd_exec>(llama::verified_draft{})};
  }
  std::vector<llama_token> prompt() const {
    std::vector<llama_token> made = prompt_tokens(model_, options_, options_.prompts.front());
    if (!options_.load_state.empty() && made.size() > 1 && model_.begins(made.front())) made.erase(made.begin());
    return made;
  }
  std::string policy_text() const { return chosen_.name + ":" + chosen_.parameters; }

  /// Makes the session and its context.
  void open() {
    llama::session_options settings{.prompt_policy = options_.prompt_policy};
    settings.on_choice = [this](llama_seq_id, layer_id layer, std::int64_t tokens, selection const& kept) {
      auto const start = std::chrono::steady_clock::now();
      watch_(layer, tokens, kept);
      watching_ms_ += milliseconds_since(start);
    };
    if (options_.managed_cache) settings.cache = managed_cache();
    session_.emplace(chosen_.policy, settings);
    llama_context_params params = model_.parameters(context_tokens(model_, options_, prompt_.size()), options_.threads, true);
    session_->attach(params, model_.get());
    context_ = model_.context(params);
    if (!options_.load_state.empty()) {
      std::string const state = read_file(options_.load_state);
      session_->load_state(std::as_bytes(std::span(state)), policy_text());
    }
    if (options_.lossless) fast_.emplace(*session_, context_.get(), lossless_options_of(options_.drafts));
  }
  llama::managed_cache managed_cache() {
    std::int64_t const behind = std::max<std::int64_t>(options_.predict, repetition_tokens(options_));
    std::int64_t const needed = (static_cast<std::int64_t>(prompt_.size()) + behind + 255) / 256 * 256;
    std::int64_t const longest = options_.longest != 0 ? options_.longest : needed;
    tier_ = make_tier(options_.tier, model_.cache(longest), model_.row_bytes(model_.cache(longest)), model_.values_as_keys());
    llama::managed_cache made{.longest = longest,
                              .memory = options_.memory,
                              .tier = tier_ ? &*tier_ : nullptr,
                              .resident = {.slots = options_.tier_slots, .wait = !options_.tier_async}};
    if (!options_.between_pieces.empty())
      made.between_pieces = options_.known.parse(options_.between_pieces, model_.inputs()).policy;
    return made;
  }

  /// Returns the logits behind the prompt.
  std::span<float const> read_prompt() {
    memory_.see(*session_);
    auto const begun = std::chrono::steady_clock::now();
    {
      progress_bar bar("prompt", prompt_.size());
      auto const done = [&](std::size_t tokens) {
        bar.show(tokens);
        memory_.see(*session_);
      };
      decode_prompt(
          context_.get(), prompt_, done, [this] { session_->check(); }, decode_);
    }
    first_token_ms_ = milliseconds_since(begun);
    std::span<float const> const logits = last_logits(context_.get(), model_);
    if (repetition_tokens(options_) == 0 || !options_.load_state.empty()) return logits;
    of_prompt_.assign(logits.begin(), logits.end());
    llama::repeat(*session_, context_.get());
    return of_prompt_;
  }

  void answer(std::span<float const> logits) {
    for (int i = 0; i < options_.predict; ++i) {
      llama_token const token = likeliest(logits);
      if (model_.ends(token)) break;
      write_token(model_, token, answer_);
      if (i + 1 == options_.predict && !saved_) break;  // the next run's prompt comes behind it
      watching_ms_ = 0;
      auto const start = std::chrono::steady_clock::now();
      logits = step(token);
      double const ms = milliseconds_since(start) - watching_ms_;
      llama::step_statistics const& last = session_->last_step();
      memory_.see(*session_);
      steps_.push_back({{"tokens", last.tokens},
                        {"tokens_read", last.tokens_read},
                        {"ms", ms},
                        {"choose_ms", 1e3 * last.choose_seconds},
                        {"fetch_ms", 1e3 * last.fetch_seconds},
                        {"attend_ms", 1e3 * last.attend_seconds}});
    }
  }
  std::span<float const> step(llama_token token) {
    if (fast_) return fast_->decode(token);
    decode_token(
        context_.get(), token, [this] { session_->check(); }, decode_);
    return last_logits(context_.get(), model_);
  }

  void report() {
    nlohmann::ordered_json const at_work = watch_.at_work(*session_);
    warn_of_idle(chosen_.name, at_work);
    if (json_) {
      json_->stream() << nlohmann::ordered_json{{"policy", chosen_.name},
                                                {"parameters", chosen_.parameters},
                                                {"prompt_tokens", prompt_.size()},
                                                {"first_token_ms", first_token_ms_},
                                                {"prompt", prompt_json(options_.prompt_policy, session_->prompts())},
                                                {"peak_memory_bytes", peak_memory_bytes()},
                                                {"rows", memory_json(session_->memory())},
                                                {"memory", memory_.result()},
                                                {"answer", answer_},
                                                {"tier", tier_json(options_.tier, session_->tier_statistics())},
                                                {"at_work", at_work},
                                                {"lossless", fast_ ? lossless_json(fast_->statistics()) : nullptr},
                                                {"steps", steps_}}
                             .dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                      << '\n';
      json_->commit();
    }
    if (trace_) trace_->commit();
    if (saved_) saved_->commit();
  }

  run_options const& options_;
  text_model model_;
  named_host_policy chosen_;
  std::vector<llama_token> prompt_;
  std::optional<output_file> trace_, json_, saved_;
  recorder watch_;
  double watching_ms_ = 0;  ///< not the policy's: taken off each step's time
  std::optional<tiers::any_tier> tier_;
  std::optional<llama::session> session_;
  context_ptr context_{};
  decode_function const decode_ = [this](llama_context* with, llama_batch batch) { return session_->decode(with, batch); };
  std::optional<llama::lossless> fast_;
  memory_over_time memory_;
  double first_token_ms_ = 0;
  std::vector<float> of_prompt_;  ///< its last logits, if a repetition of it came behind
  std::string answer_;
  nlohmann::ordered_json steps_ = nlohmann::ordered_json::array();
};

}  // namespace

void generate(run_options const& options) { generation(options).run(); }

}  // namespace kvpolicy
