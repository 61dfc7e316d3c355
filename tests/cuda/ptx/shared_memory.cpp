#include "cuda/ptx/shared_memory.hpp"

#include <algorithm>
#include <string>

#include "cuda/ptx/instruction.hpp"

namespace ptx {

void shared_memory::begin(std::int64_t bytes) {
  bytes_ = bytes;
  auto const words = static_cast<std::size_t>((bytes + 3) / 4);
  if (data_.size() < words * 4) data_.resize(words * 4), words_.resize(words);
  std::fill_n(words_.begin(), words, word{});
}

void shared_memory::refuse(char const* what, std::uint32_t address, user const& by) {
  throw fault(std::string(what) + ": thread " + std::to_string(by.thread) + ", byte " + std::to_string(address));
}

}  // namespace ptx
