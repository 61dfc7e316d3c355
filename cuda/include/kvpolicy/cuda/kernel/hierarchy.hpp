// What a cascade needs beside scores and top-k: when it is due, its anchor, a level's children, and the list that comes of it.
// All control stays on the device: where a sequence is not due, counts are 0.
#pragma once

#include <cmath>

#include "kvpolicy/cuda/rows.hpp"

namespace kvpolicy::cuda {

/// max(1, ceil(fraction live)) of the live units of a level, at most `most`; 0 of 0. As fraction_of in primitive/cascade.hpp.
KVPOLICY_KERNEL std::int32_t kept_of(float fraction, std::int32_t most, std::int32_t live) {
  if (live == 0) return 0;
  double const exact = static_cast<double>(fraction) * static_cast<double>(live);
  auto kept = static_cast<std::int32_t>(ceil(exact - 1e-6 * static_cast<double>(live)));
  kept = kept < 1 ? 1 : kept > live ? live : kept;
  return kept < most ? kept : most < 1 ? 1 : most;
}

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

/// Which sequences choose anew, and the coarsest level's counts: 0 for the others.
struct cascade_due_body {
  static constexpr unsigned threads = 32;
  static constexpr char const* name = "cascade_due";
  struct arguments {
    per_sequence tokens;
    buffer<std::int32_t const> fired;
    buffer<std::int32_t> at;  ///< tokens at the last choice, -1: none yet
    std::int32_t every = 0;   ///< steps after which it is due in any case; 0: none
    std::int64_t sequences = 0;
    per_sequence units;  ///< of the coarsest level
    per_sequence fraction;
    per_sequence most;  ///< 0: nothing may be chosen
    buffer<std::int32_t> due;
    level_counts counts;
  };
  template <class B>
  struct shared {};

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const s = static_cast<std::int64_t>(block.x()) * B::threads + block.thread();
    if (s >= a.sequences) return;
    auto const sequence = static_cast<unsigned>(s);
    auto const tokens = static_cast<std::int32_t>(a.tokens.of(block, sequence));
    std::int32_t const at = block.global(a.at)[s];
    std::int32_t const fired = block.global(a.fired)[s];
    bool const due = tokens > 0 && (at < 0 || fired != 0 || (a.every > 0 && tokens - at >= a.every));
    if (due) block.global(a.at)[s] = tokens;
    block.global(a.due)[s] = due ? 1 : 0;
    auto const most = static_cast<std::int32_t>(a.most.of(block, sequence));
    auto const live = due && most > 0 ? static_cast<std::int32_t>(a.units.of(block, sequence)) : 0;
    float const fraction = __builtin_bit_cast(float, static_cast<std::int32_t>(a.fraction.of(block, sequence)));
    set_counts(block, a.counts, s, live, kept_of(fraction, most, live));
  }
};

/// Units [first, last) of a finer level that a coarser level's means take in anew: what changed since the last choice.
struct refresh_range_body {
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
  struct shared {};

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const s = static_cast<std::int64_t>(block.x()) * B::threads + block.thread();
    if (s >= a.sequences) return;
    std::int32_t const due = block.global(a.due)[s];
    std::int32_t const complete = block.global(a.complete)[s];
    block.global(a.first)[s] = due != 0 ? complete / a.fan_out * a.fan_out : 0;
    block.global(a.last)[s] = due != 0 ? static_cast<std::int32_t>(a.finer.of(block, static_cast<unsigned>(s))) : 0;
    if (due != 0) block.global(a.complete)[s] = static_cast<std::int32_t>(a.finer_complete.of(block, static_cast<unsigned>(s)));
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
    buffer<std::int32_t const> live;  ///< `[sequences, stride]` units, ascending; or none: all units
    std::int64_t stride = 0;
    std::int32_t fan_out = 1;
    per_sequence finer;  ///< units of the next level; none beyond it
    per_sequence fraction;
    per_sequence most;
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
    auto const finer = static_cast<std::int32_t>(a.finer.of(block, block.x()));
    auto const children = block.global(a.children);
    if (block.thread() == 0) s.live[0] = 0;
    block.sync();
    // Only the last unit of a level can have fewer children than the others, and it is the last that is kept.
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < kept; i += B::threads) {
      std::int32_t const place = block.global(a.kept)[at + i];
      std::int32_t unit = place;
      if (a.live.data != nullptr) {
        std::int32_t const named = block.global(a.live)[at + place];
        unit = named;
      }
      std::int32_t const first = unit * a.fan_out;
      std::int32_t const behind = first + a.fan_out < finer ? first + a.fan_out : finer;
      for (std::int32_t u = first; u < behind; ++u) children[at + static_cast<std::int64_t>(i) * a.fan_out + (u - first)] = u;
      if (i == kept - 1) s.live[0] = i * a.fan_out + (behind > first ? behind - first : 0);
    }
    block.sync();
    if (block.thread() != 0) return;
    std::int32_t const live = s.live[0];
    float const fraction = __builtin_bit_cast(float, static_cast<std::int32_t>(a.fraction.of(block, block.x())));
    set_counts(block, a.next, sequence, live, kept_of(fraction, static_cast<std::int32_t>(a.most.of(block, block.x())), live));
  }
};

