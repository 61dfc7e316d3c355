#include "request_line.hpp"

#include <cstdio>

namespace kvpolicy::preload {

void request_statistics::add(llama::step_statistics const& step, bool was_left) noexcept {
  ++steps;
  left += was_left ? 1 : 0;
  tokens += static_cast<double>(step.tokens);
  read += step.tokens_read;
  choose_seconds += step.choose_seconds + step.prefill_seconds;
  fetch_seconds += step.fetch_seconds;
  attend_seconds += step.attend_seconds;
}

std::string describe(llama_seq_id sequence, request_statistics const& request) {
  auto const steps = static_cast<double>(request.steps);
  auto const number = [](double value, int digits) {
    char text[32];
    return std::string(text, static_cast<std::size_t>(std::snprintf(text, sizeof text, "%.*f", digits, value)));
  };
  auto const time = [&](double seconds) { return number(1e3 * seconds / steps, 2) + " ms"; };
  std::string line = "sequence " + std::to_string(sequence) + ": prompt of " + std::to_string(request.prompt) + " tokens, " +
                     std::to_string(request.steps) + " steps; a step read " + number(request.read / steps, 0) + " of " +
                     number(request.tokens / steps, 0) + " tokens (" + number(100 * request.read / request.tokens, 1) +
                     "%), choosing " + time(request.choose_seconds) + ", ";
  if (request.fetch_seconds > 0) line += "fetching " + time(request.fetch_seconds) + ", ";
  line += "attending " + time(request.attend_seconds) + "; rows take " +
          number(static_cast<double>(request.bytes) / (1 << 20), 1) + " MiB";
  if (request.left > 0) line += "; " + std::to_string(request.left) + " steps were left to the engine";
  return line;
}

std::string describe(llama_seq_id sequence, llama::lossless_statistics const& now, llama::lossless_statistics const& before) {
  return "sequence " + std::to_string(sequence) + ": " + std::to_string(now.tokens - before.tokens) + " tokens in " +
         std::to_string(now.rounds - before.rounds) + " rounds, " + std::to_string(now.accepted - before.accepted) + " of " +
         std::to_string(now.drafted - before.drafted) + " drafts were right";
}

}  // namespace kvpolicy::preload
