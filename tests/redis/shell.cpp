#include "redis/shell.hpp"

#include <stdio.h>
#include <sys/wait.h>

#include <array>
#include <stdexcept>

namespace kvpolicy_test::redis {

std::string quoted(std::string const& word) {
  std::string made = "'";
  for (char const c : word) made += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return made + "'";
}

shell_result shell(std::string const& line) {
  FILE* const pipe = popen(("exec timeout --kill-after=1 20 sh -c " + quoted(line) + " 2>&1 </dev/null").c_str(), "re");
  if (pipe == nullptr) throw std::runtime_error("no shell");
  shell_result result{-1, {}};
  std::array<char, 4096> piece{};
  for (std::size_t n = 0; (n = fread(piece.data(), 1, piece.size(), pipe)) > 0;) result.output.append(piece.data(), n);
  int const status = pclose(pipe);
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}

}  // namespace kvpolicy_test::redis
