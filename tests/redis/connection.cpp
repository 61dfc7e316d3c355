#include "redis/connection.hpp"

#if __has_include(<hiredis/hiredis.h>)

#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kvpolicy_test::redis {

namespace {

using cause = no_answer::cause;
using time_point = std::chrono::steady_clock::time_point;

[[noreturn]] void fail(cause why, redisContext const& context, char const* what) {
  throw no_answer(why, "127.0.0.1:" + std::to_string(context.tcp.port) + ": " + what);
}

void wait_for(redisContext const& context, short event, time_point deadline) {
  while (true) {
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) fail(cause::timed_out, context, "timed out");
    pollfd one{context.fd, event, 0};
    if (poll(&one, 1, static_cast<int>(left)) > 0) return;
  }
}

std::string text_of(redisReply const& reply) {
  std::string text;
  switch (reply.type) {
    case REDIS_REPLY_NIL:
      return "(nil)";
    case REDIS_REPLY_INTEGER:
      return std::to_string(reply.integer);
    case REDIS_REPLY_ARRAY:
      for (std::size_t i = 0; i < reply.elements; ++i) text += (i == 0 ? "" : "\n") + text_of(*reply.element[i]);
      return text;
    default:
      if (reply.type == REDIS_REPLY_ERROR) text = "-";
      return text.append(reply.str, static_cast<std::size_t>(reply.len));
  }
}

}  // namespace

bool connection::available() noexcept { return true; }

void connection::closer::operator()(redisContext* context) const noexcept { redisFree(context); }

connection::connection(int port, std::chrono::milliseconds limit) : limit_(limit) {
  auto const ms = limit.count();
  context_.reset(redisConnectWithTimeout("127.0.0.1", port, {ms / 1000, ms % 1000 * 1000}));
  if (!context_) throw std::bad_alloc();
  if (context_->err == 0) return;
  bool const late = context_->err == REDIS_ERR_IO && (errno == ETIMEDOUT || errno == EAGAIN);
  fail(late ? cause::timed_out : cause::refused, *context_, context_->errstr);
}

// By hand, as hiredis 0.14 raises SIGPIPE when it writes to a connection that is gone.
void connection::send(std::vector<std::string> const& words) {
  std::vector<char const*> starts;
  std::vector<std::size_t> lengths;
  for (auto const& w : words) {
    starts.push_back(w.data());
    lengths.push_back(w.size());
  }
  char* formatted = nullptr;
  int const size = redisFormatCommandArgv(&formatted, static_cast<int>(words.size()), starts.data(), lengths.data());
  if (size < 0) throw std::bad_alloc();
  std::unique_ptr<char, decltype(&redisFreeCommand)> const bytes(formatted, redisFreeCommand);
  auto const deadline = std::chrono::steady_clock::now() + limit_;
  for (int sent = 0; sent < size;) {
    wait_for(*context_, POLLOUT, deadline);
    ssize_t const n =
        ::send(context_->fd, formatted + sent, static_cast<std::size_t>(size - sent), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += static_cast<int>(n);
    } else if (errno != EAGAIN && errno != EINTR) {
      fail(cause::closed, *context_, std::strerror(errno));
    }
  }
}

std::string connection::receive() {
  auto const deadline = std::chrono::steady_clock::now() + limit_;
  while (true) {
    void* found = nullptr;
    if (redisGetReplyFromReader(context_.get(), &found) != REDIS_OK) fail(cause::garbled, *context_, context_->errstr);
    if (found != nullptr) {
      std::unique_ptr<void, decltype(&freeReplyObject)> const reply(found, freeReplyObject);
      return text_of(*static_cast<redisReply*>(found));
    }
    wait_for(*context_, POLLIN, deadline);
    if (redisBufferRead(context_.get()) == REDIS_OK) continue;
    bool const garbled = context_->err == REDIS_ERR_PROTOCOL || context_->err == REDIS_ERR_OOM;
    fail(garbled ? cause::garbled : cause::closed, *context_, context_->errstr);
  }
}

}  // namespace kvpolicy_test::redis

#else

struct redisContext {};

namespace kvpolicy_test::redis {

bool connection::available() noexcept { return false; }
void connection::closer::operator()(redisContext*) const noexcept {}
connection::connection(int, std::chrono::milliseconds limit) : limit_(limit) { throw std::logic_error("there is no hiredis"); }
void connection::send(std::vector<std::string> const&) {}
std::string connection::receive() { return {}; }

}  // namespace kvpolicy_test::redis

#endif
