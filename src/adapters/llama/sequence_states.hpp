// What a sequence of a session is in the middle of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/interop/llama.hpp"

namespace kvpolicy::llama {

/// The policy has yet to see a prompt's tokens, from `from` on. It will, in the step behind them.
struct prompting {
  static constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();

  std::int64_t from = 0;    ///< `none`: it has seen all
  std::int64_t layers = 0;  ///< layers of the running graph in which it has
};

/// The policy has seen every token before the next step.
struct stepping {};

/// Before the first graph the cache has no shape: what a caller loaded waits for it.
struct fresh {
  std::optional<saved_prompt> prompt{};
  std::vector<std::byte> rows{};  ///< the same, of a managed cache
};

/// A piece of a repetition: the tokens [ids, end) that come now repeat `of`, which is among the tokens with these ids.
struct repetition {
  token_span of;
  std::span<std::int32_t const> ids;
  std::int64_t end = 0;
};

/// The engine decodes a piece of a repetition, which the policy hears when its last token is there.
struct repeating {
  repetition piece;
  prompting unseen{};
  bool heard = false;
  std::exception_ptr refused{};  ///< why it was not heard
};

/// Lenient: until its next prompt the sequence attends to all that is there, and then the policy sees everything anew.
struct left {
  std::string why;
  prompting unseen{};
  bool unordered = false;  ///< the cells of the running graph are in no order
};

}  // namespace kvpolicy::llama
