// An executor on one rank of several: what scores are sums over layers and heads is summed over the ranks.
#pragma once

#include <span>
#include <utility>

#include "kvpolicy/communicator.hpp"
#include "kvpolicy/concepts.hpp"

namespace kvpolicy {

/// `Exec`, with `sum`: a choice for the whole request (CHESS) is then made from the scores of all ranks, and is the same on
/// all. choose() is collective where that choice is due, and throws what sum throws (docs/ranks.md). Choices for a layer or a
/// head are made as ever. The communicator must outlive this.
template <executor Exec, communicator Communicator>
class ranked : public Exec {
 public:
  template <class... Args>
  explicit ranked(Communicator& all, Args&&... args) : Exec(std::forward<Args>(args)...), all_(&all) {}

  void sum(std::span<float> values) { all_->sum(values); }

 private:
  Communicator* all_;
};

}  // namespace kvpolicy
