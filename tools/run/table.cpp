#include "table.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "text_table.hpp"

namespace kvpolicy {
namespace {

std::string first_words(std::string const& answer) {
  std::string text;
  for (char const c : answer) {
    if (static_cast<unsigned char>(c) < 0x20) text += text.empty() || text.back() == ' ' ? "" : " ";
    else text += c;
  }
  std::size_t cut = 80;  // a number at the end of a sentence that repeats the question still stands in it
  if (text.size() <= cut) return text;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0u) == 0x80u) --cut;  // not inside a character
  return text.substr(0, cut) + "...";
}

using json = nlohmann::ordered_json;
using cells = std::vector<std::string>;

std::string percent(json const& share) { return fixed(100 * share.get<double>(), 1).append("%"); }
std::string times(json const& run, char const* what) { return fixed(run[what], 2).append("x"); }
std::string seconds(json const& run) { return fixed(run["first_token_ms"].get<double>() / 1e3, 2).append(" s"); }
std::string megabytes(json const& bytes) { return fixed(bytes.get<double>() / 1e6, 1).append(" MB"); }
bool with_memory(json const& result) { return result["memory"].contains("dense_bytes"); }

cells dense_row(json const& result, char const* name, json const& run) {
  bool const whole = run.contains("request_ms");
  return {name,
          whole ? seconds(run) : "",
          fixed(run["ms_per_token"], 2),
          whole ? times(run, "request_speedup") : "",
          times(run, "speedup"),
          whole && with_memory(result) ? megabytes(result["memory"]["dense_bytes"]) : "",
          "100%",
          ""};
}
cells lossless_row(json const& l) {
  return {"lossless",
          "",
          fixed(l["ms_per_token"], 2),
          "",
          times(l, "speedup"),
          "",
          "100%",
          percent(l["equal"].get<double>() / std::max(1.0, l["compared"].get<double>()))};
}
cells policy_row(json const& p, bool measured) {
  return {p["label"],
          seconds(p),
          fixed(p["ms_per_token"], 2),
          times(p, "request_speedup"),
          times(p, "speedup"),
          measured ? megabytes(p["managed_cache"]["bytes"]) : "",
          percent(p["cache_share"]),
          percent(p["top1_agreement"])};
}

std::vector<cells> rows_of(json const& result) {
  json const& dense = result["dense"];
  std::vector<cells> made{{"policy", "first token", "ms/token", "request", "a step", "memory", "read", "top-1"},
                          dense_row(result, "dense, flash attention on", dense["flash_on"])};
  if (!dense["flash_off"].is_null()) made.push_back(dense_row(result, "dense, flash attention off", dense["flash_off"]));
  made.push_back(dense_row(result, "dense, through kvpolicy", dense["pass_through"]));
  if (result.contains("lossless")) made.push_back(lossless_row(result["lossless"]));
  for (json const& p : result["policies"]) made.push_back(policy_row(p, with_memory(result)));
  return made;
}

/// What the columns are, and what does not fit into them.
std::string remarks(json const& result) {
  std::string text =
      "\nrequest: how many times faster the first prompt and " + std::to_string(result["predict"].get<long>()) +
      " tokens are than under the better dense setting (" + result["baseline"]["request_name"].get<std::string>() +
      "); a step:\nthe same of one token (" + result["baseline"]["name"].get<std::string>() +
      "); memory: the rows after the last step, under policies with a managed cache;\nread: the share of the cache "
      "that a step reads, on average; top-1: how often the next token is dense decoding's.\n";
  for (json const& p : result["policies"]) {
    std::string const label = p["label"];
    if (!p["parameters"].get<std::string>().empty()) text += label + ": " + p["parameters"].get<std::string>() + "\n";
    if (json const& tier = p["tier"]; !tier.is_null())
      text += label + ": of the rows that steps named " + percent(tier["hit_rate"]) + " were in fast memory; the tier moved " +
              megabytes(tier["bytes_fetched"]) + " and steps waited for " +
              fixed(1e3 * tier["stall_seconds"].get<double>(), 0) + " ms, over all runs\n";
  }
  if (result.contains("lossless")) {
    json const& l = result["lossless"];
    auto const rounds = std::max(1.0, l["rounds"].get<double>());
    text += "lossless: ms/token over whole answers; top-1: tokens that are full's greedy ones; a round: " +
            fixed(l["tokens"].get<double>() / rounds, 1) + " tokens, " +
            percent(l["accepted"].get<double>() / std::max(1.0, l["drafted"].get<double>())) + " of its drafts taken, " +
            fixed(l["draft_ms"].get<double>() / rounds, 1) + " ms of drafts and " +
            fixed(l["verify_ms"].get<double>() / rounds, 1) + " of verification\n";
  }
  if (json const& prompt = result["prompt"]; prompt.contains("policy")) {
    text += "prompts read " + percent(prompt["read_share"]) + " of their pairs: " + prompt["policy"].get<std::string>() + ":" +
            prompt["parameters"].get<std::string>() + "\n";
  }
  for (json const& line : result["left_to_the_engine"]) text += line.get<std::string>() + "\n";
  return text;
}

std::string answers(json const& result) {
  bool const several = result["prompts"].size() > 1;
  std::vector<cells> made{{several ? "prompt" : "policy", several ? "policy" : "answer"}};
  if (several) made[0].push_back("answer");
  auto const add = [&](std::size_t prompt, json const& policy, json const& answer) {
    made.push_back({policy, first_words(answer)});
    if (several) made.back().insert(made.back().begin(), result["prompts"][prompt]["name"]);
  };
  for (std::size_t i = 0; i < result["prompts"].size(); ++i) {
    add(i, "dense", result["prompts"][i]["answer"]);
    if (i == 0 && result.contains("lossless")) add(i, "lossless", result["lossless"]["answer"]);
    for (json const& p : result["policies"]) add(i, p["label"], p["answers"][i]);
  }
  return text_table(made, std::vector<bool>(made[0].size(), false));
}

}  // namespace

std::string comparison_table(nlohmann::ordered_json const& result) {
  std::vector<cells> const rows = rows_of(result);
  std::vector<bool> alignment(rows[0].size(), true);
  alignment.front() = false;
  return text_table(rows, alignment) + remarks(result) + "\n" + answers(result);
}

}  // namespace kvpolicy
