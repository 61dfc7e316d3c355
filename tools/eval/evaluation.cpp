#include "evaluation.hpp"

#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/interop/llama/repetition.hpp>
#include <kvpolicy/text/prompt_policy.hpp>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>

#include "forms.hpp"
#include "one_chat.hpp"
#include "progress.hpp"
#include "published.hpp"
#include "records.hpp"
#include "results.hpp"
#include "text_model.hpp"
#include "text_table.hpp"

namespace kvpolicy {
namespace {

using nlohmann::ordered_json;

std::vector<variant_of_policy> variants_of(eval_options const& options, host_policy_list const& known,
                                           policy_inputs const& inputs) {
  std::vector<variant_of_policy> all{{.label = "dense"}};
  for (std::string const& text : options.policies) {
    std::string const name = text.substr(0, text.find_first_of(":+"));
    std::size_t const last = text.rfind('+') == std::string::npos ? 0 : text.rfind('+') + 1;
    std::string const budgeted =
        text.substr(last, text.find(':', last) == std::string::npos ? std::string::npos : text.find(':', last) - last);
    std::string const given_to_it = text.substr(last);
    if (given_to_it.find("tokens=") != std::string::npos) {
      throw invalid_value("'" + text + "': --budgets gives the last policy its tokens=; leave it out there");
    }
    named_host_policy const as_given = known.parse(text, inputs);
    bool const has_share =
        requirements_of(as_given.policy.retain).relative || requirements_of(as_given.policy.retrieve).relative;
    if (has_share || !known.has_parameter(budgeted, "tokens")) {
      all.push_back({text, 0, as_given});
      continue;
    }
    for (std::int64_t const budget : options.budgets) {
      std::string const given =
          text + (text.find(':', last) == std::string::npos ? ":" : ",") + "tokens=" + std::to_string(budget);
      all.push_back({text, budget, known.parse(given, inputs)});
    }
  }
  return all;
}

/// One record in one form: what the model is given.
struct eval_case {
  eval_record const* record = nullptr;
  std::string form;
  std::vector<llama_token> tokens;
  std::int64_t text = 0;  ///< tokens before the question; all where it stands first, or its place is not known
};

/// Tokens up to the first that depends on the record's question.
std::int64_t text_tokens(std::vector<llama_token> const& tokens, eval_record record, question_form form,
                         chat_writer const& write, text_model const& model) {
  if (record.question.empty() || form == question_form::question_first) return std::ssize(tokens);
  record.prompt.resize(record.prompt.size() - record.question.size());
  record.question = "?";
  record.prompt += record.question;
  std::vector<llama_token> const other = model.tokens_of(written_as(form, record, write).value(), true);
  return std::ranges::mismatch(tokens, other).in1 - tokens.begin();
}

std::vector<eval_case> cases_of(std::vector<eval_record> const& records, eval_options const& options, text_model const& model) {
  std::vector<question_form> forms;
  for (std::string const& name : options.forms) forms.push_back(form_of(name));
  auto const write = [&](std::span<chat_turn const> turns) { return model.as_chat(turns); };
  std::vector<eval_case> made;
  for (eval_record const& record : records) {
    for (question_form const form : forms) {
      std::optional<std::string> const text = written_as(form, record, write);
      if (!text) continue;
      std::vector<llama_token> const tokens = model.tokens_of(*text, true);
      made.push_back({&record, name_of(form), tokens, text_tokens(tokens, record, form, write, model)});
    }
  }
  if (made.empty()) {
    throw invalid_value(
        "none of the records can be asked in the form of --forms: they lack a question of their own, or an "
        "answer_prefix; take --forms chat");
  }
  return made;
}

/// One case at a time, in a context that all share.
class evaluation {
 public:
  evaluation(eval_options const& options, text_model const& model, std::vector<variant_of_policy> const& variants,
             std::int64_t context)
      : options_(options),
        model_(model),
        variants_(variants),
        session_(presets::full{},
                 {.observation_queries = queries_of(variants), .prompt_policy = prompt_policy_of(options.prompt_policy)}) {
    llama_context_params params = model.parameters(context, options.threads, true);
    session_.attach(params, model.get());
    context_ = model.context(params);
  }

