// Parameters of policies as text: "512", "average", "every:6".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <kvpolicy/kvpolicy.hpp>

namespace kvpolicy {

/// When a choice is made anew, by name: nothing given, the preset's own.
using trigger_choice = std::optional<trigger::any_of<trigger::every, trigger::entropy>>;

using value_pointer =
    std::variant<std::int32_t*, std::int64_t*, float*, double*, bool*, std::optional<double>*, smoothing::kind*, select::merge*,
                 group_merge*, pool::bounds::kind*, trigger_choice*, std::string*>;

std::string text_of(value_pointer at);

/// Whether the text was a value of that type.
bool assign(value_pointer at, std::string_view text);

/// "a whole number from 0"
char const* wanted(value_pointer at);

}  // namespace kvpolicy
