#include "link.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace kvpolicy::tiers {

namespace {

template <class Words>
void append_words(std::string& to, Words const& words) {
  auto const number = [&to](char kind, std::size_t n) {
    std::array<char, 24> digits;
    to.push_back(kind);
    to.append(digits.data(), std::to_chars(digits.begin(), digits.end(), n).ptr).append("\r\n");
  };
  number('*', words.size());
  for (std::string_view const word : words) {
    number('$', word.size());
    to.append(word).append("\r\n");
  }
}

}  // namespace

void append_command(std::string& to, std::initializer_list<std::string_view> words) { append_words(to, words); }
void append_command(std::string& to, std::vector<std::string> const& words) { append_words(to, words); }
std::string redis_command(std::initializer_list<std::string_view> words) {
  std::string made;
  append_command(made, words);
  return made;
}

redis_link::redis_link(std::string const& address, clock::time_point deadline)
    : address_(address), reader_(redisReaderCreate()), received_(std::size_t{1} << 18) {
  if (reader_ == nullptr) throw std::bad_alloc();
  reader_->maxbuf = 0;  // its buffer stays between batches
  std::size_t const colon = address.rfind(':');
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::string const host = address.substr(0, colon);
  std::string const port = colon == std::string::npos ? "6379" : address.substr(colon + 1);
  if (int const failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); failed != 0) {
    throw lost_link(address + ": " + gai_strerror(failed));
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> const all(found, &freeaddrinfo);
  socket_ = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  try {
    if (socket_ < 0) throw lost_link(address + ": " + std::strerror(errno));
    int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(socket_, found->ai_addr, found->ai_addrlen) == 0) return;
    if (errno != EINPROGRESS) throw lost_link(address + ": " + std::strerror(errno));
    wait_for(POLLOUT, deadline);
    int failed = 0;
    socklen_t size = sizeof failed;
    getsockopt(socket_, SOL_SOCKET, SO_ERROR, &failed, &size);
    if (failed != 0) throw lost_link(address + ": " + std::strerror(failed));
  } catch (...) {
    if (socket_ >= 0) close(socket_);
    throw;
  }
}

redis_link::~redis_link() { close(socket_); }

/// Reads while it writes: a server stops reading from who does not read its replies.
std::vector<redis_reply> redis_link::exchange(std::string_view commands, std::size_t replies, clock::time_point deadline) {
  std::vector<redis_reply> made;
  while (made.size() < replies) {
    short const ready = wait_for(commands.empty() ? POLLIN : POLLIN | POLLOUT, deadline);
    if ((ready & POLLOUT) != 0 && !commands.empty()) {
      ssize_t const sent = send(socket_, commands.data(), commands.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) throw lost_link(address_ + ": " + std::strerror(errno));
      commands.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
    }
    if ((ready & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
    receive(made, replies);
  }
  return made;
}

short redis_link::wait_for(short events, clock::time_point deadline) const {
  while (true) {
    auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock::now()).count();
    if (left <= 0) throw lost_link(address_ + ": no answer in time");
    pollfd one{socket_, events, 0};
    int const count = poll(&one, 1, static_cast<int>(std::min<long long>(left + 1, 60'000)));
    if (count < 0 && errno != EINTR) throw lost_link(address_ + ": " + std::strerror(errno));
    if (count > 0) return one.revents;
  }
}

/// In slices: the reader moves what it has not read yet to the front with every reply.
void redis_link::receive(std::vector<redis_reply>& into, std::size_t wanted) {
  constexpr std::size_t slice = 4096;
  ssize_t const count = recv(socket_, received_.data(), received_.size(), 0);
  if (count == 0) throw lost_link(address_ + ": it hung up");
  if (count < 0 && errno != EAGAIN && errno != EINTR) throw lost_link(address_ + ": " + std::strerror(errno));
  for (std::string_view left(received_.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))); !left.empty();) {
    std::size_t const some = std::min(slice, left.size());
    bool sense = redisReaderFeed(reader_.get(), left.data(), some) == REDIS_OK;
    left.remove_prefix(some);
    for (void* next = nullptr; sense; into.emplace_back(static_cast<redisReply*>(next))) {
      sense = redisReaderGetReply(reader_.get(), &next) == REDIS_OK;
      if (next == nullptr) break;
    }
    if (!sense || into.size() > wanted) throw lost_link(address_ + ": its replies make no sense");
  }
}

}  // namespace kvpolicy::tiers
