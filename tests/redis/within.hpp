// Waiting for something to become so, not for ever.
#pragma once

#include <chrono>
#include <thread>

namespace kvpolicy_test::redis {

/// Asks again and again; false: it was not so within the limit.
template <class Ready>
bool within(std::chrono::milliseconds limit, Ready ready) {
  auto const deadline = std::chrono::steady_clock::now() + limit;
  while (!ready()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace kvpolicy_test::redis