  void run(eval_case const& asked, eval_results& results, std::function<void()> const& done) {
    bool prefilled = false;
    for (variant_of_policy const& v : variants_) {
      if (!results.has({asked.record->task, asked.record->index, asked.form, v.label, v.budget}, parameters_of(v))) {
        if (!prefilled) prefill(asked);
        prefilled = true;
        results.add(decode(asked, v));
      }
      done();
    }
  }

 private:
  static constexpr int min_steps = 8;  ///< that a time per token is taken over

  static std::optional<prompt_pages> prompt_policy_of(std::string const& text) {
    return text.empty() ? std::nullopt : std::optional(text::prompt_policy_of(text));
  }

  static std::int64_t queries_of(std::vector<variant_of_policy> const& variants) {
    std::int64_t most = 0;
    for (variant_of_policy const& v : variants) {
      if (v.policy) most = std::max(most, observation_queries(v.policy->policy));
    }
    return most;
  }

  void prefill(eval_case const& asked) {
    session_.use(presets::full{});
    session_.load();
    llama_memory_clear(llama_get_memory(context_.get()), true);
    std::vector<llama_token> const& tokens = asked.tokens;
    progress_bar bar(asked.record->task + " " + std::to_string(asked.record->index) + ", " + asked.form + ", prompt",
                     tokens.size());
    decode_prompt(
        context_.get(), tokens, [&](std::size_t done) { bar.show(done); }, [&] { session_.check(); });
    prompt_tokens_ = static_cast<std::int64_t>(tokens.size());
    first_token_ = likeliest(last_logits(context_.get(), model_));
    saved_ = session_.save();
    state_.resize(llama_state_seq_get_size(context_.get(), 0));
    state_.resize(llama_state_seq_get_data(context_.get(), state_.data(), state_.size(), 0));
  }

  ordered_json decode(eval_case const& asked, variant_of_policy const& v) {
    eval_record const& record = *asked.record;
    if (v.policy) session_.use(v.policy->policy);
    llama_memory_clear(llama_get_memory(context_.get()), true);
    if (llama_state_seq_set_data(context_.get(), state_.data(), state_.size(), 0) == 0) {
      throw error("llama.cpp could not restore the prompt's state");
    }
    if (v.policy) session_.load(saved_);
    else session_.detach();
    std::vector<double> ms;
    double seconds = 0;
    double choose = 0;
    double read = 0;
    double prefill_ms = 0;
    std::string answer;
    llama_token token = first_token_;
    if (v.policy && contains(needs_of(v.policy->policy), signals::repetition)) {
      prefill_ms = repeat_text(asked);
      if (asked.text < std::ssize(asked.tokens)) token = likeliest(last_logits(context_.get(), model_));
    }
    for (int i = 0; i < options_.predict && !model_.ends(token); ++i) {
      answer += model_.text_of(token);
      bool const decided = i >= min_steps && score_of(answer, record.outputs) == 1;  // nothing later takes a reference away
      if (i + 1 == options_.predict || decided) break;
      auto const start = std::chrono::steady_clock::now();
      decode_token(context_.get(), token, [&] { session_.check(); });
      double const step = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
      token = likeliest(last_logits(context_.get(), model_));
      if (v.policy) {
        read += session_.last_step().tokens_read;
        prefill_ms += 1e3 * session_.last_step().prefill_seconds;
      } else {
        read += static_cast<double>(prompt_tokens_ + i + 1);
      }
      if (i == 0) continue;  // that step makes the prompt's choice
      ms.push_back(step);
      seconds += step / 1e3;
      if (v.policy) choose += session_.last_step().choose_seconds;
    }
    auto const steps = static_cast<double>(ms.size() + 1);
    return {{"task", record.task},
            {"record", record.index},
            {"form", asked.form},
            {"policy", v.label},
            {"budget", v.budget},
            {"parameters", parameters_of(v)},
            {"prompt_tokens", prompt_tokens_},
            {"score", score_of(answer, record.outputs)},
            {"answer", answer},
            {"tokens_read", read / steps},
            {"ms_per_token", quantile(ms, .5)},
            {"choose_share", seconds > 0 ? choose / seconds : 0},
            {"prefill_ms", prefill_ms}};
  }

