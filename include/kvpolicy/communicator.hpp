// Communicators: what ranks that hold a part of the heads or layers each make one choice with.
#pragma once

#include <concepts>
#include <span>

#include "kvpolicy/error.hpp"

namespace kvpolicy {

/// The other ranks can't be reached, or did not come in time: names this rank, what it waited for and for how long.
struct ranks_error : error {
  using error::error;
};

/// Sums over the ranks of a group: processes or threads that run the same model, a part of its heads or layers each.
///
/// Requires: `rank()`, 0 <= rank < size; `size()`; `sum(values)`, in place, host memory.
/// Semantics: sum is collective: all ranks call it equally often, in the same order, with equally many values; it returns the
/// same numbers on every rank, whatever the order of summation. It returns or throws ranks_error within a deadline, whatever
/// became of the others. Afterwards the communicator is broken: every further call throws at once.
/// Model: mpi_communicator. Not a model: a barrier around memory that is shared (nothing ends the wait for a rank that died).
template <class C>
concept communicator = requires(C& all, std::span<float> values) {
  { all.rank() } -> std::convertible_to<int>;
  { all.size() } -> std::convertible_to<int>;
  all.sum(values);
};

}  // namespace kvpolicy
