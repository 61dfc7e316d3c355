// What KVPOLICY says: a policy's text, and options behind semicolons.
#pragma once

#include <kvpolicy/prompt_pages.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace kvpolicy::preload {

struct settings {
  std::string policy;  ///< text of a policy that was parsed once; empty: there is none, and nothing is done
  bool strict = false;
  std::optional<prompt_pages> prompts{};
  bool managed_cache = false;
  std::string tier{};  ///< of a managed cache; empty: its rows stay in memory
};

/// "snapkv:tokens=1024;strict;managed-cache;prompts=pages:share=.1". Throws invalid_value that says what exists.
settings parse_settings(std::string_view text);

}  // namespace kvpolicy::preload
