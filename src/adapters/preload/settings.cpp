#include "settings.hpp"

#include <kvpolicy/error.hpp>
#include <kvpolicy/text/prompt_policy.hpp>
#include <kvpolicy/text/suggestion.hpp>

#include <vector>

#include "named_tier.hpp"
#include "published.hpp"

namespace kvpolicy::preload {

settings parse_settings(std::string_view text) {
  settings made;
  std::size_t const end = text.find(';');
  made.policy = text.substr(0, end);
  if (made.policy.empty()) {
    KVPOLICY_EXPECTS(end == std::string_view::npos, "KVPOLICY has options and no policy before them: '" + std::string(text) +
                                                        "'; begin with a policy, full for none of its own");
    return made;
  }
  known_policies().parse(made.policy, inputs_for());
  for (std::string_view left = text.substr(std::min(text.size(), end)); !left.empty();) {
    left.remove_prefix(1);
    std::string_view const option = left.substr(0, left.find(';'));
    left.remove_prefix(option.size());
    if (option == "strict") made.strict = true;
    else if (option == "managed-cache") made.managed_cache = true;
    else if (option.starts_with("tier=")) check_tier(made.tier = option.substr(option.find('=') + 1));
    else if (option.starts_with("prompts=")) made.prompts = text::prompt_policy_of(option.substr(option.find('=') + 1));
    else throw unknown("option of KVPOLICY", option, {"strict", "managed-cache", "prompts", "tier"});
  }
  made.managed_cache = made.managed_cache || !made.tier.empty();
  return made;
}

}  // namespace kvpolicy::preload