  /// Compresses what stands before the question, and decodes the question behind it. Returns milliseconds.
  double repeat_text(eval_case const& asked) {
    auto const start = std::chrono::steady_clock::now();
    llama_memory_seq_rm(llama_get_memory(context_.get()), 0, static_cast<llama_pos>(asked.text), -1);
    llama::repeat(session_, context_.get());
    double const ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    decode_prompt(
        context_.get(), std::span(asked.tokens).subspan(static_cast<std::size_t>(asked.text)), [](std::size_t) {},
        [&] { session_.check(); });
    return ms;
  }

  eval_options const& options_;
  text_model const& model_;
  std::vector<variant_of_policy> const& variants_;
  llama::session session_;
  context_ptr context_;
  std::int64_t prompt_tokens_ = 0;
  llama_token first_token_ = 0;
  llama::saved_prompt saved_;
  std::vector<std::uint8_t> state_;
};

}  // namespace

void evaluate(eval_options const& options) {
  std::vector<eval_record> const records = read_records(options.data, options.tasks, options.first, options.records);
  if (!options.prompt_policy.empty()) text::prompt_policy_of(options.prompt_policy);
  host_policy_list const known = known_policies(options.plugins);
  for (std::string const& name : options.forms) form_of(name);
  for (std::string const& text : options.policies)
    known.parse(text, inputs_for());  // what is misspelt is known before a model is loaded
  text_model const model(options.model);
  std::vector<variant_of_policy> const variants = variants_of(options, known, model.inputs());
  std::vector<eval_case> const cases = cases_of(records, options, model);
  std::size_t longest = 0;
  for (eval_case const& asked : cases) longest = std::max(longest, asked.tokens.size());
  auto const needed = static_cast<std::int64_t>(longest) + options.predict;
  if (needed > model.trained_context()) {
    throw invalid_value("the longest record needs " + std::to_string(needed) + " tokens, the model's context has " +
                        std::to_string(model.trained_context()) + "; choose shorter records");
  }
  bool const repeats = std::ranges::any_of(
      variants, [](auto const& v) { return v.policy && contains(needs_of(v.policy->policy), signals::repetition); });
  std::int64_t const room = needed + (repeats ? llama::repetition_room : 0);
  std::int64_t const context = std::min(model.trained_context(), (room + 255) / 256 * 256);
  cache_shape const shape = model.cache(context);
  for (variant_of_policy const& v : variants) {
    if (v.policy) check(v.policy->policy, shape);
  }
  eval_results results(options.out, {{"model", std::filesystem::path(options.model).filename().string()},
                                     {"data", std::filesystem::path(options.data).filename().string()},
                                     {"predict", options.predict},
                                     {"prompt_policy", options.prompt_policy}});
  {
    progress_bar bar("evaluating", (options.one_chat ? records.size() : cases.size()) * variants.size());
    std::size_t done = 0;
    if (options.one_chat) {
      one_chat(options, model, variants, records, results, [&] { bar.show(++done); });
    } else {
      evaluation run(options, model, variants, context);
      for (eval_case const& asked : cases) run.run(asked, results, [&] { bar.show(++done); });
    }
  }
  std::cout << results.lines() << " results are in '" << options.out << "'; for tables and a page: kvpolicy-eval-report "
            << options.out << '\n'
            << std::flush;
  if (!std::cout) throw error("standard output could not be written whole");
}

}  // namespace kvpolicy
