// What KVPOLICY says: a policy's text, and options behind semicolons.
#pragma once

#include <kvpolicy/prompt_pages.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvpolicy::preload {

struct settings {
  /// Text of a policy that was parsed once, or "lossless" for the usual draft policy; empty: there is none, and nothing is
  /// done.
  std::string policy;
  bool strict = false;
  std::optional<prompt_pages> prompts{};
  bool managed_cache = false;
  bool lossless = false;        ///< the policy only drafts
  std::optional<int> drafts{};  ///< of a round; none: as many as pay
  std::string tier{};           ///< of a managed cache; empty: its rows stay in memory
  std::string said{};           ///< the policy as it was given
  bool compact = false;         ///< the engine's own cells: they get what the policy retains
  std::int64_t after = 0;       ///< with compact: tokens of the answer that the policy waited for, which `policy` does not
};

/// "snapkv:tokens=1024;strict;managed-cache;prompts=pages:share=.1", "quest;lossless;drafts=4", or "lossless" for its usual
/// draft policy. Throws invalid_value that says what exists.
settings parse_settings(std::string_view text);

}  // namespace kvpolicy::preload
