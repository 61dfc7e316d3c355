#include "one_chat.hpp"

#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/interop/llama/repetition.hpp>
#include <kvpolicy/presets/full.hpp>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "forms.hpp"

namespace kvpolicy {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t cells = 2048;  // of the engine

std::string text_of(eval_record const& record) {
  return record.prompt.substr(0, record.prompt.size() - record.question.size());
}

/// A chat under one policy.
class chat {
 public:
  chat(text_model const& model, variant_of_policy const& v, std::int64_t longest, int threads)
      : model_(model),
        session_(v.policy ? v.policy->policy : erase<layer_table_view, simd_exec>(presets::full{}),
                 {.cache = llama::managed_cache{.longest = longest}}) {
    llama_context_params params = model.parameters(cells, threads, true);
    session_.attach(params, model.get());
    context_ = model.context(params);
  }

  void read(std::vector<llama_token> const& tokens) {
    if (tokens.empty()) return;
    decode_prompt(
        context_.get(), tokens, [](std::size_t) {}, failed_, decode_);
  }
  void repeat() { llama::repeat(session_, context_.get()); }
  /// Up to `most` tokens, and milliseconds of each.
  std::pair<std::string, double> answer(int most) {
    std::string made;
    auto const start = std::chrono::steady_clock::now();
    int count = 0;
    for (llama_token token = likeliest(last_logits(context_.get(), model_)); count < most && !model_.ends(token); ++count) {
      made += model_.text_of(token);
      decode_token(context_.get(), token, failed_, decode_);
      token = likeliest(last_logits(context_.get(), model_));
    }
    double const ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return {made, ms / std::max(count, 1)};
  }
  llama::session const& session() const noexcept { return session_; }

 private:
  text_model const& model_;
  llama::session session_;
  context_ptr context_;
  std::function<void()> failed_ = [this] { session_.check(); };
  decode_function decode_ = [this](llama_context* with, llama_batch batch) { return session_.decode(with, batch); };
};

/// Tokens of a piece of a chat, without what sequences begin with where it is a further one.
std::vector<llama_token> tokens_of(text_model const& model, std::string const& piece, bool first) {
  std::vector<llama_token> tokens = model.tokens_of(piece, true);
  if (!first && !tokens.empty() && model.begins(tokens.front())) tokens.erase(tokens.begin());
  return tokens;
}

}  // namespace

void one_chat(eval_options const& options, text_model const& model, std::vector<variant_of_policy> const& variants,
              std::vector<eval_record> const& records, eval_results& results, std::function<void()> const& done) {
  for (eval_record const& record : records) {
    if (record.question.empty())
      throw invalid_value("record " + std::to_string(record.index) + " of " + record.task +
                          " has no question of its own; --one-chat asks several of one text");
  }
  for (auto begin = records.begin(); begin != records.end();) {
    std::string const text = text_of(*begin);
    auto const end = std::find_if(begin, records.end(), [&](eval_record const& r) { return text_of(r) != text; });
    std::span const asked(begin, end);
    begin = end;
    for (variant_of_policy const& v : variants) {
      auto const key = [&](eval_record const& r) { return measured_case{r.task, r.index, "one_chat", v.label, v.budget}; };
      if (std::ranges::all_of(asked, [&](auto const& r) { return results.has(key(r), parameters_of(v)); })) {
        for (std::size_t i = 0; i < asked.size(); ++i) done();
        continue;
      }
      std::string const before = model.as_chat(text + "?");  // shares its beginning with every question's
      std::string const opening = before.substr(0, before.rfind(text) + text.size());
      std::int64_t const turns = std::ssize(asked) * (options.predict + 256);
      std::vector<llama_token> const of_text = tokens_of(model, opening, true);
      if (std::ssize(of_text) + turns > model.trained_context()) {
        throw invalid_value("a chat of " + std::to_string(asked.size()) + " questions about " + std::to_string(of_text.size()) +
                            " tokens may need " + std::to_string(std::ssize(of_text) + turns) + ", the model's context has " +
                            std::to_string(model.trained_context()) + "; ask fewer, or lower --predict");
      }
      chat with(model, v, std::ssize(of_text) + std::max<std::int64_t>(turns, llama::repetition_room), options.threads);
      with.read(of_text);
      with.repeat();
      std::vector<std::string> said;
      std::vector<chat_turn> chat_so_far;
      std::string written = opening;
      for (eval_record const& record : asked) {
        chat_so_far.push_back({"user", chat_so_far.empty() ? record.prompt : record.question});
        std::string const whole = model.as_chat(chat_so_far);
        if (!whole.starts_with(written)) throw unsupported("the model's chat template rewrites earlier turns");
        with.read(tokens_of(model, whole.substr(written.size()), false));
        auto const [answer, ms] = with.answer(options.predict);
        chat_so_far.push_back({"assistant", answer});
        written = whole + answer;
        results.add({{"task", record.task},
                     {"record", record.index},
                     {"form", "one_chat"},
                     {"policy", v.label},
                     {"budget", v.budget},
                     {"parameters", parameters_of(v)},
                     {"prompt_tokens", std::ssize(of_text)},
                     {"score", score_of(answer, record.outputs)},
                     {"answer", answer},
                     {"tokens_read", with.session().last_step().tokens_read},
                     {"ms_per_token", ms},
                     {"choose_share", 0},
                     {"prefill_ms", 0},
                     {"rows_bytes", with.session().memory().bytes}});
        done();
      }
    }
  }
}

}  // namespace kvpolicy
