#include "compacted.hpp"

#include <kvpolicy/interop/llama/compact.hpp>

#include <optional>

#include "generate.hpp"
#include "output_file.hpp"
#include "progress.hpp"

namespace kvpolicy {

void generate_compacted(run_options const& options) {
  text_model const model(options.model, {cache_type_of(options.key_type), cache_type_of(options.value_type)},
                         options.gpu_layers);
  named_host_policy const chosen = options.known.parse(options.policies.front().text, model.inputs());
  std::vector<llama_token> const prompt = prompt_tokens(model, options, options.prompts.front());
  std::optional<output_file> json;
  if (!options.json.empty()) json.emplace(options.json);
  llama::compactor compactor(chosen.policy);
  llama_context_params params = model.parameters(context_tokens(model, options, prompt.size()), options.threads, true);
  compactor.attach(params, model.get());
  context_ptr const context = model.context(params);
  auto const failed = [] {};
  auto const begun = std::chrono::steady_clock::now();
  {
    progress_bar bar("prompt", prompt.size());
    decode_prompt(
        context.get(), prompt, [&](std::size_t tokens) { bar.show(tokens); }, failed);
  }
  std::span<float const> logits = last_logits(context.get(), model);
  double const prompt_ms = milliseconds_since(begun);
  auto const compacting = std::chrono::steady_clock::now();
  llama::compaction const made = compactor.compact(context.get());
  double const compact_ms = milliseconds_since(compacting);
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  std::string answer;
  for (int i = 0; i < options.predict; ++i) {
    llama_token const token = likeliest(logits);
    if (model.ends(token)) break;
    write_token(model, token, answer);
    if (i + 1 == options.predict) break;
    auto const start = std::chrono::steady_clock::now();
    decode_token(context.get(), token, failed);
    logits = last_logits(context.get(), model);
    steps.push_back({{"tokens_read", made.kept + i + 1}, {"ms", milliseconds_since(start)}});
  }
  write_end();
  if (!json) return;
  json->stream() << nlohmann::ordered_json{{"policy", chosen.name},
                                           {"parameters", chosen.parameters},
                                           {"prompt_tokens", made.tokens},
                                           {"cells", made.kept},
                                           {"first_token_ms", prompt_ms},
                                           {"compact_ms", compact_ms},
                                           {"answer", answer},
                                           {"steps", steps}}
                        .dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                 << '\n';
  json->commit();
}

}  // namespace kvpolicy
