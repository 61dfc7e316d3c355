// What a cascade needs beside scores and top-k: when it is due, and a level's children. All control stays on the device: where
// a sequence is not due, counts are 0.
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

/// The unit at a place among the live ones: those named from `at` on, or all from `first` on.
template <class B>
KVPOLICY_KERNEL std::int32_t unit_at(B& block, buffer<std::int32_t const> live, per_sequence const& first, std::int64_t at,
                                     std::int32_t place) {
  if (live.data == nullptr) return place + static_cast<std::int32_t>(first.of(block, block.x()));
  std::int32_t const named = block.global(live)[at + place];
  return named;
}

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
  }
};

/// Units [first, last) of a finer level that a coarser level's means take in anew: what changed since the last choice.
struct refresh_range_body : no_shared {
  static constexpr unsigned threads = 32;
  static constexpr char const* name = "refresh_range";
  struct arguments {
    buffer<std::int32_t const> due;
    buffer<std::int32_t> complete;  ///< `[sequences]` finer units that are in for good
    per_sequence finer;             ///< units
    per_sequence finer_complete;    ///< of those, how many will not change
    std::int32_t fan_out = 1;
    std::int64_t sequences = 0;
    buffer<std::int32_t> first;
    buffer<std::int32_t> last;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const s = index_in_grid(block);
    if (s >= a.sequences) return;
    std::int32_t const due = block.global(a.due)[s];
    std::int32_t const complete = block.global(a.complete)[s];
    block.global(a.first)[s] = due != 0 ? complete / a.fan_out * a.fan_out : 0;
    block.global(a.last)[s] = due != 0 ? static_cast<std::int32_t>(a.finer.of(block, static_cast<unsigned>(s))) : 0;
    if (due != 0) block.global(a.complete)[s] = static_cast<std::int32_t>(a.finer_complete.of(block, static_cast<unsigned>(s)));
  }
};

/// A live page's score is at least that of the one before it, where that is live too. One block a sequence.
struct cascade_following_body : no_shared {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "cascade_following";
  struct arguments {
    level_counts counts;
    buffer<std::int32_t const> live;  ///< `[sequences, stride]` units, ascending; or none: all units
    std::int64_t stride = 0;
    buffer<float> scores;  ///< `[sequences, stride]`
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const at = static_cast<std::int64_t>(block.x()) * a.stride;
    std::int32_t const count = block.global(a.counts.scored)[block.x()];
    auto const scores = block.global(a.scores);
    // From the end on, so that no score is replaced before the page behind has read it.
    for (std::int32_t end = count; end > 0; end -= B::threads) {
      std::int32_t const i = end - 1 - static_cast<std::int32_t>(block.thread());
      float before = 0;
      bool wanted = i > 0;
      if (wanted && a.live.data != nullptr) {
        std::int32_t const mine = block.global(a.live)[at + i];
        std::int32_t const other = block.global(a.live)[at + i - 1];
        wanted = mine == other + 1;
      }
      if (wanted) {
        float const own = scores[at + i];
        before = scores[at + i - 1];
        wanted = !(own >= before);
      }
      block.sync();
      if (wanted) scores[at + i] = before;
      block.sync();
    }
  }
};

/// The kept units of a level, from their places among the live ones; and the next finer level's live units, their children. One
/// block a sequence.
struct cascade_children_body {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "cascade_children";
  struct arguments {
    level_counts counts;              ///< of this level
    buffer<std::int32_t const> kept;  ///< `[sequences, stride]` places, ascending
    buffer<std::int32_t const> live;  ///< `[sequences, stride]` units, ascending; or none: all units from `first` on
    per_sequence first;
    std::int64_t stride = 0;
    std::int32_t fan_out = 1;
    level_limits finer;
    buffer<std::int32_t> children;  ///< `[sequences, stride]`
    level_counts next;
  };
  template <class B>
  struct shared {
    typename B::template array<std::int32_t, 1> live;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const sequence = block.x();
    std::int64_t const at = sequence * a.stride;
    std::int32_t const kept = block.global(a.counts.kept)[sequence];
    auto const lowest = static_cast<std::int32_t>(a.finer.first.of(block, block.x()));
    auto const behind_all = static_cast<std::int32_t>(a.finer.last.of(block, block.x()));
    auto const children = block.global(a.children);
    auto const first_of = [&](std::int32_t i) {
      std::int32_t const unit = unit_at(block, a.live, a.first, at, block.global(a.kept)[at + i]);
      return unit * a.fan_out;
    };
    if (block.thread() == 0) s.live[0] = 0;
    block.sync();
    // Only the first and the last candidates of a level can have fewer children than the others.
    std::int32_t const begin = kept > 0 ? first_of(0) : 0;
    std::int32_t const missing = begin < lowest ? lowest - begin : 0;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < kept; i += B::threads) {
      std::int32_t const first = first_of(i);
      std::int32_t const behind = first + a.fan_out < behind_all ? first + a.fan_out : behind_all;
      std::int32_t const shift = i * a.fan_out - missing - first;
      for (std::int32_t u = first < lowest ? lowest : first; u < behind; ++u) children[at + shift + u] = u;
      if (i == kept - 1) s.live[0] = shift + behind;
    }
    block.sync();
    if (block.thread() != 0) return;
    std::int32_t const live = s.live[0];
    set_counts(block, a.next, sequence, live, a.finer.kept(block, block.x(), live));
  }
};

}  // namespace kvpolicy::gpu::detail
