// Rows from host memory that the device can read, into slots on the device: first who gets which slot, then the copies.
#pragma once

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/base/radix.hpp"

namespace kvpolicy::gpu::detail {

/// Which tokens' rows are in slots, of each sequence and KV head.
struct slot_table {
  buffer<std::int32_t> slot_of;   ///< `[sequences, kv_heads, max_tokens]`, -1: not there
  buffer<std::int32_t> token_of;  ///< `[sequences, kv_heads, slots]`, -1: empty
  buffer<std::int32_t> used;      ///< `[sequences, kv_heads, slots]` the step that last listed it
  std::int64_t max_tokens = 0;
  std::int32_t slots = 0;
};

/// Gives every listed token a slot: the one that it has, or that of what was not listed for longest. One block a head and
/// sequence.
struct resolve_slots_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = "resolve_slots";
  struct arguments {
    token_lists lists;
    std::int32_t heads = 1;
    slot_table table;
    buffer<std::int32_t> step;      ///< `[sequences, kv_heads]` counts up, from 1
    buffer<std::int32_t> victims;   ///< `[sequences, kv_heads, slots]` scratch
    buffer<std::int32_t> named;     ///< `[sequences, kv_heads, slots]` the slots of the list's tokens, in its order
    buffer<std::int32_t> counts;    ///< `[sequences, kv_heads]`
    buffer<std::int32_t> missing;   ///< `[sequences, kv_heads, slots]` slots whose rows have to come
    buffer<std::int32_t> missed;    ///< `[sequences, kv_heads]`
    buffer<std::int32_t> overflow;  ///< `[1]` set where a list has more tokens than there are slots: the rest is not read
  };
  template <class B>
  struct shared {
    radix_shared<B> radix;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const row = static_cast<std::int64_t>(block.y()) * a.heads + block.x();
    list_reader<B> const list(block, a.lists, block.y(), block.x());
    auto const slots = a.table.slots;
    auto const slot_of = block.global(a.table.slot_of);
    auto const token_of = block.global(a.table.token_of);
    auto const used = block.global(a.table.used);
    auto const named = block.global(a.named);
    auto const missing = block.global(a.missing);
    auto const victims = block.global(a.victims);
    std::int64_t const tokens_at = row * a.table.max_tokens;
    std::int64_t const at = row * slots;
    std::int32_t const now = block.global(a.step)[row];
    auto const thread = static_cast<std::int32_t>(block.thread());
    std::int32_t count = static_cast<std::int32_t>(list.count());
    if (count > slots) {
      if (thread == 0) block.global(a.overflow).atomic_add(0, 1);
      count = slots;
    }
    block.sync();  // every thread has read what thread 0 writes at the end

    // Who is there stays; who is not is numbered in the list's order.
    std::int32_t absent = 0;
    for (std::int32_t base = 0; base < count; base += B::threads) {
      std::int32_t const i = base + thread;
      std::int32_t token = 0;
      std::int32_t slot = 0;
      if (i < count) {
        token = static_cast<std::int32_t>(list.token(i));
        slot = slot_of[tokens_at + token];
        if (slot >= 0) used[at + slot] = now;
      }
      std::int32_t all = 0;
      std::int32_t const nth = absent + block.exclusive_sum(s.radix.scan, i < count && slot < 0 ? 1 : 0, all);
      if (i < count) named[at + i] = slot >= 0 ? slot : -1 - nth;
      absent += all;
      block.sync();
    }
    if (absent > 0) {
      // The slots that were not listed for longest, as many as are needed; lower slots first among equals.
      auto const age = [&](std::int32_t slot) {
        std::int32_t const last = used[at + slot];
        return static_cast<std::uint32_t>(now - last);
      };
      radix_threshold const threshold = select_threshold(block, s.radix, absent, [&](auto visit) {
        for (std::int32_t slot = thread; slot < slots; slot += B::threads) visit(age(slot), 1);
      });
      keep_in_order(
          block, s.radix, slots, threshold,
          [&](std::int32_t slot) {
            return ordered_item{slot, false, true, age(slot)};
          },
          [&](std::int32_t slot, std::int32_t nth) {
            victims[at + nth] = slot;
            std::int32_t const old = token_of[at + slot];
            if (old >= 0) slot_of[tokens_at + old] = -1;
          });
      for (std::int32_t i = thread; i < count; i += B::threads) {
        std::int32_t const before = named[at + i];
        if (before >= 0) continue;
        std::int32_t const nth = -1 - before;
        std::int32_t const slot = victims[at + nth];
        auto const token = static_cast<std::int32_t>(list.token(i));
        named[at + i] = slot;
        token_of[at + slot] = token;
        slot_of[tokens_at + token] = slot;
        used[at + slot] = now;
        missing[at + nth] = slot;
      }
    }
    if (thread != 0) return;
    block.global(a.counts)[row] = count;
    block.global(a.missed)[row] = absent;
    block.global(a.step)[row] = now + 1;
  }
};

/// Copies the missing rows, 16 bytes a thread; the slots' own layout is `[sequences, kv_heads, slots, head_dim]`.
template <element_type E>
struct gather_rows_body : no_shared {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "gather_rows";
  struct arguments {
    batch_rows from;  ///< packed
    slot_table table;
    buffer<std::int32_t const> missing;
    buffer<std::int32_t const> missed;
    buffer<stored<E>> to;
    std::int32_t blocks = 1;  ///< that share a head's rows
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const row = static_cast<std::int64_t>(block.z()) * a.from.heads + block.y();
    std::int32_t const missed = block.global(a.missed)[row];
    std::int32_t const parts = a.from.parts();
    row_reader<E, B> const from(block, a.from, block.z());
    auto const to = block.global(a.to);
    std::int64_t const step = static_cast<std::int64_t>(a.blocks) * B::threads;
    KVPOLICY_UNROLL_4
    for (std::int64_t i = index_in_grid(block); i < std::int64_t{missed} * parts; i += step) {
      auto const nth = static_cast<std::int32_t>(i / parts);
      auto const part = static_cast<std::int32_t>(i - std::int64_t{nth} * parts);
      std::int32_t const slot = block.global(a.missing)[row * a.table.slots + nth];
      std::int32_t const token = block.global(a.table.token_of)[row * a.table.slots + slot];
      auto const raw = from.load_raw(from.offset(block.y(), token), part);
      std::int64_t const at = (row * a.table.slots + slot) * a.from.head_dim + part * 8;
      to.store(at, raw.word[0]);
      if constexpr (E == element_type::f32) to.store(at + 4, raw.word[1]);
    }
  }
};

}  // namespace kvpolicy::gpu::detail
