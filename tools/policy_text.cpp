#include "policy_text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

namespace kvpolicy {
namespace {

using value_pointer = std::variant<std::int32_t*, std::int64_t*, float*, bool*, smoothing::kind*>;

template <class Preset>
struct parameter {
  std::string_view name;
  value_pointer (*of)(Preset&);
  std::string_view help;
};

template <class Preset>
struct setting {
  std::string_view name;
  Preset preset;
  std::string_view help;
};

/// Everything that text can say of one preset.
template <class Preset>
struct entry {
  std::string_view name;
  std::string_view source;
  std::vector<parameter<Preset>> parameters;
  std::vector<setting<Preset>> settings;
};

template <class Visit>
void each_entry(Visit visit) {
  using namespace presets;
  visit(entry<full>{"full", "reads every token", {}, {}});
  visit(
      entry<streaming_llm>{"streaming_llm",
                           "attention sinks and recent tokens (Xiao et al. 2024, arXiv 2309.17453)",
                           {{"tokens", [](streaming_llm& p) -> value_pointer { return &p.tokens; }, "kept in all"},
                            {"sinks", [](streaming_llm& p) -> value_pointer { return &p.sinks; }, "first tokens, among them"}},
                           {}});
  visit(entry<snapkv>{
      "snapkv",
      "what the prompt's last queries attend to (Li et al. 2024, arXiv 2404.14469)",
      {{"tokens", [](snapkv& p) -> value_pointer { return &p.tokens; }, "kept of the prompt for each KV head"},
       {"window", [](snapkv& p) -> value_pointer { return &p.window; }, "observing queries, always kept"},
       {"sinks", [](snapkv& p) -> value_pointer { return &p.sinks; }, "first tokens, always kept"},
       {"kernel", [](snapkv& p) -> value_pointer { return &p.smooth.width; }, "tokens that one score is smoothed over, odd"},
       {"smooth", [](snapkv& p) -> value_pointer { return &p.smooth.how; }, "none, average or maximum"}},
      {{"paper", snapkv::paper(), "the published setting: window 64, average over 5"}}});
  visit(entry<quest>{"quest",
                     "pages that could matter most to this step's query (Tang et al. 2024, arXiv 2406.10774)",
                     {{"tokens", [](quest& p) -> value_pointer { return &p.tokens; }, "read by each KV head at each step"},
                      {"page", [](quest& p) -> value_pointer { return &p.page; }, "tokens of a page"},
                      {"sink_pages", [](quest& p) -> value_pointer { return &p.sink_pages; }, "first pages, always read"},
                      {"recent_pages", [](quest& p) -> value_pointer { return &p.recent_pages; }, "last pages, always read"}},
                     {}});
  visit(entry<chess>{
      "chess",
      "hierarchical selection, renewed when the model is unsure (CHESS, Fei et al.)",
      {{"grids", [](chess& p) -> value_pointer { return &p.fractions.grids; }, "fraction of grids kept"},
       {"chunks", [](chess& p) -> value_pointer { return &p.fractions.chunks; }, "fraction of live chunks kept"},
       {"pages", [](chess& p) -> value_pointer { return &p.fractions.pages; }, "fraction of live pages kept"},
       {"page", [](chess& p) -> value_pointer { return &p.units.page; }, "tokens of a page"},
       {"pages_per_chunk", [](chess& p) -> value_pointer { return &p.units.pages_per_chunk; }, "N_c"},
       {"chunks_per_grid", [](chess& p) -> value_pointer { return &p.units.chunks_per_grid; }, "N_g"},
       {"sink_pages", [](chess& p) -> value_pointer { return &p.sink_pages; }, "first pages, always read"},
       {"recent_pages", [](chess& p) -> value_pointer { return &p.recent_pages; }, "W: last pages, always read, the anchor"},
       {"entropy", [](chess& p) -> value_pointer { return &p.entropy; }, "threshold of a page's mean entropy, nats"},
       {"varentropy", [](chess& p) -> value_pointer { return &p.varentropy; }, "threshold of its variance"},
       {"paper_literal", [](chess& p) -> value_pointer { return &p.paper_literal; }, "Algorithm 1 to the letter"}},
      {}});
}

std::string text_of(value_pointer at) {
  struct printer {
    std::string operator()(std::int32_t const* v) const { return std::to_string(*v); }
    std::string operator()(std::int64_t const* v) const { return std::to_string(*v); }
    std::string operator()(bool const* v) const { return *v ? "1" : "0"; }
    std::string operator()(float const* v) const {
      char text[32];
      std::snprintf(text, sizeof text, "%g", static_cast<double>(*v));
      return text;
    }
    std::string operator()(smoothing::kind const* v) const {
      return *v == smoothing::kind::none ? "none" : *v == smoothing::kind::average ? "average" : "maximum";
    }
  };
  return std::visit(printer{}, at);
}

template <class Number>
bool parse_number(std::string_view text, Number& value) {
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool assign(value_pointer at, std::string_view text) {
  struct reader {
    std::string_view text;
    bool operator()(std::int32_t* v) const { return parse_number(text, *v) && *v >= 0; }
    bool operator()(std::int64_t* v) const { return parse_number(text, *v) && *v >= 1 && *v % 2 == 1; }
    bool operator()(float* v) const { return parse_number(text, *v) && std::isfinite(*v); }
    bool operator()(bool* v) const {
      *v = text == "1" || text == "true";
      return *v || text == "0" || text == "false";
    }
    bool operator()(smoothing::kind* v) const {
      *v = text == "average" ? smoothing::kind::average : text == "maximum" ? smoothing::kind::maximum : smoothing::kind::none;
      return *v != smoothing::kind::none || text == "none";
    }
  };
  return std::visit(reader{text}, at);
}

char const* wanted(value_pointer at) {
  struct namer {
    char const* operator()(std::int32_t const*) const { return "a whole number from 0"; }
    char const* operator()(std::int64_t const*) const { return "an odd whole number from 1"; }
    char const* operator()(float const*) const { return "a number"; }
    char const* operator()(bool const*) const { return "0 or 1"; }
    char const* operator()(smoothing::kind const*) const { return "none, average or maximum"; }
  };
  return std::visit(namer{}, at);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

/// "unknown <what> 'x'; did you mean 'y'? There are: a, b, c"
[[noreturn]] void unknown(std::string const& what, std::string_view given, std::vector<std::string> const& known) {
  std::string message = "unknown " + what + " '" + std::string(given) + "'";
  if (known.empty()) throw invalid_value(message + "; it has none");
  auto const nearest = std::ranges::min_element(known, {}, [&](std::string const& k) { return edit_distance(given, k); });
  if (edit_distance(given, *nearest) <= std::max<std::size_t>(2, nearest->size() / 2))
    message += "; did you mean '" + *nearest + "'?";
  else message += ";";
  message += " There are:";
  for (std::string const& k : known) message += (&k == &known.front() ? " " : ", ") + k;
  throw invalid_value(message);
}

template <class Preset>
std::string parameters_of(entry<Preset> const& e, Preset preset) {
  std::string text;
  for (auto const& p : e.parameters) {
    text += (text.empty() ? "" : ",") + std::string(p.name) + "=" + text_of(p.of(preset));
  }
  return text;
}

template <class Preset>
Preset parse_items(entry<Preset> const& e, std::string_view items) {
  Preset preset{};
  std::vector<std::string> known;
  for (auto const& p : e.parameters) known.emplace_back(p.name);
  for (auto const& s : e.settings) known.emplace_back(s.name);
  while (!items.empty()) {
    std::size_t const comma = items.find(',');
    std::string_view const item = items.substr(0, comma);
    items = comma == std::string_view::npos ? std::string_view{} : items.substr(comma + 1);
    std::size_t const equals = item.find('=');
    std::string_view const key = item.substr(0, equals);
    if (equals == std::string_view::npos) {
      auto const found = std::ranges::find(e.settings, key, &setting<Preset>::name);
      if (found == e.settings.end()) unknown("parameter of policy " + std::string(e.name), key, known);
      preset = found->preset;
      continue;
    }
    auto const found = std::ranges::find(e.parameters, key, &parameter<Preset>::name);
    if (found == e.parameters.end()) unknown("parameter of policy " + std::string(e.name), key, known);
    if (value_pointer const at = found->of(preset); !assign(at, item.substr(equals + 1))) {
      throw invalid_value("policy " + std::string(e.name) + ": " + std::string(key) + " is '" +
                          std::string(item.substr(equals + 1)) + "'; it must be " + wanted(at));
    }
  }
  return preset;
}

}  // namespace

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  each_entry([&](auto const& e) { names.emplace_back(e.name); });
  return names;
}

named_policy parse_policy(std::string_view text) {
  std::size_t const colon = text.find(':');
  std::string_view const name = text.substr(0, colon);
  std::string_view const items = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  named_policy result;
  each_entry([&](auto const& e) {
    if (e.name != name) return;
    auto const preset = parse_items(e, items);
    result = {std::string(name), parameters_of(e, preset), preset};
  });
  if (result.name.empty()) unknown("policy", name, policy_names());
  return result;
}

std::string describe_policies() {
  std::string text;
  each_entry([&](auto const& e) {
    text += std::string(e.name) + ": " + std::string(e.source) + "\n";
    decltype(parse_items(e, "")) preset{};
    for (auto const& p : e.parameters) {
      std::string const value = std::string(p.name) + "=" + text_of(p.of(preset));
      text += "  " + value + std::string(value.size() < 24 ? 24 - value.size() : 1, ' ') + std::string(p.help) + "\n";
    }
    for (auto const& s : e.settings) {
      text += "  " + std::string(s.name) + std::string(24 - s.name.size(), ' ') + std::string(s.help) + "\n";
    }
  });
  return text;
}

}  // namespace kvpolicy
