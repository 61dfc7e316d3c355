// A policy that text changes item by item: its parameters, its settings, its trigger.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvpolicy/head_profile.hpp"
#include "kvpolicy/head_values.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/scorers/trigonometric.hpp"
#include "kvpolicy/text/suggestion.hpp"
#include "kvpolicy/text/values.hpp"

namespace kvpolicy {

/// What policies read of a model, beside its cache. Policies share it.
struct policy_inputs {
  std::shared_ptr<std::vector<std::uint8_t> const> boundary{};  ///< `[vocabulary]`, see segments::sentences
  /// Reads a head profile from a file. Without this function, policies that need a profile can't be named.
  std::function<owned_head_values<head_profile>(std::string const& path)> read_profile{};
  /// Reads from a file how much each head retrieves, for budgets::by_head. Without it, policies that need that can't be named.
  std::function<owned_head_values<float>(std::string const& path)> read_retrieval{};
  /// Reads moments of the model's queries from a file. Without it, policies that need them can't be named.
  std::function<owned_head_values<query_moment>(std::string const& path)> read_moments{};
};

namespace text {

/// Whether text may name the trigger of a rule: its own is asked while decoding, and needs nothing but logits.
template <class Rule>
constexpr bool trigger_has_name() {
  if constexpr (requires { typename Rule::trigger_type; }) {
    return Rule::trigger_type::while_decoding && contains(signals::logits, Rule::trigger_type::needs);
  } else {
    return false;
  }
}

/// Returns a trigger as a named one.
inline named_trigger as_named(triggers::every_step const&) { return {{.steps = 1}, {.mean = never, .variance = never}}; }
inline named_trigger as_named(triggers::every const& t) { return {t, {.mean = never, .variance = never}}; }
inline named_trigger as_named(triggers::entropy const& t) { return {{.steps = 0}, t}; }
inline named_trigger as_named(named_trigger const& t) { return t; }

/// Returns a rule with a named trigger, of one type for every name. The trigger watches pages of the rule's size.
/// @param rule  the rule
/// @param when  the trigger; none: the rule's own
/// @return the new rule; the same one if text may not name its trigger
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

/// A policy while text changes it, item by item.
template <class Policy>
class draft {
  using parts = parts_t<Policy>;

 public:
  static constexpr bool has_trigger =
      trigger_has_name<decltype(parts::retain)>() || trigger_has_name<decltype(parts::retrieve)>();

  /// Begins with a policy's defaults.
  /// @param name  the policy's name, for messages
  /// @param defaults  its parameters
  draft(std::string const& name, Policy const& defaults) : policy(defaults), name_(name) {}

  /// Visits the parameters.
  /// @param visit  is called as `visit(name, value, help)`
  template <class Visit>
  void each_parameter(Visit visit) {
    if constexpr (requires { Policy::parameters(policy, visit); }) Policy::parameters(policy, visit);
    if constexpr (has_trigger) visit("trigger", when, "when the choice is made anew");
  }
  /// Visits the named settings.
  /// @param visit  is called as `visit(name, policy, help)`
  template <class Visit>
  static void each_setting(Visit visit) {
    if constexpr (requires { Policy::settings(visit); }) Policy::settings(visit);
  }

  /// Applies one item.
  /// @param item  key=value, or the name of a setting
  /// @param inputs  what the value may refer to
  /// @throws invalid_value for an unknown name, an invalid value, an item that is given twice, a setting that is not the first
  ///        item, or both ratio and tokens
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
    if constexpr (requires { policy.ratio = std::nullopt; }) {
      if (key == "tokens") policy.ratio = std::nullopt;  // a setting's
    }
    auto const both = [&](char const* one, char const* other) {
      return (key == one && std::ranges::find(given_, other) != given_.end());
    };
    if (both("ratio", "tokens") || both("tokens", "ratio"))
      throw invalid_value("policy " + name_ + ": ratio stands in place of tokens; give one of the two");
  }

  /// Checks what no item alone shows.
  /// @throws invalid_value for fractions that a number of tokens stands in place of
  void check_given() const {
    if constexpr (requires { policy.fractions.tokens; }) {
      for (char const* const fraction : {"grids", "chunks", "pages"}) {
        if (policy.fractions.tokens > 0 && std::ranges::find(given_, fraction) != given_.end())
          throw invalid_value("policy " + name_ + ": tokens=" + std::to_string(policy.fractions.tokens) +
                              " stands in place of the fractions, " + fraction + " too; set tokens=0");
      }
    }
  }

  /// Returns every parameter's value, "tokens=512,page=16,...".
  std::string shown() {
    std::string all;
    each_parameter([&](char const* name, auto& value, char const*) {
      std::string const text = show(value);
      if (!text.empty()) all += (all.empty() ? "" : ",") + std::string(name) + "=" + text;
    });
    return all;
  }
  /// Returns a value as text; of what is read from a file, the file's name.
  /// @param value  the value
  template <class T>
  std::string show(T const& value) const {
    if constexpr (from_file<T>) return file_;
    else return print(value);
  }

  Policy policy;                                     ///< with the items so far
  trigger_choice when{};                             ///< the named trigger
  std::vector<std::shared_ptr<void const>> owned{};  ///< what `policy` points into

 private:
  template <class T>
  static constexpr bool from_file = requires(T const& value) {
    value.data();
    value.size();
  };
  static auto const& reader_of(head_values<head_profile> const&, policy_inputs const& inputs) { return inputs.read_profile; }
  static auto const& reader_of(head_values<query_moment> const&, policy_inputs const& inputs) { return inputs.read_moments; }
  static auto const& reader_of(head_values<float> const&, policy_inputs const& inputs) { return inputs.read_retrieval; }

  template <class T>
  void assign(std::string const& key, std::string_view text, T& value, policy_inputs const& inputs) {
    if constexpr (from_file<T>) {
      auto const& read = reader_of(value, inputs);
      if (!read || text.empty())
        throw invalid_value("policy " + name_ + ": " + key + " is '" + std::string(text) + "'; it must be a file's name");
      file_ = text;
      auto const heads = std::make_shared<owned_head_values<typename T::value_type> const>(read(file_));
      owned.push_back(heads);
      value = heads->values();
    } else if (!parse(text, value)) {
      throw invalid_value("policy " + name_ + ": " + key + " is '" + std::string(text) + "'; it must be " + wanted(value));
    }
  }

  std::string name_;
  std::string file_;
  std::vector<std::string> given_;
};

/// Makes a draft of a policy from its items.
/// @param name,defaults  the policy's name and parameters
/// @param items  the items, with commas between them
/// @param inputs  what the policy reads of the model; its boundary table becomes the policy's
/// @return the draft
/// @throws invalid_value as draft::apply()
template <class Policy>
draft<Policy> drafted(std::string const& name, Policy const& defaults, std::string_view items, policy_inputs const& inputs) {
  draft<Policy> made(name, defaults);
  for (std::size_t comma = 0; comma != std::string_view::npos && !items.empty();) {
    comma = items.find(',');
    made.apply(items.substr(0, comma), inputs);
    items.remove_prefix(comma == std::string_view::npos ? items.size() : comma + 1);
  }
  made.check_given();
  if constexpr (requires { made.policy.sentences.boundary; }) {
    if (inputs.boundary) {
      made.owned.push_back(inputs.boundary);
      made.policy.sentences.boundary = *inputs.boundary;
    }
  }
  return made;
}

}  // namespace text

}  // namespace kvpolicy
