#include "request_line.hpp"

#include <cstdio>

namespace kvpolicy::preload {

void request_statistics::add(llama::step_statistics const& step, bool was_left) noexcept {
  ++steps;
  left += was_left ? 1 : 0;
  tokens += static_cast<double>(step.tokens);
  read += step.tokens_read;
  choose_seconds += step.choose_seconds + step.prefill_seconds;
  attend_seconds += step.attend_seconds;
}

std::string describe(llama_seq_id sequence, request_statistics const& request) {
  char text[256];
  auto const steps = static_cast<double>(request.steps);
  int const size = std::snprintf(
      text, sizeof text,
      "sequence %d: prompt of %lld tokens, %lld steps; a step read %.0f of %.0f tokens (%.1f%%), choosing %.2f ms, "
      "attending %.2f ms",
      sequence, static_cast<long long>(request.prompt), static_cast<long long>(request.steps), request.read / steps,
      request.tokens / steps, 100 * request.read / request.tokens, 1e3 * request.choose_seconds / steps,
      1e3 * request.attend_seconds / steps);
  std::string line(text, static_cast<std::size_t>(size));
  if (request.left > 0) line += "; " + std::to_string(request.left) + " steps were left to the engine";
  return line;
}

}  // namespace kvpolicy::preload
