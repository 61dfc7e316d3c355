// An executor on one of several ranks: it sums over all ranks the scores that are sums over layers and heads.
#pragma once

#include <span>
#include <utility>

#include "kvpolicy/communicator.hpp"
#include "kvpolicy/concepts.hpp"

namespace kvpolicy {

/// `Exec` with `sum`: a choice for the whole request (CHESS) then uses the scores of all ranks, and is the same on all of them.
/// A choose() for which that choice is due is collective, and throws what sum() throws (docs/ranks.md). Choices for a layer or
/// a head stay local.
template <executor Exec, communicator Communicator>
class ranked : public Exec {
 public:
  template <class... Args>
  /// Makes an `Exec` that sums by `all`.
  /// @param all  the communicator; must outlive the executor
  /// @param args  constructor arguments of `Exec`
  explicit ranked(Communicator& all, Args&&... args) : Exec(std::forward<Args>(args)...), all_(&all) {}

  /// Sums values over all ranks, in place. Collective.
  /// @param values  as many on every rank
  /// @throws ranks_error if the other ranks do not take part in time
  void sum(std::span<float> values) { all_->sum(values); }
  /// How many ranks a sum is over.
  int ranks() const noexcept { return all_->size(); }

 private:
  Communicator* all_;
};

}  // namespace kvpolicy
