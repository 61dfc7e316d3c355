// A program that runs beside the test, and never longer than it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace kvpolicy_test::redis {

/// Killed and waited for in the destructor; the kernel kills it where the test dies first. It dies also with the thread that
/// started it (PR_SET_PDEATHSIG counts threads): start it in one that stays.
class process {
 public:
  /// arguments[0] is the program's path; what it prints is added to a file.
  process(std::vector<std::string> arguments, std::string const& output);
  process(process const&) = delete;
  process& operator=(process const&) = delete;
  ~process() { kill(); }

  pid_t id() const noexcept { return id_; }
  bool running();
  void pause();  ///< it runs no more when this returns
  void resume();
  void kill();

 private:
  pid_t id_ = -1;
  bool ended_ = false;
};

}  // namespace kvpolicy_test::redis
