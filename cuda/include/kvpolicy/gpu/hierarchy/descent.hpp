// When a cascade is due, and how its levels are cut. All control stays on the device: where a sequence is not due, counts are
// 0.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/base/rows.hpp"

namespace kvpolicy::gpu::detail {

/// How a level of a cascade is cut, of each sequence; as cascade_level.
struct level_limits {
  per_sequence fraction;  ///< a float's bits
  per_sequence least;
  per_sequence most;   ///< 0: nothing may be chosen
  per_sequence first;  ///< units [first, last) can be kept
  per_sequence last;

  /// How many of `live` units are kept. As kept_units in primitive/cascade.hpp.
  template <class B>
  KVPOLICY_KERNEL std::int32_t kept(B& block, unsigned sequence, std::int32_t live) const {
    auto const at_most = static_cast<std::int32_t>(most.of(block, sequence));
    if (live == 0 || at_most == 0) return 0;
    float const share = __builtin_bit_cast(float, static_cast<std::int32_t>(fraction.of(block, sequence)));
    double const exact = static_cast<double>(share) * static_cast<double>(live);
    auto wanted = static_cast<std::int32_t>(ceil(exact - 1e-6 * static_cast<double>(live)));
    auto const at_least = static_cast<std::int32_t>(least.of(block, sequence));
    wanted = wanted < at_least ? at_least : wanted;
    wanted = wanted < live ? wanted : live;
    return wanted < at_most ? wanted : at_most;
  }
};

/// What a level of a cascade works on, of each sequence.
struct level_counts {
  buffer<std::int32_t> live;
  buffer<std::int32_t> scored;  ///< live, or 0 where all of them are kept anyway
  buffer<std::int32_t> kept;
};

template <class B>
KVPOLICY_KERNEL void set_counts(B& block, level_counts const& to, std::int64_t s, std::int32_t live, std::int32_t kept) {
  block.global(to.live)[s] = live;
  block.global(to.kept)[s] = kept;
  block.global(to.scored)[s] = kept < live ? live : 0;
}

/// The unit at a place among the live ones of the block's sequence: those named from `at` on, or all from `first` on.
template <class B>
KVPOLICY_KERNEL std::int32_t unit_at(B& block, buffer<std::int32_t const> live, per_sequence const& first, std::int64_t at,
                                     std::int32_t place) {
  if (live.data == nullptr) return place + static_cast<std::int32_t>(first.of(block, block.y()));
  std::int32_t const named = block.global(live)[at + place];
  return named;
}

/// Units of a coarser level whose means change at a choice: those that finer units have come to since the last one.
struct level_refresh {
  buffer<std::int32_t> complete;  ///< `[sequences]` finer units that were in for good at the last choice
  per_sequence finer;             ///< finer units
  per_sequence finer_complete;    ///< of those, how many will not change
  buffer<std::int32_t> first;     ///< `[sequences]` of the finer units that are taken in now; none is complete before it
  buffer<std::int32_t> last;      ///< 0: none is taken in
};

/// Which sequences choose anew, and the coarsest level's counts: 0 for the others.
struct cascade_due_body : no_shared {
  static constexpr unsigned threads = 32;
  static constexpr char const* name = "cascade_due";
  struct arguments {
    per_sequence tokens;
    buffer<std::int32_t const> fired;
    buffer<std::int32_t> at;  ///< tokens at the last choice, -1: none yet
    std::int32_t every = 0;   ///< steps after which it is due in any case; 0: none
    std::int32_t rest = 0;    ///< steps before which what fired does not count
    std::int64_t sequences = 0;
    level_limits limits;  ///< of the coarsest level
    per_sequence tail;    ///< where what is protected begins, for a choice that is made now
    per_sequence waits;   ///< 1: no choice is due, and everything is read
    buffer<std::int32_t> due;
    buffer<std::int32_t> since;  ///< the tail at the last choice: what is behind is read until the next
    buffer<std::int32_t> pages;  ///< that the last choice named
    level_counts counts;
    level_refresh refresh[2];  ///< of chunks by pages, of grids by chunks
    std::int32_t levels = 0;   ///< of these
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const s = index_in_grid(block);
    if (s >= a.sequences) return;
    auto const sequence = static_cast<unsigned>(s);
    auto const tokens = static_cast<std::int32_t>(a.tokens.of(block, sequence));
    std::int32_t const at = block.global(a.at)[s];
    std::int32_t const fired = block.global(a.fired)[s];
    std::int32_t const stood = tokens - at;
    bool const waits = a.waits.of(block, sequence) != 0;
    bool const due = tokens > 0 && !waits && (at < 0 || (fired != 0 && stood >= a.rest) || (a.every > 0 && stood >= a.every));
    auto const tail = static_cast<std::int32_t>(a.tail.of(block, sequence));
    std::int32_t const since = block.global(a.since)[s];
    if (due) block.global(a.at)[s] = tokens;
    if (due || (tokens > 0 && since > tail)) block.global(a.since)[s] = tail;
    if (tokens > 0 && waits) block.global(a.since)[s] = block.global(a.pages)[s] = 0;
    block.global(a.due)[s] = due ? 1 : 0;
    auto const first = static_cast<std::int32_t>(a.limits.first.of(block, sequence));
    auto const last = static_cast<std::int32_t>(a.limits.last.of(block, sequence));
    bool const any = due && first < last && a.limits.most.of(block, sequence) > 0;
    std::int32_t const live = any ? last - first : 0;
    set_counts(block, a.counts, s, live, a.limits.kept(block, sequence, live));
    for (std::int32_t l = 0; l < a.levels; ++l) {
      level_refresh const& of = a.refresh[l];
      block.global(of.last)[s] = due ? static_cast<std::int32_t>(of.finer.of(block, sequence)) : 0;
      if (!due) continue;
      std::int32_t const complete = block.global(of.complete)[s];
      block.global(of.first)[s] = complete;
      block.global(of.complete)[s] = static_cast<std::int32_t>(of.finer_complete.of(block, sequence));
    }
  }
};

}  // namespace kvpolicy::gpu::detail