/// The pages that a choice stands for, kept until the next one.
struct cascade_pages_body {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "cascade_pages";
  struct arguments {
    level_counts counts;              ///< of the finest level
    buffer<std::int32_t const> kept;  ///< `[sequences, stride]` places
    buffer<std::int32_t const> live;  ///< or none
    std::int64_t stride = 0;
    buffer<std::int32_t const> due;
    buffer<std::int32_t> pages;  ///< `[sequences, stride]`
    buffer<std::int32_t> count;  ///< `[sequences]`
  };
  template <class B>
  struct shared {};

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const sequence = block.x();
    std::int64_t const at = sequence * a.stride;
    std::int32_t const due = block.global(a.due)[sequence];
    if (due == 0) return;
    std::int32_t const kept = block.global(a.counts.kept)[sequence];
    auto const pages = block.global(a.pages);
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < kept; i += B::threads) {
      std::int32_t const place = block.global(a.kept)[at + i];
      std::int32_t page = place;
      if (a.live.data != nullptr) {
        std::int32_t const named = block.global(a.live)[at + place];
        page = named;
      }
      pages[at + i] = page;
    }
    if (block.thread() == 0) block.global(a.count)[sequence] = kept;
  }
};

/// A step's list: sink pages, then the chosen ones between them and the tail, ascending. One block a sequence.
struct page_list_body {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "page_list";
  struct arguments {
    buffer<std::int32_t const> pages;  ///< `[sequences, stride]`, ascending
    buffer<std::int32_t const> count;
    std::int64_t stride = 0;
    per_sequence sinks;  ///< pages
    per_sequence tail;   ///< its first token, a multiple of the page
    std::int32_t page = 1;
    buffer<std::int32_t> units;  ///< `[sequences, stride]`
    buffer<std::int32_t> named;  ///< `[sequences]` tokens
  };
  template <class B>
  struct shared {
    typename B::template scan_storage<std::int32_t> scan;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const sequence = block.x();
    std::int64_t const at = sequence * a.stride;
    auto const sinks = static_cast<std::int32_t>(a.sinks.of(block, block.x()));
    auto const behind = static_cast<std::int32_t>(a.tail.of(block, block.x()) / a.page);
    std::int32_t const count = block.global(a.count)[sequence];
    auto const units = block.global(a.units);
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < sinks; i += B::threads) units[at + i] = i;
    std::int32_t written = sinks;
    for (std::int32_t base = 0; base < count; base += B::threads) {
      std::int32_t const i = base + static_cast<std::int32_t>(block.thread());
      std::int32_t page = 0;
      bool wanted = false;
      if (i < count) {
        std::int32_t const chosen = block.global(a.pages)[at + i];
        page = chosen;
        wanted = page >= sinks && page < behind;
      }
      std::int32_t total = 0;
      std::int32_t const before = block.exclusive_sum(s.scan, wanted ? 1 : 0, total);
      if (wanted) units[at + written + before] = page;
      written += total;
      block.sync();
    }
    if (block.thread() == 0) block.global(a.named)[sequence] = written * a.page;
  }
};

}  // namespace kvpolicy::cuda
