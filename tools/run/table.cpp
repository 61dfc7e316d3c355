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
std::string range(json const& run) { return fixed(run["ms_p10"], 2).append("-").append(fixed(run["ms_p90"], 2)); }
std::string split(json const& of) {
  auto const share = [&](char const* what) { return fixed(100 * of[what].get<double>(), 0); };
  return share("weights") + "/" + share("attention") + "/" + share("choosing") + "%";
}

bool with_tier(json const& result) { return !result["policies"].empty() && !result["policies"][0]["tier"].is_null(); }
bool with_memory(json const& result) { return result["memory"].contains("dense_bytes"); }

cells dense_row(json const& result, char const* name, json const& run) {
  bool const whole = run.contains("request_ms");
  std::string const rows = whole && with_memory(result) ? megabytes(result["memory"]["dense_bytes"]) : "";
  return {name,
          whole ? times(run, "request_speedup") : "",
          whole ? seconds(run) : "",
          fixed(run["ms_per_token"], 2),
          range(run),
          times(run, "speedup"),
          "",
          rows,
          rows,
          "all",
          "100%",
          "",
          "",
          "",
          ""};
}
cells lossless_row(json const& l) {
  std::string const equal = percent(l["equal"].get<double>() / std::max(1.0, l["compared"].get<double>()));
  return {"lossless", "",    "", fixed(l["ms_per_token"], 2), range(l), times(l, "speedup"), "", "", "", "all", "100%",
          "",         equal, "", first_words(l["answer"])};
}
cells policy_row(json const& p, bool measured) {
  return {p["label"],
          times(p, "request_speedup"),
          seconds(p),
          fixed(p["ms_per_token"], 2),
          range(p),
          times(p, "speedup"),
          measured ? fixed(p["managed_cache"]["ms_per_token"], 2) : "",
          measured ? megabytes(p["managed_cache"]["most_bytes"]) : "",
          measured ? megabytes(p["managed_cache"]["bytes"]) : "",
          fixed(p["tokens_read"], 0),
          percent(p["cache_share"]),
          split(p["request_split"]),
          percent(p["top1_agreement"]),
          fixed(p["kl"], 4),
          first_words(p["answer"])};
}
cells tier_cells(json const& t) {
  return {percent(t["hit_rate"]), megabytes(t["bytes_fetched"]),
          fixed(1e3 * t["stall_seconds"].get<double>(), 0).append(" ms")};
}

std::vector<cells> rows_of(json const& result) {
  std::vector<cells> made{{"policy", "request", "first token", "ms/token", "p10-p90", "a step", "managed", "peak", "memory",
                           "tokens read", "of cache", "split", "top-1", "KL", "answer"}};
  bool const tier = with_tier(result);
  auto const add = [&](cells row, cells const& of_tier) {
    if (tier) row.insert(row.end() - 1, of_tier.begin(), of_tier.end());
    made.push_back(std::move(row));
  };
  cells const none(3);
  if (tier) made[0].insert(made[0].end() - 1, {"hits", "moved", "stall"});
  json const& dense = result["dense"];
  add(dense_row(result, "dense, flash attention on", dense["flash_on"]), none);
  if (!dense["flash_off"].is_null()) add(dense_row(result, "dense, flash attention off", dense["flash_off"]), none);
  add(dense_row(result, "dense, attached, passing through", dense["pass_through"]), none);
  made[1].back() = first_words(dense["answer"]);
  if (result.contains("lossless")) add(lossless_row(result["lossless"]), none);
  for (json const& p : result["policies"]) add(policy_row(p, with_memory(result)), tier ? tier_cells(p["tier"]) : none);
  return made;
}

/// What the columns are, and what does not fit into them.
std::string remarks(json const& result) {
  std::string text = "\nrequest: the first prompt and " + std::to_string(result["predict"].get<long>()) +
                     " tokens, over the better dense setting (" + result["baseline"]["request_name"].get<std::string>() +
                     "); a step: over the better one (" + result["baseline"]["name"].get<std::string>() +
                     ");\nmanaged: ms/token with a managed cache; peak, memory: bytes of its rows, at most and after the last "
                     "step;\ntokens read: mean per KV head and step; split: percent of the request's time for weights and all "
                     "else / attention / choosing tokens;\ntop-1, KL to dense: teacher-forced on the dense tokens.\n";
  if (with_tier(result))
    text += "hits: rows that were in fast memory when a step named them; moved and stall: over all its runs.\n";
  for (json const& p : result["policies"]) {
    if (!p["parameters"].get<std::string>().empty())
      text += p["label"].get<std::string>() + ": " + p["parameters"].get<std::string>() + "\n";
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
  std::vector<cells> made{{"prompt", "tokens", "policy", "answer"}};
  for (std::size_t i = 0; i < result["prompts"].size(); ++i) {
    json const& prompt = result["prompts"][i];
    made.push_back({prompt["name"], std::to_string(prompt["tokens"].get<long>()), "dense", first_words(prompt["answer"])});
    for (json const& p : result["policies"]) made.push_back({"", "", p["label"], first_words(p["answers"][i])});
  }
  return "\n" + text_table(made, {false, true, false, false});
}

}  // namespace

std::string comparison_table(nlohmann::ordered_json const& result) {
  std::vector<cells> const rows = rows_of(result);
  std::vector<bool> alignment(rows[0].size(), true);
  alignment.front() = alignment.back() = false;
  std::string const text = text_table(rows, alignment) + remarks(result);
  return result["prompts"].size() > 1 ? text + answers(result) : text;
}

}  // namespace kvpolicy
