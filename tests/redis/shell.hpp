// What a program prints, for the programs that end by themselves.
#pragma once

#include <string>

namespace kvpolicy_test::redis {

struct shell_result {
  int status;          ///< its exit status; 124: it did not end
  std::string output;  ///< standard output and error
};

/// Runs a line of sh, which has 20 seconds to end in.
shell_result shell(std::string const& line);

/// A word that sh leaves as it is.
std::string quoted(std::string const& word);

}  // namespace kvpolicy_test::redis
