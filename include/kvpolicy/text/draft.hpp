// A policy as text changes it, item by item: its parameters, its settings, its trigger.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvpolicy/head_profile.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/text/suggestion.hpp"
#include "kvpolicy/text/values.hpp"

namespace kvpolicy {

/// What policies read of a model, beside its cache. Policies share it.
struct policy_inputs {
  std::shared_ptr<std::vector<std::uint8_t> const> boundary{};  ///< `[vocabulary]`, see segments::sentences
  /// A head profile from a file; without it policies that need one can't be named.
  std::function<std::vector<head_profile>(std::string const& path)> read_profile{};
};

namespace text {

/// Whether text may say when a rule chooses anew.
template <class Rule>
constexpr bool trigger_has_name() {
  if constexpr (requires { typename Rule::trigger_type; }) {
    return Rule::trigger_type::while_decoding && contains(signals::logits, Rule::trigger_type::needs);
  } else {
    return false;
  }
}

inline named_trigger as_named(triggers::every_step const&) { return {{.steps = 1}, {.mean = never, .variance = never}}; }
inline named_trigger as_named(triggers::every const& t) { return {t, {.mean = never, .variance = never}}; }
inline named_trigger as_named(triggers::entropy const& t) { return {{.steps = 0}, t}; }
inline named_trigger as_named(named_trigger const& t) { return t; }

/// The rule with the trigger that was named, which watches the rule's pages; it then has one type, whichever was.
template <class Rule>
auto with_trigger(Rule const& rule, trigger_choice const& when) {
  if constexpr (!trigger_has_name<Rule>()) return rule;
  else {
    named_trigger made = when ? *when : as_named(rule.trigger);
    if constexpr (!Rule::segment_type::ragged) {
      auto const unit = static_cast<std::int32_t>(rule.segment.unit_size());
      if (when && unit > 1) made.second.page = unit;
    }
    return rule.with(made);
  }
}

/// A policy as its text changes it, item by item.
template <class Policy>
class draft {
  using parts = parts_t<Policy>;

 public:
  static constexpr bool has_trigger =
      trigger_has_name<decltype(parts::retain)>() || trigger_has_name<decltype(parts::retrieve)>();

  draft(std::string const& name, Policy const& defaults) : policy(defaults), name_(name) {}

  /// Calls visit(name, value, help) for each parameter.
  template <class Visit>
  void each_parameter(Visit visit) {
    if constexpr (requires { Policy::parameters(policy, visit); }) Policy::parameters(policy, visit);
    if constexpr (has_trigger) visit("trigger", when, "when the choice is made anew");
  }
  /// Calls visit(name, policy, help) for each named setting.
  template <class Visit>
  static void each_setting(Visit visit) {
    if constexpr (requires { Policy::settings(visit); }) Policy::settings(visit);
  }

  /// key=value, or the name of a setting. Throws invalid_value.
  void apply(std::string_view item, policy_inputs const& inputs) {
    std::size_t const equals = item.find('=');
    std::string const key(item.substr(0, equals));
    if (std::ranges::find(given_, key) != given_.end()) throw invalid_value("policy " + name_ + ": " + key + " is given twice");
    std::vector<std::string> known;
    bool is_setting = false;
    bool is_parameter = false;
    each_setting([&](char const* name, Policy const& setting, char const*) {
      known.emplace_back(name);
      if (key != name) return;
      is_setting = true;
      if (equals != std::string_view::npos)
        throw invalid_value("policy " + name_ + ": '" + key + "' is a setting, it has no value");
      if (!given_.empty()) throw invalid_value("policy " + name_ + ": '" + key + "' sets every parameter; put it first");
      policy = setting;
    });
    each_parameter([&](char const* name, auto& value, char const*) {
      known.emplace_back(name);
      if (key != name) return;
      is_parameter = true;
      if (equals == std::string_view::npos)
        throw invalid_value("policy " + name_ + ": " + key + " needs a value: " + key + "=...");
      assign(key, item.substr(equals + 1), value, inputs);
    });
    if (!is_setting && !is_parameter) throw unknown("parameter of policy " + name_, key, known);
    given_.push_back(key);
    auto const both = [&](char const* one, char const* other) {
      return (key == one && std::ranges::find(given_, other) != given_.end());
    };
    if (both("ratio", "tokens") || both("tokens", "ratio"))
      throw invalid_value("policy " + name_ + ": ratio stands in place of tokens; give one of the two");
  }

  /// Every parameter's value.
  std::string shown() {
    std::string all;
    each_parameter([&](char const* name, auto& value, char const*) {
      std::string const text = show(value);
      if (!text.empty()) all += (all.empty() ? "" : ",") + std::string(name) + "=" + text;
    });
    return all;
  }
  template <class T>
  std::string show(T const& value) const {
    if constexpr (std::same_as<T, std::span<head_profile const>>) return profile_;
    else return print(value);
  }

  Policy policy;
  trigger_choice when{};
  std::vector<std::shared_ptr<void const>> owned{};

 private:
  template <class T>
  void assign(std::string const& key, std::string_view text, T& value, policy_inputs const& inputs) {
    if constexpr (std::same_as<T, std::span<head_profile const>>) {
      if (!inputs.read_profile || text.empty())
        throw invalid_value("policy " + name_ + ": " + key + " is '" + std::string(text) + "'; it must be a file's name");
      profile_ = text;
      auto const heads = std::make_shared<std::vector<head_profile> const>(inputs.read_profile(profile_));
      owned.push_back(heads);
      value = *heads;
    } else if (!parse(text, value)) {
      throw invalid_value("policy " + name_ + ": " + key + " is '" + std::string(text) + "'; it must be " + wanted(value));
    }
  }

  std::string name_;
  std::string profile_;
  std::vector<std::string> given_;
};

}  // namespace text

}  // namespace kvpolicy
