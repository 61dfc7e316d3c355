// A level of a cascade: its live units' scores, the best of them, and what these stand for.
#pragma once

#include "kvpolicy/gpu/base/top_k.hpp"
#include "kvpolicy/gpu/hierarchy/descent.hpp"
#include "kvpolicy/gpu/hierarchy/page_list.hpp"
#include "kvpolicy/gpu/pooling/score_dot.hpp"

namespace kvpolicy::gpu::detail {

/// The blocks of a sequence score the level's live units; the last one to end ranks them, and names their children, or of the
/// finest level the step's list. Where nothing is scored a single block does this.
struct cascade_level_body {
  static constexpr unsigned threads = score_dot_body::threads;
  static_assert(threads == ranked_keys::threads);
  static constexpr char const* name = "cascade_level";
  struct arguments {
    score_dot_body::arguments score;  ///< of the units that are live, `score.count` of them
    level_counts counts;
    top_k_arguments top;  ///< places among the live ones
    bool following = false;
    std::int32_t fan_out = 1;
    level_limits finer;  ///< these three of a level that is not the finest
    buffer<std::int32_t> children;
    level_counts next;
    bool finest = false;
    chosen_pages pages;             ///< of the finest
    buffer<std::int32_t> counters;  ///< `[sequences]` zeros
  };
  template <class B>
  struct shared {
    score_dot_body::shared<B> score;
    ranked_keys::shared<B> ranked;
    typename B::last_storage last;
    typename B::template array<std::int32_t, 1> live;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const sequence = block.y();
    if (a.score.count.of(block, block.y()) > 0) {
      score_dot_body::run(block, s.score, a.score);
      if (a.score.blocks > 1 && !block.last_of(s.last, a.counters, sequence, static_cast<std::int32_t>(a.score.blocks))) return;
    } else if (block.x() != 0) {
      return;
    }
    top_k_row(block, a.top, sequence).rank(block, s.ranked, a.top, [&](std::int32_t i) { return score_of(block, a, i); });
    block.sync();
    if (a.finest) {
      keep_pages(block, a.pages, a.counts, a.top.indices, a.score.units, a.score.first);
      block.sync();
      list_pages(block, s.ranked.radix.scan, a.pages);
    } else {
      name_children(block, s, a);
    }
  }

 private:
  /// Of a live unit, where others follow at least that of the one before it, if that is live too.
  template <class B>
  KVPOLICY_KERNEL static float score_of(B& block, arguments const& a, std::int32_t i) {
    std::int64_t const at = static_cast<std::int64_t>(block.y()) * a.score.stride + i;
    auto const scores = block.global(a.score.scores);
    float const own = scores[at];
    if (!a.following || i == 0) return own;
    if (a.score.units.data != nullptr) {
      std::int32_t const mine = block.global(a.score.units)[at];
      std::int32_t const other = block.global(a.score.units)[at - 1];
      if (mine != other + 1) return own;
    }
    float const before = scores[at - 1];
    return own >= before ? own : before;
  }

  /// The next finer level's live units.
  template <class B>
  KVPOLICY_KERNEL static void name_children(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const sequence = block.y();
    std::int64_t const at = sequence * a.score.stride;
    std::int32_t const kept = block.global(a.counts.kept)[sequence];
    auto const lowest = static_cast<std::int32_t>(a.finer.first.of(block, block.y()));
    auto const behind_all = static_cast<std::int32_t>(a.finer.last.of(block, block.y()));
    auto const children = block.global(a.children);
    auto const first_of = [&](std::int32_t i) {
      std::int32_t const place = block.global(a.top.indices)[at + i];
      return unit_at(block, a.score.units, a.score.first, at, place) * a.fan_out;
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
    set_counts(block, a.next, sequence, live, a.finer.kept(block, block.y(), live));
  }
};

/// `max_units` are the level's of any sequence, at most.
template <device D>
void launch_cascade_level(D& device, cascade_level_body::arguments a, std::int64_t max_units, std::int64_t sequences) {
  a.score = finished(a.score);
  a.counters = device.counters();
  // Where a cascade is not due its counts are 0: no more blocks than fill the device.
  a.score.blocks = sequences > a.counters.size
                       ? 1
                       : blocks_of_row<cascade_level_body>(device, max_units, score_dot_body::at_once, sequences);
  device.template launch<cascade_level_body>({a.score.blocks, sequences, 1}, a);
}

}  // namespace kvpolicy::gpu::detail
