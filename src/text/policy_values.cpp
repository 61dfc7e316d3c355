#include "policy_values.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

namespace kvpolicy {
namespace {

/// Shortest decimal that reads back as the same number.
template <class Number>
std::string shortest(Number value) {
  std::array<char, 64> text;
  auto const [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  static_cast<void>(error);  // 64 characters hold any number
  return {text.data(), end};
}

template <class Number>
bool parse_number(std::string_view text, Number& value) {
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

template <class Enum>
struct named {
  char const* name;
  Enum value;
};
constexpr std::array smoothings{named<smoothing::kind>{"none", smoothing::kind::none},
                                named<smoothing::kind>{"average", smoothing::kind::average},
                                named<smoothing::kind>{"maximum", smoothing::kind::maximum}};
constexpr std::array merges{named<select::merge>{"mean", select::merge::mean}, named<select::merge>{"sum", select::merge::sum},
                            named<select::merge>{"maximum", select::merge::maximum}};
constexpr std::array groups{named<group_merge>{"mean", group_merge::mean}, named<group_merge>{"maximum", group_merge::maximum}};
constexpr std::array kinds{named<pool::bounds::kind>{"range", pool::bounds::kind::range},
                           named<pool::bounds::kind>{"spread", pool::bounds::kind::spread}};

template <class Table, class Enum>
std::string name_in(Table const& table, Enum value) {
  for (auto const& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}
template <class Table, class Enum>
bool value_in(Table const& table, std::string_view text, Enum& value) {
  for (auto const& entry : table) {
    if (text != entry.name) continue;
    value = entry.value;
    return true;
  }
  return false;
}

/// prefill | every_step | every:STEPS | entropy:NATS[:VARIANCE]
bool assign_trigger(std::string_view text, trigger_choice& choice) {
  constexpr float never = std::numeric_limits<float>::infinity();
  trigger::every every{.steps = 0};
  trigger::entropy entropy{.mean = never, .variance = never};
  std::size_t const colon = text.find(':');
  std::string_view const name = text.substr(0, colon);
  std::string_view const rest = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  if (name == "every_step" && rest.empty()) {
    every.steps = 1;
  } else if (name == "every") {
    if (!parse_number(rest, every.steps) || every.steps < 1) return false;
  } else if (name == "entropy") {
    std::size_t const second = rest.find(':');
    if (!parse_number(rest.substr(0, second), entropy.mean)) return false;
    if (second != std::string_view::npos && !parse_number(rest.substr(second + 1), entropy.variance)) return false;
  } else if (name != "prefill" || !rest.empty()) {
    return false;
  }
  choice = {every, entropy};
  return true;
}

std::string trigger_text(trigger_choice const& choice) {
  if (!choice) return "";
  if (choice->first.steps == 1) return "every_step";
  if (choice->first.steps > 1) return "every:" + std::to_string(choice->first.steps);
  if (choice->second.wants() == signals::none) return "prefill";
  return "entropy:" + shortest(choice->second.mean) + ":" + shortest(choice->second.variance);
}

}  // namespace

std::string text_of(value_pointer at) {
  struct printer {
    std::string operator()(std::int32_t const* v) const { return *v == all_queries ? "all" : std::to_string(*v); }
    std::string operator()(std::int64_t const* v) const { return std::to_string(*v); }
    std::string operator()(bool const* v) const { return *v ? "1" : "0"; }
    std::string operator()(float const* v) const { return shortest(*v); }
    std::string operator()(double const* v) const { return shortest(*v); }
    std::string operator()(std::optional<double> const* v) const { return *v ? shortest(**v) : ""; }
    std::string operator()(smoothing::kind const* v) const { return name_in(smoothings, *v); }
    std::string operator()(select::merge const* v) const { return name_in(merges, *v); }
    std::string operator()(group_merge const* v) const { return name_in(groups, *v); }
    std::string operator()(pool::bounds::kind const* v) const { return name_in(kinds, *v); }
    std::string operator()(trigger_choice const* v) const { return trigger_text(*v); }
    std::string operator()(std::string const* v) const { return *v; }
  };
  return std::visit(printer{}, at);
}

bool assign(value_pointer at, std::string_view text) {
  struct reader {
    std::string_view text;
    bool operator()(std::int32_t* v) const {
      if (text == "all") *v = all_queries;
      return text == "all" || (parse_number(text, *v) && *v >= 0);
    }
    bool operator()(std::int64_t* v) const { return parse_number(text, *v) && *v >= 1 && *v <= INT32_MAX && *v % 2 == 1; }
    bool operator()(float* v) const { return parse_number(text, *v) && std::isfinite(*v); }
    bool operator()(double* v) const { return parse_number(text, *v) && std::isfinite(*v); }
    bool operator()(std::optional<double>* v) const {
      double value = 0;
      if (!parse_number(text, value) || !(value >= 0 && value < 1)) return false;
      *v = value;
      return true;
    }
    bool operator()(bool* v) const {
      *v = text == "1" || text == "true";
      return *v || text == "0" || text == "false";
    }
    bool operator()(smoothing::kind* v) const { return value_in(smoothings, text, *v); }
    bool operator()(select::merge* v) const { return value_in(merges, text, *v); }
    bool operator()(group_merge* v) const { return value_in(groups, text, *v); }
    bool operator()(pool::bounds::kind* v) const { return value_in(kinds, text, *v); }
    bool operator()(trigger_choice* v) const { return assign_trigger(text, *v); }
    bool operator()(std::string* v) const {
      *v = text;
      return !text.empty();
    }
  };
  return std::visit(reader{text}, at);
}

char const* wanted(value_pointer at) {
  struct namer {
    char const* operator()(std::int32_t const*) const { return "a whole number from 0"; }
    char const* operator()(std::int64_t const*) const { return "an odd whole number from 1"; }
    char const* operator()(float const*) const { return "a number"; }
    char const* operator()(double const*) const { return "a number"; }
    char const* operator()(bool const*) const { return "0 or 1"; }
    char const* operator()(std::optional<double> const*) const { return "a fraction removed, from 0 to below 1"; }
    char const* operator()(smoothing::kind const*) const { return "none, average or maximum"; }
    char const* operator()(select::merge const*) const { return "mean, sum or maximum"; }
    char const* operator()(group_merge const*) const { return "mean or maximum"; }
    char const* operator()(pool::bounds::kind const*) const { return "range or spread"; }
    char const* operator()(trigger_choice const*) const {
      return "prefill, every_step, every:STEPS or entropy:NATS[:VARIANCE]";
    }
    char const* operator()(std::string const*) const { return "a file's name"; }
  };
  return std::visit(namer{}, at);
}

}  // namespace kvpolicy
