// Parameters of policies as text: "512", "average", "every:6".
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kvpolicy/layering.hpp"
#include "kvpolicy/triggers/any_of.hpp"
#include "kvpolicy/triggers/entropy.hpp"
#include "kvpolicy/triggers/every.hpp"
#include "kvpolicy/triggers/every_step.hpp"

namespace kvpolicy::text {

/// A trigger that text names: it is due every so many steps, or by the entropy of the model's logits.
using named_trigger = triggers::any_of<triggers::every, triggers::entropy>;
using trigger_choice = std::optional<named_trigger>;                    ///< none: the rule's own trigger
inline constexpr float never = std::numeric_limits<float>::infinity();  ///< a threshold that no entropy passes

/// Returns the shortest decimal that reads back as the same number.
/// @param value  the number
template <class Number>
std::string shortest(Number value) {
  std::array<char, 64> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

/// Reads a finite number that is the whole text.
/// @param text  the text
/// @param value  receives the number; unchanged if there is none
/// @return whether there was one
template <class Number>
bool parse_number(std::string_view text, Number& value) {
  Number found{};
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if constexpr (std::floating_point<Number>) {
    if (!std::isfinite(found)) return false;
  }
  value = found;
  return true;
}

/// An enumeration with names.
/// Requires: `names_of(value)` beside the enumeration, the names in the order of its values.
template <class T>
concept named_enumeration = std::is_enum_v<T> && requires(T value) {
  names_of(value)[0];
};

/// Returns a trigger as parse() reads it; "" for none.
/// @param choice  the trigger
inline std::string print(trigger_choice const& choice) {
  if (!choice) return "";
  if (choice->first.steps == 1) return "every_step";
  if (choice->first.steps > 1) return "every:" + std::to_string(choice->first.steps);
  if (choice->second.wants() == signals::none) return "prefill";
  return "entropy:" + shortest(choice->second.mean) + ":" + shortest(choice->second.variance);
}
/// Returns layers as parse() reads them, "2/8/18".
/// @param layers  the layers
inline std::string print(layer_set const& layers) {
  std::string text;
  for (std::int64_t l = 0; l < layer_set::most; ++l) {
    if (layers.last_up_to(l) != l) continue;
    if (!text.empty()) text += '/';
    text += std::to_string(l);
  }
  return text;
}
/// Returns a parameter's value as parse() reads it.
/// @param value  the value
template <class T>
std::string print(T const& value) {
  if constexpr (std::same_as<T, bool>) return value ? "1" : "0";
  else if constexpr (std::same_as<T, std::int32_t>) return value == all_queries ? "all" : std::to_string(value);
  else if constexpr (std::same_as<T, std::optional<double>>) return value ? shortest(*value) : "";
  else if constexpr (named_enumeration<T>) return names_of(value)[static_cast<std::size_t>(value)];
  else return shortest(value);
}

/// Reads a trigger: prefill | every_step | every:STEPS | entropy:NATS[:VARIANCE].
/// @param text  the text
/// @param choice  receives the trigger; unchanged if there is none
/// @return whether there was one
inline bool parse(std::string_view text, trigger_choice& choice) {
  triggers::every every{.steps = 0};
  triggers::entropy entropy{.mean = never, .variance = never};
  std::size_t const colon = text.find(':');
  std::string_view const name = text.substr(0, colon);
  std::string_view const rest = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  if (name == "every_step" && rest.empty()) {
    every.steps = 1;
  } else if (name == "every") {
    if (!parse_number(rest, every.steps) || every.steps < 1) return false;
  } else if (name == "entropy") {
    std::size_t const second = rest.find(':');
    if (!parse_number(rest.substr(0, second), entropy.mean) || entropy.mean < 0) return false;
    if (second != std::string_view::npos && (!parse_number(rest.substr(second + 1), entropy.variance) || entropy.variance < 0))
      return false;
  } else if (name != "prefill" || !rest.empty()) {
    return false;
  }
  choice = {every, entropy};
  return true;
}
/// Reads layers, "2/8/18".
/// @param text  the text
/// @param layers  receives the layers; unchanged if the text names none, or one that no set can hold
/// @return whether it was changed
inline bool parse(std::string_view text, layer_set& layers) {
  std::vector<std::int64_t> found;
  for (std::size_t end = 0; end != std::string_view::npos; text.remove_prefix(end == std::string_view::npos ? 0 : end + 1)) {
    end = text.find('/');
    if (!parse_number(text.substr(0, end), found.emplace_back())) return false;
    if (found.back() < 0 || found.back() >= layer_set::most) return false;
  }
  layers = layer_set::of(found);
  return true;
}
/// Reads a parameter's value.
/// @param text  the text
/// @param value  receives the value; unchanged if the text is no value of its type
/// @return whether it was one
template <class T>
bool parse(std::string_view text, T& value) {
  T found{};
  if constexpr (std::same_as<T, bool>) {
    found = text == "1" || text == "true";
    if (!found && text != "0" && text != "false") return false;
  } else if constexpr (std::same_as<T, std::int32_t>) {
    if (text == "all") found = all_queries;
    else if (!parse_number(text, found) || found < 0) return false;
  } else if constexpr (std::same_as<T, std::int64_t>) {  // a width around its middle
    if (!parse_number(text, found) || found < 1 || found > INT32_MAX || found % 2 == 0) return false;
  } else if constexpr (std::same_as<T, std::optional<double>>) {
    found = 0;
    if (!parse_number(text, *found) || !(*found >= 0 && *found < 1)) return false;
  } else if constexpr (named_enumeration<T>) {
    auto const names = names_of(value);
    auto const at = std::ranges::find(names, text, [](char const* name) { return std::string_view(name); });
    if (at == names.end()) return false;
    found = static_cast<T>(at - names.begin());
  } else {
    static_assert(std::floating_point<T>,
                  "a parameter is a bool, an int32, an odd int64, a float, a double, an optional "
                  "fraction, or an enumeration with names_of(value) beside it");
    if (!parse_number(text, found) || found < 0) return false;
  }
  value = found;
  return true;
}

/// Returns what values a parameter may have, "a whole number from 0".
/// @param value  any value of the parameter's type
template <class T>
std::string wanted(T const& value) {
  if constexpr (std::same_as<T, bool>) return "0 or 1";
  else if constexpr (std::same_as<T, std::int32_t>) return "a whole number from 0";
  else if constexpr (std::same_as<T, std::int64_t>) return "an odd whole number from 1";
  else if constexpr (std::same_as<T, std::optional<double>>) return "a fraction removed, from 0 to below 1";
  else if constexpr (std::same_as<T, trigger_choice>) return "prefill, every_step, every:STEPS or entropy:NATS[:VARIANCE]";
  else if constexpr (std::same_as<T, layer_set>) return "layers from 0 on, such as 2/8/18";
  else if constexpr (named_enumeration<T>) {
    auto const names = names_of(value);
    std::string list = names[0];
    for (std::size_t i = 1; i < names.size(); ++i) list += (i + 1 == names.size() ? " or " : ", ") + std::string(names[i]);
    return list;
  } else return "a number from 0";
}

}  // namespace kvpolicy::text
