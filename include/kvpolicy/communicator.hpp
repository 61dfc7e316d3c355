// Communicators: how ranks, each with a part of the heads or layers, make one choice together.
#pragma once

#include <concepts>
#include <span>

#include "kvpolicy/error.hpp"

namespace kvpolicy {

/// The other ranks can't be reached, or did not come in time.
/// The message names this rank, what it waited for, and how long it waited.
struct ranks_error : error {
  using error::error;
};

/// Sums over the ranks of a group: processes or threads that run the same model, each a part of its heads or layers.
/// Requires: `rank()`, with 0 <= rank < size; `size()`; `sum(values)`, which sums in place, in host memory.
/// Semantics: `sum` is collective: all ranks call it equally often, in the same order, with equally many values. It gives the
/// same numbers on every rank, whatever the order of summation. Within a deadline it returns or throws ranks_error, whatever
/// happens to the other ranks. After `sum` threw, the communicator is broken: every further call throws.
/// Model: mpi_communicator. Not a model: a barrier around shared memory (nothing ends the wait for a rank that died).
template <class C>
concept communicator = requires(C& all, std::span<float> values) {
  { all.rank() } -> std::convertible_to<int>;
  { all.size() } -> std::convertible_to<int>;
  all.sum(values);
};

}  // namespace kvpolicy
