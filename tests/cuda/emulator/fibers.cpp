#include "cuda/emulator/fibers.hpp"

#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvpolicy_test {
namespace {

// Every switch is announced: without, the first exception on a fiber makes AddressSanitizer report what is not there.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t stack_bytes = 256 << 10;
void start_switch(void** fake_stack, void const* bottom, std::size_t size) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}
void finish_switch(void* fake_stack, void const** bottom, std::size_t* size) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
}
#else
constexpr std::size_t stack_bytes = 64 << 10;
void start_switch(void**, void const*, std::size_t) {}
void finish_switch(void*, void const**, std::size_t*) {}
#endif

}  // namespace

struct fibers::fiber {
  unsigned index = 0;
  bool working = false;
  bool quits = false;
  void* fake_stack = nullptr;
  void const* bottom = nullptr;
  std::size_t size = 0;
  boost::context::fiber self;
  boost::context::fiber back;
};

fibers::fibers() = default;

fibers::~fibers() {
  for (auto& each : all_) {
    each->quits = true;
    resume(*each);
  }
}

fibers::fiber& fibers::at(unsigned i) {
  namespace context = boost::context;
  while (all_.size() <= i) {
    auto made = std::make_unique<fiber>();
    made->index = static_cast<unsigned>(all_.size());
    context::protected_fixedsize_stack memory(stack_bytes);
    context::stack_context const stack = memory.allocate();
    made->bottom = static_cast<char*>(stack.sp) - stack.size;
    made->size = stack.size;
    // Stacks begin at different offsets in a page; else what is live of all of them would share a few lines of the caches.
    std::size_t const offset = i % 16 * 256;
    context::preallocated const place(static_cast<char*>(stack.sp) - offset, stack.size - offset, stack);
    fiber& self = *made;
    made->self = context::fiber(std::allocator_arg, place, memory, [this, &self](context::fiber&& back) {
      self.back = std::move(back);
      finish_switch(nullptr, &bottom_, &size_);
      work(self);
      start_switch(nullptr, bottom_, size_);
      return std::move(self.back);
    });
    all_.push_back(std::move(made));
  }
  return *all_[i];
}

void fibers::resume(fiber& to) {
  running_ = &to;
  start_switch(&fake_stack_, to.bottom, to.size);
  to.self = std::move(to.self).resume();
  finish_switch(fake_stack_, nullptr, nullptr);
}

void fibers::leave(fiber& from) {
  start_switch(&from.fake_stack, bottom_, size_);
  from.back = std::move(from.back).resume();
  finish_switch(from.fake_stack, &bottom_, &size_);
}

void fibers::work(fiber& self) {
  while (!self.quits) {
    try {
      (*body_)(self.index);
    } catch (cancelled const&) {
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
    self.working = false;
    leave(self);
  }
}

void fibers::run(unsigned count, random_bits& random, std::function<void(unsigned)> const& body,
                 std::function<std::exception_ptr()> const& stuck) {
  body_ = &body;
  error_ = nullptr;
  ready_.clear();
  wake(0, count);
  std::size_t ended = 0;
  while (ended < count && !error_) {
    if (ready_.empty()) {
      error_ = stuck();
      break;
    }
    std::size_t const pick = random.below(ready_.size());
    fiber& next = at(ready_[pick]);
    ready_[pick] = ready_.back();
    ready_.pop_back();
    next.working = true;
    resume(next);
    if (!next.working) ++ended;
  }
  if (!error_) return;
  for (unsigned i = 0; i < count && i < all_.size(); ++i) {
    if (all_[i]->working) resume(*all_[i]);
  }
  std::rethrow_exception(std::exchange(error_, nullptr));
}

void fibers::wait() {
  leave(*running_);
  if (error_) throw cancelled{};
}

void fibers::wake(unsigned first, unsigned count) {
  for (unsigned i = first; i < first + count; ++i) ready_.push_back(i);
}

}  // namespace kvpolicy_test
