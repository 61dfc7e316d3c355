#include "redis/process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace kvpolicy_test::redis {

process::process(std::vector<std::string> arguments, std::string const& output) {
  // All memory that the child needs is there before the fork: a lock of another thread may be held for ever after it.
  std::vector<char*> words;
  for (auto& a : arguments) words.push_back(a.data());
  words.push_back(nullptr);
  pid_t const parent = getpid();
  id_ = fork();
  if (id_ < 0) throw std::runtime_error("fork failed");
  if (id_ > 0) return;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(126);
  int const out = open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  int const nothing = open("/dev/null", O_RDONLY);
  if (out < 0 || nothing < 0 || dup2(nothing, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(126);
  // A test's socket that is open here too would not be closed when the test closes it.
  if (close_range(3, ~0u, 0) != 0) _exit(126);
  execv(words[0], words.data());
  _exit(127);
}

bool process::running() {
  if (!ended_) {
    pid_t const told = waitpid(id_, nullptr, WNOHANG);
    ended_ = told == id_ || (told < 0 && errno == ECHILD);
  }
  return !ended_;
}

void process::pause() {
  if (!running()) return;
  ::kill(id_, SIGSTOP);
  int status = 0;
  ended_ = waitpid(id_, &status, WUNTRACED) == id_ && !WIFSTOPPED(status);
}

void process::resume() {
  if (running()) ::kill(id_, SIGCONT);
}

void process::kill() {
  if (ended_) return;
  ::kill(id_, SIGKILL);
  while (waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
  }
  ended_ = true;
}

}  // namespace kvpolicy_test::redis
