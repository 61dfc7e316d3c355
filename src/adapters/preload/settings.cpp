#include "settings.hpp"

#include <kvpolicy/error.hpp>
#include <kvpolicy/primitive/attend.hpp>
#include <kvpolicy/text/prompt_policy.hpp>
#include <kvpolicy/text/suggestion.hpp>

#include <charconv>
#include <string>
#include <system_error>
#include <vector>

#include "llama/compactable.hpp"
#include "named_tier.hpp"
#include "published.hpp"

namespace kvpolicy::preload {

namespace {

int drafts_of(std::string_view text) {
  int made = -1;
  auto const [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), made);
  KVPOLICY_EXPECTS(wrong == std::errc() && end == text.data() + text.size() && made >= 0 && made < most_step_tokens,
                   "drafts=" + std::string(text) + "; it is 0 to " + std::to_string(most_step_tokens - 1));
  return made;
}

/// The policy's text with its choice at the prompt's end; the compaction waits in its place. Throws unsupported for a policy
/// whose choice is none of a compaction.
void compact(settings& made) {
  KVPOLICY_EXPECTS(!made.managed_cache && !made.lossless && !made.prompts,
                   "a compaction leaves prompts and steps to the engine; leave managed-cache, tier, lossless and prompts away");
  host_policy const given = known_policies().parse(made.policy, inputs_for()).policy;
  if (made.policy.find('+') != std::string::npos) llama::check_compactable(given);
  made.after = requirements_of(given).after;
  if (made.after > 0) {
    std::size_t const said = std::min(made.policy.find(":after="), made.policy.find(",after="));
    if (said == std::string::npos) made.policy += made.policy.find(':') == std::string::npos ? ":after=0" : ",after=0";
    else made.policy.replace(said + 1, made.policy.find(',', said + 1) - said - 1, "after=0");
  }
  llama::check_compactable(known_policies().parse(made.policy, inputs_for()).policy);
}

}  // namespace

settings parse_settings(std::string_view text) {
  settings made;
  std::size_t const end = text.find(';');
  made.policy = made.said = text.substr(0, end);
  if (made.policy.empty()) {
    KVPOLICY_EXPECTS(end == std::string_view::npos, "KVPOLICY has options and no policy before them: '" + std::string(text) +
                                                        "'; begin with a policy, full for none of its own");
    return made;
  }
  made.lossless = made.policy == "lossless";
  if (!made.lossless) {
    named_host_policy const named = known_policies().parse(made.policy, inputs_for());
    if (contains(needs_of(named.policy), signals::repetition)) {
      throw unsupported("'" + made.policy +
                        "' has the model repeat a prompt, and a server's program does not; take duoattention or snapkv, or "
                        "call kvpolicy::llama::repeat() in a program of your own");
    }
  }
  for (std::string_view left = text.substr(std::min(text.size(), end)); !left.empty();) {
    left.remove_prefix(1);
    std::string_view const option = left.substr(0, left.find(';'));
    left.remove_prefix(option.size());
    if (option == "strict") made.strict = true;
    else if (option == "managed-cache") made.managed_cache = true;
    else if (option == "lossless") made.lossless = true;
    else if (option == "compact") made.compact = true;
    else if (option.starts_with("drafts=")) made.drafts = drafts_of(option.substr(option.find('=') + 1));
    else if (option.starts_with("tier=")) check_tier(made.tier = option.substr(option.find('=') + 1));
    else if (option.starts_with("prompts=")) made.prompts = text::prompt_policy_of(option.substr(option.find('=') + 1));
    else
      throw unknown("option of KVPOLICY", option,
                    {"strict", "managed-cache", "prompts", "tier", "lossless", "drafts", "compact"});
  }
  made.managed_cache = made.managed_cache || !made.tier.empty();
  KVPOLICY_EXPECTS(!made.lossless || !made.managed_cache,
                   "lossless decoding verifies in the engine's cells; leave the managed cache and its tier away");
  KVPOLICY_EXPECTS(!made.lossless || !made.prompts,
                   "under lossless, prompts read all of themselves; leave the prompt policy away");
  KVPOLICY_EXPECTS(made.lossless || !made.drafts, "drafts are of lossless decoding; add lossless, or leave drafts away");
  if (made.compact) compact(made);
  return made;
}

}  // namespace kvpolicy::preload
