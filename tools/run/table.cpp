#include "table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace kvpolicy {
namespace {

std::string number(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string first_words(std::string const& answer) {
  std::string text;
  for (char const c : answer) {
    if (static_cast<unsigned char>(c) < 0x20) text += text.empty() || text.back() == ' ' ? "" : " ";
    else text += c;
  }
  if (text.size() <= 40) return text;
  std::size_t cut = 40;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0u) == 0x80u) --cut;  // not inside a character
  return text.substr(0, cut) + "...";
}

std::string aligned(std::vector<std::vector<std::string>> const& rows_of_cells, std::vector<bool> const& right) {
  std::vector<std::size_t> widths(right.size());
  for (auto const& row : rows_of_cells) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (auto const& row : rows_of_cells) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      std::string const pad(widths[c] - row[c].size(), ' ');
      text.append(c == 0 ? "| " : " | ").append(right[c] ? pad : row[c]).append(right[c] ? row[c] : pad);
    }
    text.append(" |\n");
    if (&row != &rows_of_cells.front()) continue;
    for (std::size_t c = 0; c < widths.size(); ++c) text.append("|").append(widths[c] + 1, '-').append(right[c] ? ":" : "-");
    text.append("|\n");
  }
  return text;
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  double const place = q * static_cast<double>(values.size() - 1);
  auto const low = static_cast<std::size_t>(place);
  std::size_t const high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - std::floor(place)) * (values[high] - values[low]);
}

std::string comparison_table(nlohmann::ordered_json const& result) {
  std::vector<std::vector<std::string>> rows_of_cells{
      {"policy", "tokens read", "of cache", "ms/token", "p10-p90", "speed-up", "choose", "top-1", "KL", "answer"}};
  auto const range = [](nlohmann::ordered_json const& run) {
    return number(run["ms_p10"], 2).append("-").append(number(run["ms_p90"], 2));
  };
  auto const percent = [](nlohmann::ordered_json const& share) { return number(100 * share.get<double>(), 1).append("%"); };
  auto const times = [](nlohmann::ordered_json const& run) { return number(run["speedup"], 2).append("x"); };
  auto const dense = [&](char const* name, nlohmann::ordered_json const& run) {
    rows_of_cells.push_back({name, "all", "100%", number(run["ms_per_token"], 2), range(run), times(run), "", "", "", ""});
  };
  dense("dense, flash attention on", result["dense"]["flash_on"]);
  dense("dense, flash attention off", result["dense"]["flash_off"]);
  dense("dense, attached, passing through", result["dense"]["pass_through"]);
  rows_of_cells[1].back() = first_words(result["dense"]["answer"]);
  std::string parameters;
  for (auto const& p : result["policies"]) {
    rows_of_cells.push_back({p["label"], number(p["tokens_read"], 0), percent(p["cache_share"]), number(p["ms_per_token"], 2),
                             range(p), times(p), percent(p["choose_share"]), percent(p["top1_agreement"]), number(p["kl"], 4),
                             first_words(p["answer"])});
    if (!p["parameters"].get<std::string>().empty()) {
      parameters += p["label"].get<std::string>() + ": " + p["parameters"].get<std::string>() + "\n";
    }
  }
  std::string text = aligned(rows_of_cells, {false, true, true, true, true, true, true, true, true, false});
  text += "\ntokens read: mean per KV head and step; speed-up: over the better dense setting (" +
          result["baseline"]["name"].get<std::string>() +
          ");\nchoose: share of a step's time; top-1, KL to dense: teacher-forced on the dense tokens.\n" + parameters;
  if (result["prompts"].size() > 1) {
    text += "\n";
    std::vector<std::vector<std::string>> answers{{"prompt", "tokens", "policy", "answer"}};
    for (std::size_t i = 0; i < result["prompts"].size(); ++i) {
      auto const& prompt = result["prompts"][i];
      answers.push_back({prompt["name"], std::to_string(prompt["tokens"].get<long>()), "dense", first_words(prompt["answer"])});
      for (auto const& p : result["policies"]) answers.push_back({"", "", p["label"], first_words(p["answers"][i])});
    }
    text += aligned(answers, {false, true, false, false});
  }
  return text;
}

}  // namespace kvpolicy
