// A turn of a chat.
#pragma once

#include <string>

namespace kvpolicy {

struct chat_turn {
  char const* role = "user";  ///< or "assistant"
  std::string text;
};

}  // namespace kvpolicy
