// kvpolicy-run: a llama.cpp model decodes under a KV-cache policy; or several, compared with dense decoding.
#include <unistd.h>

#include <iostream>
#include <iterator>
#include <string>

#include <kvpolicy/primitive/attend.hpp>
#include <kvpolicy/text/prompt_policy.hpp>

#include "compacted.hpp"
#include "compare.hpp"
#include "generate.hpp"
#include "read_file.hpp"
#include "tool_main.hpp"
#include "waits.hpp"

namespace {

struct arguments {
  kvpolicy::run_options options;
  std::vector<std::string> policies;
  std::string prompt_policy;
  std::vector<std::string> prompt_files;
  std::string prompt;
  std::vector<std::string> plugins;
  bool compare = false;
  bool list = false;
};

void declare(CLI::App& app, arguments& a) {
  using namespace kvpolicy;
  app.add_option("--model", a.options.model, "GGUF file");
  app.add_option("--prompt-file", a.prompt_files, "file with the prompt; with --compare, repeat for several");
  app.add_option("--prompt", a.prompt, "the prompt itself (default: standard input)");
  app.add_flag("--chat", a.options.chat, "wrap the prompt in the model's chat template");
  app.add_option("--answer-prefix", a.options.answer_prefix, "beginning of the answer, added after the prompt");
  app.add_option("--mark", a.options.mark, "a text in the prompts; --json names its tokens");
  app.add_option("--policy", a.policies,
                 "NAME[:key=value,...][+NAME...]; with --compare, repeat for several; --list-policies lists them")
      ->take_all();
  app.add_option("--prompt-policy", a.prompt_policy,
                 "the prompt policy: pages[:key=value,...] (default: prompts read all of themselves)");
  app.add_flag("--lossless", a.options.lossless,
               "decode what dense decoding decodes: --policy only drafts (default: what the last verified tokens attend to)");
  app.add_option("--drafts", a.options.drafts,
                 "with --lossless, guess always so many tokens (default: as many as pay, up to 7)")
      ->check(between(std::int64_t{0}, kvpolicy::most_step_tokens - 1))
      ->needs("--lossless");
  app.add_option("--predict", a.options.predict, "tokens to decode")->capture_default_str()->check(between(1, 1 << 24));
  app.add_option("--rounds", a.options.rounds, "with --compare, how often to time each way; 1 for long answers")
      ->capture_default_str()
      ->check(between(1, 100));
  app.add_option("--ctx", a.options.context, "context in tokens (default: as many as prompt and prediction need)")
      ->check(between(1, 1 << 30));
  add_threads(app, a.options.threads);
  app.add_option("--cache-type-k", a.options.key_type, "type of the cache's keys: f16, bf16, f32, q8_0, q4_0, ...")
      ->capture_default_str();
  app.add_option("--cache-type-v", a.options.value_type, "type of the cache's values")->capture_default_str();
  auto* const compact =
      app.add_flag("--compact", a.options.compact,
                   "give llama.cpp's own cache what the policy retains of the prompt; its own steps go on with that");
  app.add_option("--gpu-layers", a.options.gpu_layers, "with --compact, layers that llama.cpp offloads to a GPU")
      ->check(between(0, 1 << 20))
      ->needs(compact);
  auto* const own =
      app.add_flag("--managed-cache", a.options.managed_cache,
                   "the library holds the cache, and frees the rows that a policy drops; prompts may be longer than --ctx");
  app.add_option("--between-pieces", a.options.between_pieces,
                 "with --managed-cache, the policy that drops rows after each piece of a prompt: NAME[:key=value,...]")
      ->needs(own);
  app.add_option_function<std::int64_t>(
         "--memory", [&a](std::int64_t megabytes) { a.options.memory = megabytes << 20; },
         "with --managed-cache, the most MiB of rows")
      ->check(between(1, 1 << 30))
      ->needs(own);
  app.add_option("--load-state", a.options.load_state,
                 "continue a state of --save-state; it needs the same model, policy, cache types and --longest");
  app.add_option("--save-state", a.options.save_state, "write the rows and the policy's memory, for --load-state")
      ->check(file_name());
  app.add_option("--longest", a.options.longest,
                 "with --managed-cache, the most tokens of a sequence (default: as many as prompt and prediction need)")
      ->check(between(1, 1 << 30))
      ->needs(own);
  auto* const tier = app.add_option("--tier", a.options.tier,
                                    "where a managed cache stores the rows that steps do not read: host, host:q8_0, host:q4_0, "
                                    "disk:FILE or "
                                    "redis:HOST:PORT,... (default: memory)");
  app.add_option("--tier-slots", a.options.tier_slots,
                 "rows of the tier that each KV head also has in memory (default: twice as many as a step reads)")
      ->check(count_from(1))
      ->needs(tier);
  app.add_flag("--tier-async", a.options.tier_async, "read only the rows that are in memory, without waiting for the others")
      ->needs(tier);
  app.add_flag("--compare", a.compare, "measure the policies against dense decoding; print a table");
  app.add_option("--json", a.options.json, "write all measurements")->check(file_name());
  app.add_option("--trace", a.options.trace, "write one JSON line for each step and layer: the tokens that were read, and why")
      ->check(file_name());
  app.add_option("--plugin", a.plugins, "shared object with your policies (docs/adding-a-part.md); repeat for several");
  app.add_flag("--list-policies", a.list, "print each policy's parameters, defaults and source");
}

std::string name_of_file(std::string const& path) { return path.substr(path.rfind('/') + 1); }

void run(arguments& a) {
  using kvpolicy::invalid_value;
  a.options.known = kvpolicy::known_policies(a.plugins);
  if (a.list) {
    std::cout << a.options.known.describe() << kvpolicy::text::describe_prompt_policy();
    return;
  }
  if (a.options.model.empty()) throw invalid_value("--model is missing: name a GGUF file");
  if (!a.prompt.empty() && !a.prompt_files.empty()) throw invalid_value("--prompt and --prompt-file exclude each other");
  if (!a.options.json.empty() && !a.options.trace.empty() && kvpolicy::output_file::same(a.options.json, a.options.trace)) {
    throw invalid_value("--json and --trace are one file, '" + a.options.trace + "'; give each its own");
  }
  if (!a.options.tier.empty() && !a.compare) a.options.managed_cache = true;
  bool const with_state = !a.options.load_state.empty() || !a.options.save_state.empty();
  if (with_state && !a.options.managed_cache)
    throw invalid_value("a state is of a managed cache: give --managed-cache, and --longest");
  if (with_state && a.options.longest == 0) {
    throw invalid_value("a state is loaded by a run of the same --longest: say how many tokens there will be in the end");
  }
  if (a.compare && a.options.managed_cache)
    throw invalid_value("--compare measures a managed cache anyway; leave --managed-cache away");
  if (!a.compare && (a.policies.size() > 1 || a.prompt_files.size() > 1)) {
    throw invalid_value("several policies or prompts need --compare");
  }
  if (a.options.lossless && a.options.managed_cache)
    throw invalid_value("--lossless verifies in the engine's cells; leave the managed cache away");
  bool const other_way =
      a.compare || a.options.managed_cache || a.options.lossless || !a.prompt_policy.empty() || !a.options.trace.empty();
  if (a.options.compact && other_way)
    throw invalid_value(
        "--compact leaves prompts and steps to llama.cpp: leave --compare, --managed-cache, --tier, --lossless, "
        "--prompt-policy and --trace away");
  if (a.policies.empty() && a.options.compact)
    throw invalid_value("--compact needs a policy that drops tokens: --policy snapkv:after=0, knorm, ...");
  if (a.policies.empty() && (a.compare || !a.options.lossless)) {
    a.policies = a.compare ? a.options.known.names() : std::vector<std::string>{"full"};
    std::erase(a.policies, "heterocache");  // it needs a profile
  }
  if (!a.prompt_policy.empty()) a.options.prompt_policy = kvpolicy::text::prompt_policy_of(a.prompt_policy);
  for (std::string const& text : a.policies) a.options.policies.push_back(a.options.known.parse(text, kvpolicy::inputs_for()));
  for (std::string const& path : a.prompt_files) a.options.prompts.push_back({name_of_file(path), kvpolicy::read_file(path)});
  if (a.prompt_files.empty()) {
    if (a.prompt.empty()) {
      if (isatty(STDIN_FILENO) != 0) std::cerr << "kvpolicy-run: reading the prompt from standard input\n";
      a.prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
    }
    a.options.prompts.push_back({"prompt", a.prompt});
  }
  if (a.options.compact) generate_compacted(a.options);
  else if (a.compare) compare(a.options);
  else generate(a.options);
}

}  // namespace

int main(int argc, char** argv) {
  kvpolicy::restart_to_spin_for_a_moment(argv);
  CLI::App app{"Decode a llama.cpp model under KV-cache policies, or compare them with dense decoding.", "kvpolicy-run"};
  arguments a;
  declare(app, a);
  return kvpolicy::tool_main(app, argc, argv, [&] { run(a); });
}
