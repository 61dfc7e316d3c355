#include "output_file.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <kvpolicy/error.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

namespace kvpolicy {
namespace {

namespace fs = std::filesystem;

/// Names that a signal's handler can read whatever else runs.
struct pending_name {
  std::array<char, 4096> path{};
  std::atomic<bool> written = false;
};
std::array<pending_name, 8> pending;

int remember(std::string const& path) noexcept {
  for (std::size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].path[0] != 0 || path.size() >= pending[i].path.size()) continue;
    std::memcpy(pending[i].path.data(), path.c_str(), path.size() + 1);
    pending[i].written = true;
    return static_cast<int>(i);
  }
  return -1;
}
void forget(int slot) noexcept {
  if (slot < 0) return;
  pending[static_cast<std::size_t>(slot)].written = false;
  pending[static_cast<std::size_t>(slot)].path[0] = 0;
}

extern "C" void remove_and_end(int signal) {
  for (pending_name const& p : pending) {
    if (p.written) unlink(p.path.data());
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// What a path names, through links, whether that is there or not. Names of open files (/dev/stdout) stay what they are.
fs::path target_of(fs::path path) {
  std::error_code error;
  for (int links = 0; links < 40 && fs::is_symlink(path, error); ++links) {
    fs::path const next = fs::read_symlink(path, error);
    path = next.is_absolute() ? next : path.parent_path() / next;
    if (path.string().starts_with("/proc/")) break;
  }
  return path;
}

bool is_direct(fs::path const& target) {
  std::error_code error;
  auto const status = fs::status(target, error);
  return target.string().starts_with("/proc/") || (fs::exists(status) && !fs::is_regular_file(status));
}

/// A file of its own beside `target`, made empty; empty where the folder takes none.
std::string fresh_beside(std::string const& target) {
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    std::string name = target + "." + std::to_string(random()) + ".part";
    int const file = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) {
      close(file);
      return name;
    }
    if (errno != EEXIST) return {};
  }
  return {};
}

}  // namespace

output_file::output_file(std::string path) : path_(std::move(path)), target_(target_of(path_).string()) {
  std::error_code error;
  if (fs::is_directory(target_, error)) throw invalid_value("'" + path_ + "' is a folder, it can't be written");
  if (is_direct(target_)) {
    file_.open(target_, std::ios::binary | std::ios::app);
  } else {
    written_ = fresh_beside(target_);
    if (!written_.empty()) {
      slot_ = remember(written_);
      file_.open(written_, std::ios::binary | std::ios::trunc);
    }
  }
  if (!file_.is_open()) throw invalid_value("'" + path_ + "' can't be written: " + std::strerror(errno));
}

output_file::~output_file() {
  file_.close();
  if (!written_.empty()) unlink(written_.c_str());
  forget(slot_);
}

void output_file::commit() {
  file_.flush();
  bool const written = file_.good();
  int const reason = errno;
  file_.close();
  if (!written || file_.fail()) throw error("'" + path_ + "' could not be written whole: " + std::strerror(reason));
  if (written_.empty()) return;
  fs::rename(written_, target_);
  written_.clear();
}

void output_file::remove_on_signals() {
  for (int const signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    if (std::signal(signal, &remove_and_end) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup's
  }
}

bool output_file::same(std::string const& one, std::string const& other) {
  fs::path const a = target_of(one);
  fs::path const b = target_of(other);
  std::error_code error;
  return !is_direct(a) && fs::weakly_canonical(fs::absolute(a), error) == fs::weakly_canonical(fs::absolute(b), error);
}

}  // namespace kvpolicy
