#include "table.hpp"

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

}  // namespace

std::string comparison_table(nlohmann::ordered_json const& result) {
  std::vector<std::vector<std::string>> rows_of_cells{{"policy", "request", "first token", "ms/token", "p10-p90", "a step",
                                                       "managed", "peak", "memory", "tokens read", "of cache", "split", "top-1",
                                                       "KL", "answer"}};
  bool const tier = !result["policies"].empty() && !result["policies"][0]["tier"].is_null();
  if (tier) rows_of_cells[0].insert(rows_of_cells[0].end() - 1, {"hits", "moved", "stall"});
  auto const range = [](nlohmann::ordered_json const& run) {
    return fixed(run["ms_p10"], 2).append("-").append(fixed(run["ms_p90"], 2));
  };
  auto const percent = [](nlohmann::ordered_json const& share) { return fixed(100 * share.get<double>(), 1).append("%"); };
  auto const split = [](nlohmann::ordered_json const& of) {
    auto const share = [&](char const* what) { return fixed(100 * of[what].get<double>(), 0); };
    return share("weights") + "/" + share("attention") + "/" + share("choosing") + "%";
  };
  auto const times = [](nlohmann::ordered_json const& run, char const* what) { return fixed(run[what], 2).append("x"); };
  auto const seconds = [](nlohmann::ordered_json const& run) {
    return fixed(run["first_token_ms"].get<double>() / 1e3, 2).append(" s");
  };
  auto const megabytes = [](nlohmann::ordered_json const& bytes) { return fixed(bytes.get<double>() / 1e6, 1).append(" MB"); };
  bool const measured = result["memory"].contains("dense_bytes");
  auto const dense = [&](char const* name, nlohmann::ordered_json const& run) {
    bool const whole = run.contains("request_ms");
    std::string const rows = whole && measured ? megabytes(result["memory"]["dense_bytes"]) : "";
    rows_of_cells.push_back({name, whole ? times(run, "request_speedup") : "", whole ? seconds(run) : "",
                             fixed(run["ms_per_token"], 2), range(run), times(run, "speedup"), "", rows, rows, "all", "100%",
                             "", "", "", ""});
    if (tier) rows_of_cells.back().insert(rows_of_cells.back().end() - 1, {"", "", ""});
  };
  dense("dense, flash attention on", result["dense"]["flash_on"]);
  if (!result["dense"]["flash_off"].is_null()) dense("dense, flash attention off", result["dense"]["flash_off"]);
  dense("dense, attached, passing through", result["dense"]["pass_through"]);
  rows_of_cells[1].back() = first_words(result["dense"]["answer"]);
  if (result.contains("lossless")) {
    auto const& l = result["lossless"];
    std::string const equal = percent(l["equal"].get<double>() / std::max(1.0, l["compared"].get<double>()));
    rows_of_cells.push_back({"lossless", "", "", fixed(l["ms_per_token"], 2), range(l), times(l, "speedup"), "", "", "", "all",
                             "100%", "", equal, "", first_words(l["answer"])});
    if (tier) rows_of_cells.back().insert(rows_of_cells.back().end() - 1, {"", "", ""});
  }
  std::string parameters;
  for (auto const& p : result["policies"]) {
    rows_of_cells.push_back({p["label"], times(p, "request_speedup"), seconds(p), fixed(p["ms_per_token"], 2), range(p),
                             times(p, "speedup"), measured ? fixed(p["managed_cache"]["ms_per_token"], 2) : "",
                             measured ? megabytes(p["managed_cache"]["most_bytes"]) : "",
                             measured ? megabytes(p["managed_cache"]["bytes"]) : "", fixed(p["tokens_read"], 0),
                             percent(p["cache_share"]), split(p["request_split"]), percent(p["top1_agreement"]),
                             fixed(p["kl"], 4), first_words(p["answer"])});
    if (tier) {
      auto const& t = p["tier"];
      rows_of_cells.back().insert(rows_of_cells.back().end() - 1,
                                  {percent(t["hit_rate"]), fixed(t["bytes_fetched"].get<double>() / 1e6, 1).append(" MB"),
                                   fixed(1e3 * t["stall_seconds"].get<double>(), 0).append(" ms")});
    }
    if (!p["parameters"].get<std::string>().empty()) {
      parameters += p["label"].get<std::string>() + ": " + p["parameters"].get<std::string>() + "\n";
    }
  }
  std::vector<bool> alignment(rows_of_cells[0].size(), true);
  alignment.front() = alignment.back() = false;
  std::string text = text_table(rows_of_cells, alignment);
  text +=
      "\nrequest: the first prompt and " + std::to_string(result["predict"].get<long>()) +
      " tokens, over the better dense setting (" + result["baseline"]["request_name"].get<std::string>() +
      "); a step: over the better one (" + result["baseline"]["name"].get<std::string>() +
      ");\nmanaged: ms/token with a managed cache; peak, memory: bytes of its rows, at most and after the last "
      "step;\n"
      "tokens read: mean per KV head and step; split: percent of the request's time for weights and all else / attention / "
      "choosing "
      "tokens;\ntop-1, KL to dense: teacher-forced on the dense tokens.\n" +
      (tier ? std::string("hits: rows that were in fast memory when a step named them; moved and stall: over all its runs.\n")
            : "") +
      parameters;
  if (result.contains("lossless")) {
    auto const& l = result["lossless"];
    auto const rounds = std::max(1.0, l["rounds"].get<double>());
    text +=
        "lossless: ms/token over whole answers; top-1: tokens that are full's greedy ones; a "
        "round: " +
        fixed(l["tokens"].get<double>() / rounds, 1) + " tokens, " +
        percent(l["accepted"].get<double>() / std::max(1.0, l["drafted"].get<double>())) + " of its drafts taken, " +
        fixed(l["draft_ms"].get<double>() / rounds, 1) + " ms of drafts and " +
        fixed(l["verify_ms"].get<double>() / rounds, 1) + " of verification\n";
  }
  if (auto const& prompt = result["prompt"]; prompt.contains("policy")) {
    text += "prompts read " + percent(prompt["read_share"]) + " of their pairs: " + prompt["policy"].get<std::string>() + ":" +
            prompt["parameters"].get<std::string>() + "\n";
  }
  for (auto const& line : result["left_to_the_engine"]) text += line.get<std::string>() + "\n";
  if (result["prompts"].size() > 1) {
    text += "\n";
    std::vector<std::vector<std::string>> answers{{"prompt", "tokens", "policy", "answer"}};
    for (std::size_t i = 0; i < result["prompts"].size(); ++i) {
      auto const& prompt = result["prompts"][i];
      answers.push_back({prompt["name"], std::to_string(prompt["tokens"].get<long>()), "dense", first_words(prompt["answer"])});
      for (auto const& p : result["policies"]) answers.push_back({"", "", p["label"], first_words(p["answers"][i])});
    }
    text += text_table(answers, {false, true, false, false});
  }
  return text;
}

}  // namespace kvpolicy
