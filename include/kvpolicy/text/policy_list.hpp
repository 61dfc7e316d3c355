// Policies by name: "snapkv:tokens=2048+quest:tokens=256". Policies are chosen at run time here and nowhere else.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvpolicy/exec/host_policy.hpp"
#include "kvpolicy/text/draft.hpp"

namespace kvpolicy {

/// A policy that was made from text. Owns what the policy points into.
template <kv_cache_view View, executor_for<View> Exec>
struct named_policy {
  std::string name;        ///< "quest", "snapkv+quest"
  std::string text;        ///< as given
  std::string parameters;  ///< every parameter's value, "tokens=512,page=16,..."
  any_policy<View, Exec> policy{};
  std::vector<std::shared_ptr<void const>> owned{};
};

/// A policy that has a name: what text may say about it, and how text becomes the policy.
template <kv_cache_view View, executor_for<View> Exec>
struct policy_entry {
  /// One parameter or setting.
  struct line {
    std::string name;
    std::string value;  ///< a parameter's default
    std::string help;
  };
  std::string name;
  std::string source;  ///< what the policy does, and who published it
  std::vector<line> parameters;
  std::vector<line> settings;
  /// Makes the policy from its items. Throws invalid_value as policy_list::parse() does.
  std::function<named_policy<View, Exec>(std::string_view items, policy_inputs const&)> parse;
};

/// Makes a policy's entry.
/// Text may set the parameters of a preset that lists them (its `parameters` and `settings`); any other policy is as it is.
/// @param name  lower-case letters, digits and _
/// @param source  a line for people: what the policy does, and who published it
/// @param defaults  the policy's parameters
/// @return the entry
template <policy_like Policy, kv_cache_view View = layer_table_view, executor_for<View> Exec = simd_exec>
policy_entry<View, Exec> named(std::string name, std::string source, Policy const& defaults = {}) {
  policy_entry<View, Exec> made{.name = name, .source = std::move(source), .parameters = {}, .settings = {}, .parse = {}};
  text::draft<Policy> all(name, defaults);
  all.each_parameter([&](char const* parameter, auto& value, char const* help) {
    made.parameters.push_back({parameter, all.show(value), help});
  });
  all.each_setting([&](char const* setting, Policy const&, char const* help) { made.settings.push_back({setting, "", help}); });
  made.parse = [name = std::move(name), defaults](std::string_view items, policy_inputs const& inputs) {
    text::draft<Policy> d = text::drafted(name, defaults, items, inputs);
    auto const parts = parts_of(d.policy);
    return named_policy<View, Exec>{.name = name,
                                    .text = "",
                                    .parameters = d.shown(),
                                    .policy = erase<View, Exec>(policy{text::with_trigger(parts.retain, d.when),
                                                                       text::with_trigger(parts.retrieve, d.when)}),
                                    .owned = d.owned};
  };
  return made;
}

/// The policies that a program knows by name. Not a global: each reader of text has a list, and adds its own policies.
template <kv_cache_view View, executor_for<View> Exec>
class policy_list {
 public:
  using entry = policy_entry<View, Exec>;

  /// Adds a policy.
  /// @param one  its entry, from named()
  /// @throws invalid_value for a name that exists, or that text can't say
  void add(entry one) {
    constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz0123456789_";
    KVPOLICY_EXPECTS(!one.name.empty() && one.name.find_first_not_of(letters) == std::string::npos,
                     "a policy can't have the name '" + one.name + "'; give lower-case letters, digits and _");
    KVPOLICY_EXPECTS(find(one.name) == nullptr, "there is a policy '" + one.name + "' already");
    entries_.push_back(std::move(one));
  }

  /// Makes a policy from text: NAME[:item,...][+NAME...].
  /// An item is key=value, or the name of a published setting, which comes first. Two names are a retain and a retrieve.
  /// @param text  the text
  /// @param inputs  what the policy reads of the model
  /// @return the policy
  /// @throws invalid_value that says what exists and suggests the nearest, or why two policies can't be a pair
  named_policy<View, Exec> parse(std::string_view text, policy_inputs const& inputs = {}) const {
    std::size_t const plus = text.find('+');
    auto first = parse_one(text.substr(0, plus), inputs);
    first.text = text;
    if (plus == std::string_view::npos) return first;
    auto second = parse_one(text.substr(plus + 1), inputs);
    auto const refuse_if = [&](bool refused, auto const& which, char const* what) {
      if (!refused) return;
      throw invalid_value("'" + std::string(text) + "': " + which.name + " " + what +
                          "; write a policy that retains (snapkv, h2o, ...), then one that retrieves (quest, chess, ...)");
    };
    refuse_if(requirements_of(first.policy.retain).keeps_all, first, "retains nothing");
    refuse_if(!requirements_of(first.policy.retrieve).keeps_all, first, "retrieves by itself");
    refuse_if(requirements_of(second.policy.retrieve).keeps_all, second, "does not retrieve");
    refuse_if(!requirements_of(second.policy.retain).keeps_all, second, "retains by itself");
    KVPOLICY_EXPECTS(requirements_of(second.policy.retain).after == 0,
                     "'" + std::string(text) + "': the second policy sets after; set it for " + first.name + " instead");
    first.name += "+" + second.name;
    first.parameters += " + " + second.parameters;
    first.policy.retrieve = second.policy.retrieve;
    first.owned.insert(first.owned.end(), second.owned.begin(), second.owned.end());
    return first;
  }

  /// The policies in the order in which they were added.
  std::span<entry const> entries() const noexcept { return entries_; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (entry const& e : entries_) all.push_back(e.name);
    return all;
  }
  /// Returns the policy of a name.
  /// @param name  the name
  /// @return the entry; null if there is none
  entry const* find(std::string_view name) const noexcept {
    auto const at = std::ranges::find(entries_, name, &entry::name);
    return at == entries_.end() ? nullptr : &*at;
  }
  /// Returns whether a policy has a parameter.
  /// @param name  the policy's name
  /// @param parameter  the parameter's name
  bool has_parameter(std::string_view name, std::string_view parameter) const noexcept {
    entry const* const e = find(name);
    return e != nullptr && std::ranges::find(e->parameters, parameter, &entry::line::name) != e->parameters.end();
  }

  /// Returns each policy's source, parameters, defaults and settings as text for people.
  std::string describe() const {
    std::string text;
    auto const line = [&](std::string const& left, std::string const& right) {
      text += "  " + left + std::string(left.size() < 24 ? 24 - left.size() : 1, ' ') + right + "\n";
    };
    for (entry const& e : entries_) {
      text += e.name + ": " + e.source + "\n";
      for (auto const& p : e.parameters) line(p.name + "=" + p.value, p.help);
      for (auto const& s : e.settings) line(s.name, s.help);
    }
    return text;
  }

 private:
  named_policy<View, Exec> parse_one(std::string_view text, policy_inputs const& inputs) const {
    std::size_t const colon = text.find(':');
    entry const* const e = find(text.substr(0, colon));
    if (e == nullptr) throw unknown("policy", text.substr(0, colon), names());
    return e->parse(colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1), inputs);
  }

  std::vector<entry> entries_;
};

/// The policies of engines on a CPU.
using host_policy_list = policy_list<layer_table_view, simd_exec>;
using named_host_policy = named_policy<layer_table_view, simd_exec>;

}  // namespace kvpolicy
