// Fibers of one thread, run in a random order that a seed fixes.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace kvpolicy_test {

/// splitmix64: any seed will do.
class random_bits {
 public:
  explicit random_bits(std::uint64_t seed) : state_(seed) {}
  /// In [0, bound).
  std::uint64_t below(std::uint64_t bound) {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return ((x ^ (x >> 31)) >> 32) * bound >> 32;
  }

 private:
  std::uint64_t state_;
};

/// Stacks and fibers are kept from run to run.
class fibers {
 public:
  fibers();
  fibers(fibers const&) = delete;
  fibers& operator=(fibers const&) = delete;
  ~fibers();

  /// Runs body(i) for every i < count, each on a fiber of its own, until all have returned. After the first exception the other
  /// fibers are unwound, and it is rethrown. `stuck` says what is wrong where all wait.
  void run(unsigned count, random_bits& random, std::function<void(unsigned)> const& body,
           std::function<std::exception_ptr()> const& stuck);

  /// By a fiber that runs: until it is woken; never in a catch block or while an exception is thrown. Not noexcept: unwinds.
  void wait();
  void wake(unsigned first, unsigned count);

 private:
  struct fiber;
  struct cancelled {};

  fiber& at(unsigned i);
  void resume(fiber& to);
  void leave(fiber& from);
  void work(fiber& self);

  std::vector<std::unique_ptr<fiber>> all_;
  std::vector<unsigned> ready_;
  fiber* running_ = nullptr;
  std::function<void(unsigned)> const* body_ = nullptr;
  std::exception_ptr error_;
  // What AddressSanitizer wants to know of the thread's own stack.
  void* fake_stack_ = nullptr;
  void const* bottom_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kvpolicy_test
