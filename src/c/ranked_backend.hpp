// Sequences in host memory of which this process has a part of the heads: choices for the whole request are all ranks'.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvpolicy.h"
#include "kvpolicy/communicator.hpp"
#include "kvpolicy/exec/ranked.hpp"
#include "published.hpp"
#include "tensor.hpp"

namespace kvpolicy::c {

/// A communicator that is the caller's.
class caller_ranks {
 public:
  explicit caller_ranks(kvpolicy_ranks const& ranks) : ranks_(ranks) {}

  int rank() const noexcept { return ranks_.rank; }
  int size() const noexcept { return ranks_.size; }
  void sum(std::span<float> values) {
    auto const named = [&] { return "rank " + std::to_string(rank()) + " of " + std::to_string(size()); };
    if (status_ != 0) throw ranks_error(named() + ": a sum before failed with " + std::to_string(status_));
    status_ = ranks_.sum(ranks_.user, values.data(), std::ssize(values));
    if (status_ != 0)
      throw ranks_error(named() + ": the sum of " + std::to_string(values.size()) + " numbers failed with " +
                        std::to_string(status_));
  }

 private:
  kvpolicy_ranks ranks_;
  std::int32_t status_ = 0;  ///< not 0: broken
};

using ranked_exec = ranked<simd_exec, caller_ranks>;
using ranked_policy_list = policy_list<layer_table_view, ranked_exec>;

/// The published policies, on ranks. In a file of its own: it instantiates every policy.
ranked_policy_list const& ranked_policies();

struct ranked_backend {
  using executor = ranked_exec;

  ranked_backend(cache_shape const& shape, kvpolicy_ranks const& ranks) : all(ranks), exec(all, shape) {}
  ranked_backend(ranked_backend const&) = delete;
  ranked_backend& operator=(ranked_backend const&) = delete;

  void enter() const noexcept {}
  static tensor const& on_host(tensor const& given, std::size_t, std::size_t) noexcept { return given; }

  caller_ranks all;
  place rows{};
  place vectors{};
  executor exec;
};

}  // namespace kvpolicy::c
