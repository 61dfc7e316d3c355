// Policies from text: "snapkv:tokens=2048+quest:tokens=256". The one place where a policy is chosen at run time.
#pragma once

#include <kvpolicy/kvpolicy.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace kvpolicy {

template <class Preset>
using retain_of = decltype(std::declval<parts_t<Preset>>().retain);
template <class Preset>
using retrieve_of = decltype(std::declval<parts_t<Preset>>().retrieve);

/// Every retrieve can be told by name when to choose anew.
using named_trigger = trigger::any_of<trigger::every, trigger::entropy>;
template <class Act>
struct with_named_trigger;
template <class Segment, class Pool, class Score, class Budget, class Select, class Window, class Trigger>
struct with_named_trigger<keep<Segment, Pool, Score, Budget, Select, Window, Trigger>> {
  using type = keep<Segment, Pool, Score, Budget, Select, Window, named_trigger>;
};
template <class Preset>
using named_retrieve_of = typename with_named_trigger<retrieve_of<Preset>>::type;
template <class Preset>
using named_retain_of = typename with_named_trigger<retain_of<Preset>>::type;

/// pyramidkv's retain and sentencekv's are snapkv's, with other parameters.
using any_retain = one_of<keep_all, retain_of<presets::snapkv>, retain_of<presets::adakv>, retain_of<presets::chunkkv>,
                          retain_of<presets::knorm>, retain_of<presets::keydiff>, retain_of<presets::expected_attention>,
                          retain_of<presets::lagkv>, retain_of<presets::heterocache>, named_retain_of<presets::streaming_llm>,
                          named_retain_of<presets::h2o>, named_retain_of<presets::tova>>;
using any_retrieve =
    one_of<keep_all, named_retrieve_of<presets::quest>, named_retrieve_of<presets::chess>, named_retrieve_of<presets::infllm>,
           named_retrieve_of<presets::sentencekv>, retrieve_of<presets::heterocache>>;
using any_policy = policy<any_retain, any_retrieve>;

/// What policies read of a model, beside its cache; the tools' to own.
struct model_facts {
  std::vector<std::uint8_t> boundary;  ///< `[vocabulary]`, see segment::sentences
};

struct named_policy {
  std::string name;        ///< "quest", "snapkv+quest"
  std::string text;        ///< as it was given
  std::string parameters;  ///< every parameter's value, "tokens=512,page=16,..."
  any_policy policy{};
  std::shared_ptr<std::vector<head_profile> const> heads{};  ///< heterocache's profile
};

/// NAME[:item,...][+NAME...]; an item is key=value, or the name of a published setting, which later items change; two names
/// are a retain and a retrieve. Throws invalid_value that says what exists and suggests the nearest, or why a pair can't be.
/// The policy points into `facts`.
named_policy parse_policy(std::string_view text, model_facts const& facts = {});

/// Names, in the order of their documentation.
std::vector<std::string> policy_names();

/// Parameter names of one policy.
std::vector<std::string> parameter_names(std::string_view policy);

/// What --list-policies prints: each policy's source, parameters, defaults and named settings.
std::string describe_policies();

}  // namespace kvpolicy
