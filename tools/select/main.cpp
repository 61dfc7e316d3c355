// kvpolicy-select: what a policy keeps of one captured prompt, as JSON, to compare with other implementations.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "case_file.hpp"
#include "kvpolicy/exec/simd.hpp"
#include "published.hpp"
#include "tool_main.hpp"

namespace {

using namespace kvpolicy;

struct arguments {
  std::string path;
  std::string policy;
  std::string ratio;
  std::vector<std::int64_t> text;  ///< first token and end of a text that the tokens behind it repeat
  std::vector<std::string> plugins;
  std::vector<std::pair<std::string, std::string>> options;  ///< "window", "64"
};

void declare(CLI::App& app, arguments& a) {
  app.add_option("CASE", a.path, "the .safetensors file")->required();
  app.add_option("--policy", a.policy, "the policy's name")->required();
  app.add_option("--ratio", a.ratio, "fraction removed, 0 <= R < 1");
  app.add_option("--text", a.text, "BEGIN,END: the tokens from END on repeat those from BEGIN to END, for kvzip")
      ->delimiter(',')
      ->expected(2);
  app.add_option("--plugin", a.plugins, "shared object with your policies; repeat for several");
  app.allow_extras();
  app.footer("Every further --OPTION VALUE is a parameter of the policy (kvpolicy-run --list-policies).");
}

/// The options after the case are a policy's parameters with dashes for underscores; each takes one value.
std::vector<std::pair<std::string, std::string>> options_of(std::vector<std::string> const& extras) {
  std::vector<std::pair<std::string, std::string>> options;
  for (std::size_t i = 0; i < extras.size(); ++i) {
    std::string name = extras[i];
    if (!name.starts_with("--")) throw invalid_value("'" + name + "' is neither an option nor an option's value");
    name.erase(0, 2);
    std::string value;
    if (std::size_t const equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.erase(equals);
    } else {
      if (i + 1 == extras.size()) throw invalid_value("--" + name + " needs a value");
      value = extras[++i];
    }
    std::ranges::replace(name, '-', '_');
    options.emplace_back(name, value);
  }
  return options;
}

/// The policy that is asked for. Its published setting is the base, so that the options given are all that differs.
named_host_policy policy_of(arguments const& a, std::int64_t tokens) {
  host_policy_list const known = known_policies(a.plugins);
  std::string name = a.policy;
  std::string items;
  auto const value_of = [&](char const* option) -> std::string {
    for (auto const& [key, value] : a.options) {
      if (key == option) return value;
    }
    return "";
  };
  // The reading that counts for prompts shorter than one chunk: choose single tokens.
  bool const short_of_a_chunk = name == "chunkkv" && value_of("window_in_budget") == "1" && !value_of("chunk").empty() &&
                                tokens < std::strtoll(value_of("chunk").c_str(), nullptr, 10);
  if (short_of_a_chunk) name = "snapkv";
  bool const observes = known.has_parameter(name, "smooth") && name != "sentencekv" && name != "heterocache";
  if (name == "chunkkv" || name == "pyramidkv") items = "kvpress";
  else if (observes) items = value_of("smooth").empty() ? "paper,smooth=average" : "paper";
  else if (known.has_parameter(name, "after")) items = "after=0";
  if (!a.ratio.empty()) items += (items.empty() ? "ratio=" : ",ratio=") + a.ratio;
  for (auto const& [key, value] : a.options) {
    if (short_of_a_chunk && (key == "chunk" || key == "reduce" || key == "window_in_budget")) continue;
    items += (items.empty() ? "" : ",") + key + "=" + value;
  }
  return known.parse(name + (items.empty() ? "" : ":" + items), inputs_for());
}

nlohmann::json kept_of(case_file const& prompt, host_policy const& policy, token_span const& text) {
  cache_shape const& shape = prompt.shape;
  std::int64_t const n = shape.max_tokens;
  bool const retrieves = !requirements_of(policy.retrieve).keeps_all;
  if (retrieves && n < 2) throw invalid_value("a policy that retrieves needs a prompt of at least 2 tokens");
  bool const repeats = contains(needs_of(policy), signals::repetition);
  if (repeats && (text.begin < 0 || text.begin >= text.end || text.end >= n)) {
    throw invalid_value("--text " + std::to_string(text.begin) + "," + std::to_string(text.end) + " for a case of " +
                        std::to_string(n) + " tokens; say which tokens those behind them repeat");
  }
  // A retrieve chooses for the last token, behind a prompt of all others.
  std::int64_t const known = repeats ? text.end : retrieves ? n - 1 : n;
  std::vector<rows> keys;
  std::vector<rows> values;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    keys.push_back(prompt.view(n).keys({l}));
    values.push_back(prompt.view(n).values({l}));
  }
  auto const view = [&](std::int64_t tokens) { return layer_table_view{shape, tokens, keys.data(), values.data()}; };
  simd_exec exec(shape);
  auto state = start(policy, shape);
  std::int64_t const row = shape.q_heads * shape.head_dim;
  float const scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  std::vector<std::int32_t> const ids(static_cast<std::size_t>(n), -1);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    prompt_signals const signals{
        .first = 0,
        .queries = {prompt.queries[static_cast<std::size_t>(l)].data(), known, shape.q_heads, row, shape.head_dim, scale},
        .rope = {prompt.inverse_frequency.data(), static_cast<std::int64_t>(prompt.inverse_frequency.size())},
        .token_ids = std::span(ids).first(static_cast<std::size_t>(known))};
    state.prefill(view(known), {l}, signals, exec);
  }
  for (std::int64_t l = 0; l < shape.layers && repeats; ++l) {
    query_window const all{prompt.queries[static_cast<std::size_t>(l)].data(), n, shape.q_heads, row, shape.head_dim, scale};
    state.prefill(view(n), {l}, {.first = text.end, .queries = all.last(n - text.end), .repeats = text}, exec);
  }
  nlohmann::json layers = nlohmann::json::array();
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    query_heads const last{prompt.queries[static_cast<std::size_t>(l)].data() + (n - 1) * row, shape.q_heads, shape.head_dim,
                           scale};
    selection const kept = retrieves ? state.choose(view(n), {l}, {last, -1}, exec) : state.retained({l});
    nlohmann::json heads = nlohmann::json::array();
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      std::vector<std::int32_t> tokens;
      for (token_range const& range : kept.of({h})) {
        for (std::int32_t t = range.begin; t < range.end && (!repeats || t < text.end); ++t) tokens.push_back(t);
      }
      heads.push_back(std::move(tokens));
    }
    layers.push_back(std::move(heads));
  }
  return layers;
}

void run(arguments const& a) {
  case_file const prompt = read_case(a.path);
  named_host_policy const chosen = policy_of(a, prompt.shape.max_tokens);
  token_span const text = a.text.empty() ? token_span{} : token_span{a.text.front(), a.text.back()};
  nlohmann::ordered_json const result{{"policy", a.policy}, {"kept", kept_of(prompt, chosen.policy, text)}};
  std::cout << result.dump() << '\n' << std::flush;
  if (!std::cout) throw error("standard output could not be written whole");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Print what a policy keeps of a captured prompt (kvpolicy-case/1), when the prompt ends.", "kvpolicy-select"};
  arguments a;
  declare(app, a);
  return tool_main(app, argc, argv, [&] {
    a.options = options_of(app.remaining());
    run(a);
  });
}
