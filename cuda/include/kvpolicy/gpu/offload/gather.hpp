// Rows from host memory that the device can read, into slots on the device: first who gets which slot, then the copies.
#pragma once

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/base/radix.hpp"

namespace kvpolicy::gpu::detail {

/// Which tokens' rows of a layer are in slots. Each sequence and KV head has slots of its own, one head's behind the other's.
struct slot_table {
  buffer<std::int32_t> slot_of;      ///< `[sequences, kv_heads, max_tokens]`, -1: not there
  buffer<std::int32_t const> first;  ///< `[sequences * kv_heads + 1]` each head's first slot
  buffer<std::int32_t> token_of;     ///< `[slots]`, -1: empty
  buffer<std::int32_t> used;         ///< `[slots]` the step that last listed it
  buffer<std::int32_t> whole;        ///< `[sequences, kv_heads]` tokens that are there of a head with a slot for each; else -1
  std::int64_t max_tokens = 0;
};

/// Gives every listed token a slot: the one that it has, or that of what was not listed for longest. A head with a slot for
/// each token has all of them there. One block a head and sequence.
struct resolve_slots_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = "resolve_slots";
  struct arguments {
    token_lists lists;
    std::int32_t heads = 1;
    slot_table table;
    buffer<std::int32_t> step;      ///< `[sequences, kv_heads]` counts up, from 1
    buffer<std::int32_t> victims;   ///< `[slots]` scratch
    buffer<std::int32_t> missing;   ///< `[slots]` from a head's first on, the slots whose rows have to come
    buffer<std::int32_t> missed;    ///< `[sequences, kv_heads]` how many
    buffer<std::int32_t> overflow;  ///< `[1]` counts lists with more tokens than slots, which are read wrong
  };
  template <class B>
  struct shared {
    radix_shared<B> radix;
  };
  /// A KV head of a sequence: its place in what is kept by head, its first slot and how many it has, and the step.
  struct head {
    std::int64_t row;
    std::int64_t tokens_at;
    std::int32_t at;
    std::int32_t slots;
    std::int32_t now;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const row = static_cast<std::int64_t>(block.y()) * a.heads + block.x();
    std::int64_t const tokens_at = row * a.table.max_tokens;
    std::int32_t const at = block.global(a.table.first)[row];
    std::int32_t const slots = block.global(a.table.first)[row + 1] - at;
    std::int32_t const now = block.global(a.step)[row];
    head const h{row, tokens_at, at, slots, now};
    std::int32_t const there = block.global(a.table.whole)[row];
    if (there >= 0) return add_to_whole(block, a, h, there);
    auto const slot_of = block.global(a.table.slot_of);
    auto const used = block.global(a.table.used);
    auto const thread = static_cast<std::int32_t>(block.thread());
    list_reader<B> const list(block, a.lists, block.y(), block.x());
    auto const listed = static_cast<std::int32_t>(list.count());
    std::int32_t const count = listed < slots ? listed : slots;
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
        if (slot >= 0) used[slot] = now;
      }
      std::int32_t all = 0;
      std::int32_t const nth = absent + block.exclusive_sum(s.radix.scan, i < count && slot < 0 ? 1 : 0, all);
      if (i < count && slot < 0) slot_of[tokens_at + token] = -2 - nth;
      absent += all;
      block.sync();
    }
    if (absent > 0) replace_oldest(block, s, a, h, list, count, absent);
    if (listed > slots) {  // plan() refuses it: what has no slot is read where another row lies
      block.sync();
      for (std::int32_t i = slots + thread; i < listed; i += B::threads) {
        auto const token = static_cast<std::int32_t>(list.token(i));
        std::int32_t const mine = slot_of[tokens_at + token];
        if (mine < 0) slot_of[tokens_at + token] = at;
      }
      if (thread == 0) block.global(a.overflow).atomic_add(0, 1);
    }
    if (thread != 0) return;
    block.global(a.missed)[row] = absent;
    block.global(a.step)[row] = now + 1;
  }

 private:
  /// Of a head with a slot for each token: the tokens from `there` on get the slots of their numbers.
  template <class B>
  KVPOLICY_KERNEL static void add_to_whole(B& block, arguments const& a, head const& h, std::int32_t there) {
    auto const slot_of = block.global(a.table.slot_of);
    auto const token_of = block.global(a.table.token_of);
    auto const missing = block.global(a.missing);
    auto const thread = static_cast<std::int32_t>(block.thread());
    auto const tokens = static_cast<std::int32_t>(a.lists.tokens.of(block, block.y()));
    block.sync();  // every thread has read what thread 0 writes
    for (std::int32_t t = there + thread; t < tokens; t += B::threads) {
      missing[h.at + t - there] = h.at + t;
      token_of[h.at + t] = t;
      slot_of[h.tokens_at + t] = h.at + t;
    }
    if (thread != 0) return;
    block.global(a.missed)[h.row] = tokens > there ? tokens - there : 0;
    if (tokens > there) block.global(a.table.whole)[h.row] = tokens;
  }

  /// Of the list's first `count` tokens, the `absent` ones without a slot, which have numbers, get the slots that were not
  /// listed for longest; lower slots first among equals.
  template <class B>
  KVPOLICY_KERNEL static void replace_oldest(B& block, shared<B>& s, arguments const& a, head const& h,
                                             list_reader<B> const& list, std::int32_t count, std::int32_t absent) {
    auto const slot_of = block.global(a.table.slot_of);
    auto const token_of = block.global(a.table.token_of);
    auto const used = block.global(a.table.used);
    auto const victims = block.global(a.victims);
    auto const missing = block.global(a.missing);
    auto const thread = static_cast<std::int32_t>(block.thread());
    auto const age = [&](std::int32_t slot) {
      std::int32_t const last = used[h.at + slot];
      return static_cast<std::uint32_t>(h.now - last);
    };
    radix_threshold const threshold = select_threshold(block, s.radix, absent, [&](auto visit) {
      for (std::int32_t slot = thread; slot < h.slots; slot += B::threads) visit(age(slot), 1);
    });
    keep_in_order(
        block, s.radix, h.slots, threshold,
        [&](std::int32_t slot) {
          return ordered_item{slot, false, true, age(slot)};
        },
        [&](std::int32_t slot, std::int32_t nth) {
          victims[h.at + nth] = h.at + slot;
          std::int32_t const old = token_of[h.at + slot];
          if (old >= 0) slot_of[h.tokens_at + old] = -1;
        });
    for (std::int32_t i = thread; i < count; i += B::threads) {
      auto const token = static_cast<std::int32_t>(list.token(i));
      std::int32_t const before = slot_of[h.tokens_at + token];
      if (before >= -1) continue;
      std::int32_t const nth = -2 - before;
      std::int32_t const slot = victims[h.at + nth];
      token_of[slot] = token;
      slot_of[h.tokens_at + token] = slot;
      used[slot] = h.now;
      missing[h.at + nth] = slot;
    }
  }
};

/// Copies the missing rows, 16 bytes a thread; the slots' own layout is `[slots, head_dim]`.
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
    std::int32_t const at = block.global(a.table.first)[row];
    std::int32_t const parts = a.from.parts();
    row_reader<E, B> const from(block, a.from, block.z());
    auto const to = block.global(a.to);
    std::int64_t const step = static_cast<std::int64_t>(a.blocks) * B::threads;
    KVPOLICY_UNROLL_4
    for (std::int64_t i = index_in_grid(block); i < std::int64_t{missed} * parts; i += step) {
      auto const nth = static_cast<std::int32_t>(i / parts);
      auto const part = static_cast<std::int32_t>(i - std::int64_t{nth} * parts);
      std::int32_t const slot = block.global(a.missing)[at + nth];
      std::int32_t const token = block.global(a.table.token_of)[slot];
      auto const raw = from.load_raw(from.offset(block.y(), token), part);
      std::int64_t const target = std::int64_t{slot} * a.from.head_dim + part * 8;
      to.store(target, raw.word[0]);
      if constexpr (E == element_type::f32) to.store(target + 4, raw.word[1]);
    }
  }
};

}  // namespace kvpolicy::gpu::detail
