// A prompt policy from text: "pages:share=.1,page=64".
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "kvpolicy/prompt_pages.hpp"
#include "kvpolicy/text/suggestion.hpp"
#include "kvpolicy/text/values.hpp"

namespace kvpolicy::text {

/// Makes a prompt policy from text.
/// @param text  NAME[:key=value,...]
/// @return the policy; parameters that `text` does not name have their defaults
/// @throws invalid_value that names what is unknown or can't be read
inline prompt_pages prompt_policy_of(std::string_view text) {
  std::string_view const name = text.substr(0, text.find(':'));
  if (name != prompt_pages::name) throw unknown("prompt policy", std::string(name), {prompt_pages::name});
  prompt_pages made;
  std::string_view items = text.substr(std::min(text.size(), name.size() + 1));
  std::vector<std::string_view> given_keys;
  while (!items.empty()) {
    std::string_view const item = items.substr(0, items.find(','));
    items.remove_prefix(std::min(items.size(), item.size() + 1));
    std::string_view const key = item.substr(0, item.find('='));
    std::string_view const given = item.substr(std::min(item.size(), key.size() + 1));
    if (std::ranges::find(given_keys, key) != given_keys.end())
      throw invalid_value("prompt policy pages: " + std::string(key) + " is given twice");
    given_keys.push_back(key);
    std::vector<std::string> known;
    bool found = false;
    prompt_pages::parameters(made, [&](char const* parameter, auto& value, char const*) {
      known.emplace_back(parameter);
      if (key != parameter) return;
      found = true;
      if (parse(given, value)) return;
      throw invalid_value("prompt policy pages: " + std::string(key) + " is '" + std::string(given) + "'; it must be " +
                          wanted(value));
    });
    if (!found) throw unknown("parameter of prompt policy pages", std::string(key), known);
  }
  return made;
}

/// Returns every parameter's value, "share=.3,least=1024,...".
/// @param policy  the policy
inline std::string print_parameters(prompt_pages const& policy) {
  std::string all;
  prompt_pages::parameters(policy, [&](char const* parameter, auto const& value, char const*) {
    all += (all.empty() ? "" : ",") + std::string(parameter) + "=" + print(value);
  });
  return all;
}

/// Returns names, defaults and meaning of the parameters, a line each.
inline std::string describe_prompt_policy() {
  std::string all = "pages, a prompt policy: what a block of a prompt's queries may want of all before it\n";
  prompt_pages const defaults;
  prompt_pages::parameters(defaults, [&](char const* parameter, auto const& value, char const* help) {
    std::string line = "  " + std::string(parameter) + "=" + print(value);
    line.resize(std::max<std::size_t>(line.size() + 1, 26), ' ');
    all += line + help + "\n";
  });
  return all;
}

}  // namespace kvpolicy::text
