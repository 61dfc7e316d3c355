#include "compare.hpp"

#include <kvpolicy/interop/llama/repetition.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "attention_mass.hpp"
#include "generate.hpp"
#include "lossless_runs.hpp"
#include "managed_run.hpp"
#include "measured.hpp"
#include "output_file.hpp"
#include "progress.hpp"
#include "recorder.hpp"
#include "table.hpp"
#include "text_model.hpp"
#include "text_table.hpp"
#include "tier_json.hpp"

namespace kvpolicy {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t picture_bins = 240;

double quiet_ms(std::function<void()> const& work) {
  auto const start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// One prompt's run through all ways of decoding.
class comparison {
 public:
  comparison(run_options const& options, text_model const& model, std::int64_t context)
      : options_(options),
        model_(model),
        session_(presets::full{},
                 {.observation_queries = most_queries(options),
                  .prompt_policy = options.prompt_policy,
                  .on_choice =
                      [this](llama_seq_id, layer_id layer, std::int64_t tokens, selection const& kept) {
                        watch_(layer, tokens, kept);
                        mass_.choose(kept);
                      },
                  .on_queries = [this](llama_seq_id, layer_id layer, layer_table_view const& view, query_heads const& queries,
                                       simd_exec& exec) { mass_.see(layer, view, queries, exec); }}),
        policies_(options.policies.size()) {
    llama_context_params params = model.parameters(context, options.threads, true);
    flash_on_ = model.context(params);
    session_.attach(params, model.get());
    attached_ = model.context(params);
    llama_context_params const without = model.parameters(context, options.threads, false);
    if (!ggml_is_quantized(without.type_v)) flash_off_ = model.context(without);  // else the engine makes none
    check_policies(context);
    try {
      managed_.emplace(options, model, context, most_queries(options));
    } catch (unsupported const& refusal) {
      without_own_ = refusal.what();
    }
  }

  void run(prompt_text const& prompt, std::vector<llama_token> const& tokens, std::ostream* trace) {
    prompt_ = static_cast<std::int64_t>(tokens.size());
    prefill(prompt, tokens);
    if (managed_) managed_->prompt(tokens);
    dense_run();
    prompts_.push_back({{"name", prompt.name}, {"tokens", prompt_}, {"answer", text_of(dense_tokens_)}});
    if (auto const place = marked_tokens(model_, options_, prompt)) prompts_.back()["marked"] = {place->first, place->second};
    measure(prompt, trace);
    if (prompts_.size() > 1) return;
    auto const mark = [](measured& m) {
      m.first_prompts_steps = m.ms.size();
      m.first_prompts_runs = m.first_ms.size();
    };
    std::ranges::for_each(dense_, mark);
    std::ranges::for_each(policies_, mark);
  }

  ordered_json result() const;

 private:
  /// The policies, in turns with dense decoding.
  void measure(prompt_text const& prompt, std::ostream* trace) {
    std::size_t const count = policies_.size();
    std::size_t const ways = options_.lossless ? 4 : 3;
    if (options_.lossless) full_run();
    progress_bar bar("measuring", options_.rounds * (ways + 2 * count) + (prompts_.size() == 1 ? 2 : 1) * count);
    std::size_t done = 0;
    for (int round = 0; round < options_.rounds; ++round) {  // A B C A B C: a noisy neighbour hits all alike
      for (std::size_t way = 0; way < 3; ++way, bar.show(++done)) dense_timed_run(way);
      if (options_.lossless) lossless_run(round), bar.show(++done);
      for (std::size_t p = 0; p < count; ++p, bar.show(++done)) timed_run(p, round);
      for (std::size_t p = 0; p < count; ++p, bar.show(++done)) own_run(p);
    }
    for (std::size_t p = 0; p < count; ++p, bar.show(++done)) free_run(p, prompt, trace);
    if (prompts_.size() != 1) return;
    for (std::size_t p = 0; p < count; ++p, bar.show(++done)) weigh(p);
  }

  ordered_json memory_of_rows() const;
  static std::int64_t most_queries(run_options const& options) {
    std::int64_t most = options.lossless ? llama::verified_draft{}.window + most_step_tokens : 0;
    for (named_host_policy const& p : options.policies) most = std::max(most, observation_queries(p.policy));
    return most;
  }

  /// A budget that can't be is known before anything was decoded.
  void check_policies(std::int64_t context) const {
    cache_shape shape = session_.shape();
    shape.max_tokens = context;
    for (named_host_policy const& p : options_.policies) check(p.policy, shape);
  }

  void prefill(prompt_text const& prompt, std::vector<llama_token> const& tokens) {
    session_.use(presets::full{});
    session_.load();
    llama_memory_clear(llama_get_memory(attached_.get()), true);
    double const prompt_ms = timed_prompt(attached_.get(), tokens, "prompt " + prompt.name, [&] { session_.check(); });
    auto const logits_of = [&](llama_context* context) {
      std::span const logits = last_logits(context, model_);
      return std::vector(logits.begin(), logits.end());
    };
    std::vector<float> const logits = logits_of(attached_.get());
    first_token_ = likeliest(logits);
    saved_ = session_.save();
    state_ = state_of(attached_.get());
    // Without flash attention values lie otherwise, and it can't take the state: one prompt serves for its speed.
    if (std::exchange(dense_prompted_, true)) return;
    prompt_read_ = session_.prompts();
    for (measured& m : policies_) m.prompt_ms = prompt_ms;
    dense_[0].prompt_ms = timed_prompt(flash_on_.get(), tokens, "dense prompt", [] {});
    std::vector<float> const dense = logits_of(flash_on_.get());
    prompt_kl_[0] = divergence(dense, logits);
    if (!flash_off_) return;
    dense_[1].prompt_ms = timed_prompt(flash_off_.get(), tokens, "dense prompt, flash attention off", [] {});
    prompt_kl_[1] = divergence(dense, logits_of(flash_off_.get()));
    off_state_ = state_of(flash_off_.get());
  }

  double timed_prompt(llama_context* context, std::vector<llama_token> const& tokens, std::string const& name,
                      std::function<void()> const& check) const {
    progress_bar bar(name, tokens.size());
    return quiet_ms([&] {
      decode_prompt(
          context, tokens, [&](std::size_t done) { bar.show(done); }, check);
    });
  }

  static std::vector<std::uint8_t> state_of(llama_context* context) {
    std::vector<std::uint8_t> state(llama_state_seq_get_size(context, 0));
    state.resize(llama_state_seq_get_data(context, state.data(), state.size(), 0));
    return state;
  }

  void restore(llama_context* context) const {
    std::vector<std::uint8_t> const& state = context == flash_off_.get() ? off_state_ : state_;
    llama_memory_clear(llama_get_memory(context), true);
    if (llama_state_seq_set_data(context, state.data(), state.size(), 0) == 0) {
      throw error("llama.cpp could not restore the prompt's state");
    }
  }

  void use(std::size_t policy) { use(options_.policies[policy].policy); }
  template <class Policy>
  void use(Policy const& policy) {
    session_.use(policy);
    restore(attached_.get());
    session_.load(saved_);
    llama::repeat(session_, attached_.get());
  }

  /// Greedy decoding without a policy: the tokens and logits that all else is compared with.
  void dense_run() {
    restore(flash_on_.get());
    dense_tokens_.assign(1, first_token_);
    dense_logits_.clear();
    for (int i = 0; i + 1 < options_.predict; ++i) {
      decode_token(flash_on_.get(), dense_tokens_.back(), [] {});
      std::span const logits = last_logits(flash_on_.get(), model_);
      dense_logits_.emplace_back(logits.begin(), logits.end());
      dense_tokens_.push_back(likeliest(logits));
    }
  }

  /// Decodes the dense tokens without a policy; way 0, 1, 2: with flash attention on, off, and through an idle session.
  void dense_timed_run(std::size_t way) {
    llama_context* const context = way == 0 ? flash_on_.get() : way == 1 ? flash_off_.get() : attached_.get();
    if (context == nullptr) return;
    if (way == 2) session_.detach();
    restore(context);
    for (int i = 0; i + 1 < options_.predict; ++i) {
      double const ms = timed_step(context, i);
      if (i == 0) {
        dense_[way].first_ms.push_back(ms);
      } else {
        dense_[way].ms.push_back(ms);
      }
    }
  }

  /// Greedy decoding under full: what lossless decoding has to decode.
  void full_run() {
    use(presets::full{});
    lossless_.begin(first_token_);
    for (int i = 0; i + 1 < options_.predict; ++i) {
      decode_token(attached_.get(), lossless_.full().back(), [&] { session_.check(); });
      lossless_.expect(last_logits(attached_.get(), model_));
    }
  }

  void lossless_run(int round) {
    use(llama::verified_draft{});
    llama::lossless fast(session_, attached_.get(), lossless_options_of(options_.drafts));
    std::vector<llama_token> tokens{first_token_};
    double const ms = quiet_ms([&] {
      for (llama_token const token : lossless_.full().first(static_cast<std::size_t>(options_.predict - 1)))
        tokens.push_back(likeliest(fast.decode(token)));
    });
    lossless_.add(ms / (options_.predict - 1));
    if (round == 0) lossless_.compare(tokens, fast.statistics());
    if (round == 0 && prompts_.size() == 1) lossless_answer_ = text_of(tokens);
  }

  /// Decodes the dense tokens under a policy, on the engine's rows.
  void timed_run(std::size_t policy, int round) {
    measured& into = policies_[policy];
    use(policy);
    for (int i = 0; i + 1 < options_.predict; ++i) {
      double const ms = timed_step(attached_.get(), i);
      llama::step_statistics const step = session_.last_step();
      if (i == 0) {
        into.first_ms.push_back(ms);
        into.prefill_ms.push_back(1e3 * step.prefill_seconds);
      } else {
        into.ms.push_back(ms);
        into.seconds += ms / 1e3;
        into.choose += step.choose_seconds;
        into.attend += step.attend_seconds;
      }
      if (round == 0) judge(into, i, step, ms, last_logits(attached_.get(), model_));
    }
  }

  /// Milliseconds of the dense answer's step `i`.
  double timed_step(llama_context* context, int i) {
    return quiet_ms([&] { decode_token(context, dense_tokens_[static_cast<std::size_t>(i)], [&] { session_.check(); }); });
  }

  /// The same steps in a managed cache.
  void own_run(std::size_t policy) {
    if (!managed_) return;
    std::vector const tokens(dense_tokens_.begin(), dense_tokens_.end() - 1);
    managed_steps made = managed_->decode(options_.policies[policy].policy, tokens);
    managed_steps& into = policies_[policy].managed;
    into.ms.insert(into.ms.end(), made.ms.begin(), made.ms.end());
    into.tier += made.tier;
    if (prompts_.size() > 1) return;
    into.bytes = std::move(made.bytes);
    prompt_bytes_ = managed_->prompt_bytes();
  }

  void judge(measured& into, int i, llama::step_statistics const& step, double ms, std::span<float const> logits) {
    std::vector<float> const& dense = dense_logits_[static_cast<std::size_t>(i)];
    double const kl = divergence(dense, logits);
    auto const ours = static_cast<std::size_t>(likeliest(logits));
    auto const theirs = static_cast<std::size_t>(likeliest(dense));
    bool const agrees = ours == theirs;
    into.gap = std::max(into.gap, static_cast<double>(dense[theirs]) - dense[ours]);
    into.kl += kl;
    into.agreed += agrees ? 1 : 0;
    ++into.compared;
    into.read += step.tokens_read;
    into.share += step.tokens_read / static_cast<double>(step.tokens);
    into.steps.push_back({{"prompt", prompts_.size() - 1},
                          {"step", i},
                          {"tokens", step.tokens},
                          {"tokens_read", step.tokens_read},
                          {"ms", ms},
                          {"choose_ms", 1e3 * step.choose_seconds},
                          {"attend_ms", 1e3 * step.attend_seconds},
                          {"kl", kl},
                          {"agrees", agrees}});
  }

  /// Greedy decoding under a policy, untimed: its answer, its trace, its picture; on past the answer's end, as all runs do.
  void free_run(std::size_t policy, prompt_text const& prompt, std::ostream* trace) {
    use(policy);
    bool const first = policies_[policy].answers.empty();
    watch_.start(options_.policies[policy].name, prompt.name, prompt_, trace, first ? picture_bins : 0,
                 prompt_ + options_.predict);
    std::vector<llama_token> tokens{first_token_};
    for (int i = 0; i + 1 < options_.predict; ++i) {
      decode_token(attached_.get(), tokens.back(), [&] { session_.check(); });
      tokens.push_back(likeliest(last_logits(attached_.get(), model_)));
    }
    watch_.stop();
    policies_[policy].answers.push_back(text_of(tokens));
    if (!first) return;
    policies_[policy].kept = watch_.picture(session_.shape().layers);
    policies_[policy].at_work = watch_.at_work(session_);
    warn_of_idle(options_.policies[policy].name, policies_[policy].at_work);
  }

  /// The dense tokens of the prompt once more: how much of dense attention a policy reads.
  void weigh(std::size_t p) {
    use(p);
    mass_.start();
    for (int i = 0; i + 1 < options_.predict; ++i) {
      decode_token(attached_.get(), dense_tokens_[static_cast<std::size_t>(i)], [&] { session_.check(); });
    }
    mass_.stop();
    policies_[p].mass = mass_.result();
  }

  std::string text_of(std::vector<llama_token> const& tokens) const {
    std::string text;
    for (llama_token const token : tokens) {
      if (model_.ends(token)) break;
      text += model_.text_of(token);
    }
    return text;
  }

  run_options const& options_;
  text_model const& model_;
  recorder watch_;
  attention_mass mass_;
  llama::session session_;
  context_ptr flash_on_;
  context_ptr flash_off_;
  context_ptr attached_;
  std::optional<managed_run> managed_;
  std::string without_own_;    ///< why there are none
  ordered_json prompt_bytes_;  ///< of the first prompt

  std::int64_t prompt_ = 0;  ///< tokens
  bool dense_prompted_ = false;
  llama_token first_token_ = 0;
  llama::saved_prompt saved_;
  llama::prompt_statistics prompt_read_;
  std::vector<std::uint8_t> state_;
  std::vector<std::uint8_t> off_state_;
  std::vector<llama_token> dense_tokens_;
  std::vector<std::vector<float>> dense_logits_;

  std::array<double, 2>
      prompt_kl_{};  ///< of the first prompt's last logits to flash attention's: the session's, and without it
  lossless_runs lossless_;
  std::string lossless_answer_;  ///< to the first prompt
  std::array<measured, 3> dense_;
  std::vector<measured> policies_;
  ordered_json prompts_ = ordered_json::array();
};

/// Of the first prompt: what its rows take where all are kept.
ordered_json comparison::memory_of_rows() const {
  if (!managed_) return {{"left_out", without_own_}};
  cache_shape const shape = session_.shape();
  std::int64_t const tokens = prompts_[0]["tokens"].get<std::int64_t>() + options_.predict - 1;
  return {{"dense_bytes", tokens * shape.layers * shape.kv_heads * model_.row_bytes(shape)}, {"prompt", prompt_bytes_}};
}

ordered_json comparison::result() const {
  bool const has_off = flash_off_ != nullptr;
  double const best_request = has_off
                                  ? std::min(request_ms(dense_[0], options_.predict), request_ms(dense_[1], options_.predict))
                                  : request_ms(dense_[0], options_.predict);
  auto const request = [&](measured const& m) {
    // All policies share one prompt's time. What a policy does at its end is timed with the first step.
    return ordered_json{{"first_token_ms", m.prompt_ms + (m.prefill_ms.empty() ? 0 : quantile(m.prefill_ms, .5))},
                        {"request_ms", request_ms(m, options_.predict)},
                        {"request_speedup", best_request / request_ms(m, options_.predict)}};
  };
  double const on = quantile(dense_[0].ms, .5);
  double const off = has_off ? quantile(dense_[1].ms, .5) : on;
  double const best = std::min(on, off);
  ordered_json result{{"model", options_.model},
                      {"engine", llama_print_system_info()},
                      {"instruction_set", simd_exec::instruction_set()},
                      {"prompt_instruction_set", simd_exec::block_instruction_set()},
                      {"threads", options_.threads},
                      {"cache_types", {options_.key_type, options_.value_type}},
                      {"left_to_the_engine", session_.report()},
                      {"predict", options_.predict},
                      {"rounds", options_.rounds},
                      {"prompts", prompts_},
                      {"baseline",
                       {{"name", on <= off ? "flash attention on" : "flash attention off"},
                        {"ms_per_token", best},
                        {"request_name", best_request == request_ms(dense_[0], options_.predict) ? "flash attention on"
                                                                                                 : "flash attention off"},
                        {"request_ms", best_request}}},
                      {"prompt", prompt_json(options_.prompt_policy, prompt_read_)},
                      {"memory", memory_of_rows()},
                      {"prompt_kl", {{"session", prompt_kl_[0]}, {"flash_off", prompt_kl_[1]}}},
                      {"dense",
                       {{"answer", prompts_[0]["answer"]},
                        {"flash_on", timing_json(dense_[0], best)},
                        {"flash_off", has_off ? timing_json(dense_[1], best) : ordered_json()},
                        {"pass_through", timing_json(dense_[2], best)}}},
                      {"policies", ordered_json::array()}};
  result["dense"]["flash_on"].update(request(dense_[0]));
  if (has_off) result["dense"]["flash_off"].update(request(dense_[1]));
  if (options_.lossless) {
    result["lossless"] = lossless_.result(best);
    result["lossless"]["answer"] = lossless_answer_;
  }
  std::multiset<std::string> names;
  for (named_host_policy const& p : options_.policies) names.insert(p.name);
  for (std::size_t i = 0; i < policies_.size(); ++i) {
    measured const& m = policies_[i];
    named_host_policy const& p = options_.policies[i];
    auto const compared = static_cast<double>(std::max<std::int64_t>(m.compared, 1));
    ordered_json entry{{"name", p.name},
                       {"label", names.count(p.name) > 1 ? p.name + " (" + std::to_string(i + 1) + ")" : p.name},
                       {"parameters", p.parameters}};
    entry.update(request(m));
    entry.update(timing_json(m, best));
    entry.update({{"request_split", request_split(m, prompt_read_, options_.predict)},
                  {"choose_share", m.seconds > 0 ? m.choose / m.seconds : 0},
                  {"attend_share", m.seconds > 0 ? m.attend / m.seconds : 0},
                  {"tier", tier_json(options_.tier, m.managed.tier)},
                  {"tokens_read", m.read / compared},
                  {"cache_share", m.share / compared},
                  {"top1_agreement", static_cast<double>(m.agreed) / compared},
                  {"largest_top1_gap", m.gap},
                  {"kl", m.kl / compared},
                  {"attention_mass", m.mass},
                  {"managed_cache", managed_json(m.managed, best, prompt_bytes_)},
                  {"prefill_ms", quantile(m.prefill_ms, .5)},
                  {"first_step_ms", quantile(m.first_ms, .5)},
                  {"answer", m.answers.front()},
                  {"answers", m.answers},
                  {"at_work", m.at_work},
                  {"kept", m.kept},
                  {"steps", m.steps}});
    result["policies"].push_back(std::move(entry));
  }
  return result;
}

}  // namespace

void compare(run_options const& options) {
  if (options.predict < 3)
    throw invalid_value("--predict " + std::to_string(options.predict) + " is too few to compare; give at least 3");
  text_model const model(options.model, {cache_type_of(options.key_type), cache_type_of(options.value_type)});
  std::vector<std::vector<llama_token>> tokens;
  std::size_t longest = 0;
  for (prompt_text const& prompt : options.prompts) {
    tokens.push_back(prompt_tokens(model, options, prompt));
    longest = std::max(longest, tokens.back().size());
  }
  std::int64_t const context = context_tokens(model, options, longest);
  std::optional<output_file> json;
  if (!options.json.empty()) json.emplace(options.json);
  std::optional<output_file> trace;
  if (!options.trace.empty()) trace.emplace(options.trace);
  run_options bound = options;
  for (named_host_policy& p : bound.policies) p = options.known.parse(p.text, model.inputs());
  comparison all(bound, model, context);
  for (std::size_t i = 0; i < tokens.size(); ++i) all.run(options.prompts[i], tokens[i], trace ? &trace->stream() : nullptr);
  ordered_json const result = all.result();
  std::fputs(comparison_table(result).c_str(), stdout);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw error("standard output could not be written whole");
  if (json) {
    json->stream() << result.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << '\n';
    json->commit();
  }
  if (trace) trace->commit();
}

}  // namespace kvpolicy
