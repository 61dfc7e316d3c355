// The pages that a cascade's choice stands for, and the list that comes of it.
#pragma once

#include "kvpolicy/gpu/hierarchy/descent.hpp"

namespace kvpolicy::gpu::detail {

/// The pages of the last choice, and the step's list.
struct chosen_pages {
  buffer<std::int32_t const> due;
  buffer<std::int32_t> pages;  ///< `[sequences, stride]`, ascending
  buffer<std::int32_t> count;  ///< `[sequences]`
  std::int64_t stride = 0;
  per_sequence sinks;  ///< pages
  per_sequence tail;   ///< its first token, a multiple of the page
  std::int32_t page = 1;
  buffer<std::int32_t> units;  ///< `[sequences, stride]` of the list
  buffer<std::int32_t> named;  ///< `[sequences]` tokens of the list
};

/// The pages that a choice stands for, kept until the next one. The block's row is the sequence's, here and below.
template <class B>
KVPOLICY_KERNEL void keep_pages(B& block, chosen_pages const& a, level_counts const& counts, buffer<std::int32_t> places,
                                buffer<std::int32_t const> live, per_sequence const& first) {
  std::int64_t const sequence = block.y();
  std::int64_t const at = sequence * a.stride;
  std::int32_t const due = block.global(a.due)[sequence];
  if (due == 0) return;
  std::int32_t const kept = block.global(counts.kept)[sequence];
  auto const pages = block.global(a.pages);
  for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < kept; i += B::threads) {
    std::int32_t const place = block.global(places)[at + i];
    pages[at + i] = unit_at(block, live, first, at, place);
  }
  if (block.thread() == 0) block.global(a.count)[sequence] = kept;
}

/// A step's list: sink pages, then the chosen ones between them and the tail, ascending. Collective.
template <class B, class Scan>
KVPOLICY_KERNEL void list_pages(B& block, Scan& scan, chosen_pages const& a) {
  std::int64_t const sequence = block.y();
  std::int64_t const at = sequence * a.stride;
  auto const behind = static_cast<std::int32_t>(a.tail.of(block, block.y()) / a.page);
  auto const named = static_cast<std::int32_t>(a.sinks.of(block, block.y()));
  std::int32_t const sinks = named < behind ? named : behind;
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
    std::int32_t const before = block.exclusive_sum(scan, wanted ? 1 : 0, total);
    if (wanted) units[at + written + before] = page;
    written += total;
    block.sync();
  }
  if (block.thread() == 0) block.global(a.named)[sequence] = written * a.page;
}

}  // namespace kvpolicy::gpu::detail
