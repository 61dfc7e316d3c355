#include "redis/slow_proxy.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

namespace kvpolicy_test::redis {

namespace {

constexpr std::size_t most_held = 64;  // pieces of a flow; the sender waits, as it would for a slow network

sockaddr_in loopback(int port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

int new_socket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

}  // namespace

slow_proxy::slow_proxy(int server_port) : listener_(new_socket()), waker_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  sockaddr_in at = loopback(0);
  socklen_t size = sizeof at;
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  if (bind(listener_, address, size) != 0 || listen(listener_, 64) != 0 || getsockname(listener_, address, &size) != 0) {
    close(listener_);
    close(waker_);
    throw std::runtime_error("the proxy has no port");
  }
  port_ = ntohs(at.sin_port);
  server_port_ = server_port;
  thread_ = std::thread([this] { run(); });
}

slow_proxy::~slow_proxy() {
  {
    std::scoped_lock const lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
  for (auto& l : links_) close_both(l);
  close(listener_);
  close(waker_);
}

void slow_proxy::delay(std::chrono::milliseconds each, way w) {
  std::scoped_lock const lock(mutex_);
  of(w).delay = each;
}

void slow_proxy::stall() {
  std::scoped_lock const lock(mutex_);
  stalled_ = true;
  wake();
}

void slow_proxy::cut_after(std::int64_t bytes, way w) {
  std::scoped_lock const lock(mutex_);
  of(w).cut = bytes;
}

void slow_proxy::flip_after(std::int64_t bytes, way w) {
  std::scoped_lock const lock(mutex_);
  of(w).flip = bytes;
}

void slow_proxy::heal() {
  std::scoped_lock const lock(mutex_);
  stalled_ = false;
  for (auto& f : faults_) f = {.passed = f.passed};
  for (auto& l : links_) {
    for (auto& f : l.flows) {
      for (auto& p : f.held) p.due = clock::now();
    }
  }
  wake();
}

std::int64_t slow_proxy::passed(way w) const {
  std::scoped_lock const lock(mutex_);
  return faults_[static_cast<std::size_t>(w)].passed;
}

void slow_proxy::wake() const {
  std::uint64_t const one = 1;
  [[maybe_unused]] auto const written = write(waker_, &one, sizeof one);
}

void slow_proxy::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wait(lock);
    if (stopping_ || stalled_) continue;
    accept_all();
    for (auto& l : links_) {
      for (std::size_t w = 0; w < 2 && !l.broken; ++w) {
        take_in(l.flows[w], faults_[w]);
        hand_on(l, l.flows[w], faults_[w]);
      }
    }
    std::erase_if(links_, [](link& l) {
      if (l.broken) close_both(l);
      return l.broken;
    });
  }
}

/// Until there may be something to do. A socket is looked at only for what would be done with it, or a closed one would keep
/// the thread busy while its bytes are held.
void slow_proxy::wait(std::unique_lock<std::mutex>& lock) {
  std::vector<pollfd> waited{{waker_, POLLIN, 0}};
  auto first = clock::now() + std::chrono::seconds(1);
  if (!stalled_) {
    waited.push_back({listener_, POLLIN, 0});
    for (auto const& l : links_) {
      for (auto const& f : l.flows) {
        if (!f.ended && f.held.size() < most_held) waited.push_back({f.from, POLLIN, 0});
        if (f.held.empty()) continue;
        if (f.held.front().due <= clock::now()) {
          waited.push_back({f.to, POLLOUT, 0});
        } else {
          first = std::min(first, f.held.front().due);
        }
      }
    }
  }
  auto const left = std::chrono::ceil<std::chrono::milliseconds>(first - clock::now()).count();
  lock.unlock();
  poll(waited.data(), waited.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
  lock.lock();
  std::uint64_t times = 0;
  [[maybe_unused]] auto const taken = read(waker_, &times, sizeof times);
}

void slow_proxy::accept_all() {
  while (true) {
    int const client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) return;
    int const server = new_socket();
    sockaddr_in const at = loopback(server_port_);
    // It need not be connected yet: until then nothing is read from it, and nothing can be written.
    if (connect(server, reinterpret_cast<sockaddr const*>(&at), sizeof at) != 0 && errno != EINPROGRESS) {
      close(client);
      close(server);
      continue;
    }
    links_.push_back({.flows = {flow{server, client, {}}, flow{client, server, {}}}});
  }
}

void slow_proxy::take_in(flow& f, fault& at) {
  if (f.ended || f.held.size() >= most_held) return;
  std::vector<char> bytes(16384);
  ssize_t const n = recv(f.from, bytes.data(), bytes.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  f.ended = n <= 0;
  if (f.ended) return;
  std::int64_t count = n;
  if (at.cut != never) {
    count = std::min(count, at.cut);
    at.cut -= count;
    f.ended = at.cut == 0;
    if (f.ended) at.cut = never;
  }
  bytes.resize(static_cast<std::size_t>(count));
  if (at.flip != never && at.flip < count) {
    char& turned = bytes[static_cast<std::size_t>(at.flip)];
    turned = static_cast<char>(~turned);
    at.flip = never;
  } else if (at.flip != never) {
    at.flip -= count;
  }
  if (count > 0) f.held.push_back({std::move(bytes), 0, clock::now() + at.delay});
}

void slow_proxy::hand_on(link& l, flow& f, fault& at) {
  while (!f.held.empty() && f.held.front().due <= clock::now()) {
    piece& p = f.held.front();
    ssize_t const n = send(f.to, p.bytes.data() + p.sent, p.bytes.size() - p.sent, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0) {
      l.broken = true;
      return;
    }
    at.passed += n;
    p.sent += static_cast<std::size_t>(n);
    if (p.sent == p.bytes.size()) f.held.pop_front();
  }
  if (f.ended && f.held.empty()) l.broken = true;
}

void slow_proxy::close_both(link const& l) {
  for (auto const& f : l.flows) close(f.from);
}

}  // namespace kvpolicy_test::redis
