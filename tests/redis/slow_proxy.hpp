// A bad network before one server: what passes by it is late, stuck, torn or wrong, as the test says.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace kvpolicy_test::redis {

/// Any number of connections, each handed on to 127.0.0.1:server_port. What is asked for holds for all of them and for those to
/// come. A cut and a flip happen once, counted from the bytes that the proxy takes in after the call.
class slow_proxy {
 public:
  enum class way { to_client, to_server };

  explicit slow_proxy(int server_port);
  slow_proxy(slow_proxy const&) = delete;
  slow_proxy& operator=(slow_proxy const&) = delete;
  ~slow_proxy();  ///< closes all connections

  int port() const noexcept { return port_; }
  void delay(std::chrono::milliseconds each, way = way::to_client);  ///< bytes pass that much after they came
  void stall();                                                      ///< no byte passes, and no end of a connection
  void cut_after(std::int64_t bytes, way = way::to_client);          ///< these pass, then both sides are closed
  void flip_after(std::int64_t bytes, way = way::to_client);         ///< these pass, then one whose bits are all turned
  void heal();                                                       ///< as new; what is held passes at once
  std::int64_t passed(way = way::to_client) const;                   ///< bytes, on all connections so far

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::int64_t never = -1;

  struct piece {
    std::vector<char> bytes;
    std::size_t sent;
    clock::time_point due;
  };
  struct flow {
    int from;
    int to;
    std::deque<piece> held;
    bool ended = false;
  };
  struct link {
    std::array<flow, 2> flows;  ///< by way
    bool broken = false;
  };
  struct fault {
    std::chrono::milliseconds delay{0};
    std::int64_t cut = never;
    std::int64_t flip = never;
    std::int64_t passed = 0;
  };

  void run();
  void wait(std::unique_lock<std::mutex>& lock);
  void accept_all();
  static void take_in(flow& f, fault& at);
  static void hand_on(link& l, flow& f, fault& at);
  static void close_both(link const& l);
  void wake() const;
  fault& of(way w) { return faults_[static_cast<std::size_t>(w)]; }

  int listener_ = -1;
  int waker_ = -1;
  int port_ = 0;
  int server_port_ = 0;
  mutable std::mutex mutex_;  ///< of what follows
  std::array<fault, 2> faults_;
  bool stalled_ = false;
  bool stopping_ = false;
  std::list<link> links_;
  std::thread thread_;
};

}  // namespace kvpolicy_test::redis
