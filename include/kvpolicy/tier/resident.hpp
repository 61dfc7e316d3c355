// The rows that are in fast memory, of a cache whose rows live in a tier: fetched as they are chosen, least recently read out.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/selection.hpp"
#include "kvpolicy/tier/resident_options.hpp"
#include "kvpolicy/tier/row_arena.hpp"
#include "kvpolicy/tier/tier.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::tier {

/// Slots of one arena for the keys and values of one request, `[layers, kv_heads, slots, 2, head_dim]`. A block of the tier is
/// one token's key and value of one head. Tokens that come after store() are written here as they come.
/// Not thread-safe; the tier must outlive it and belongs to it while a get is pending.
template <tier_like Tier>
class resident_rows {
 public:
  /// Throws invalid_value where the tier's blocks are of another size.
  resident_rows(Tier& tier, cache_shape const& shape, resident_options options)
      : tier_(&tier),
        shape_(shape),
        options_(options),
        arena_(shape, checked(options.slots == 0 ? shape.max_tokens : options.slots)) {
    KVPOLICY_EXPECTS(tier.block_bytes() == block_bytes(shape), "the tier's blocks have " + std::to_string(tier.block_bytes()) +
                                                                   " bytes; a key and a value of this cache have " +
                                                                   std::to_string(block_bytes(shape)));
    heads_.resize(static_cast<std::size_t>(shape.layers * shape.kv_heads));
    readable_.resize(static_cast<std::size_t>(shape.kv_heads));
  }
  resident_rows(resident_rows const&) = delete;
  resident_rows& operator=(resident_rows const&) = delete;
  /// Waits for pending gets as long as the deadline; where one has not ended by then, its memory is never given back.
  ~resident_rows() {
    try {
      settle();
    } catch (std::exception const&) {
      arena_.abandon();
    }
    for (std::int64_t l = 0; l < shape_.layers; ++l) forget({l});
  }

  static constexpr std::int64_t block_bytes(cache_shape const& shape) noexcept { return row_arena::block_bytes(shape); }
  resident_statistics const& statistics() const noexcept { return statistics_; }

  /// A layer's prompt, the view's tokens: those that are retained go to the tier, in place of what was there of this layer;
  /// nothing of them is resident yet. Throws error where the tier has no room, or a former get does not end.
  template <kv_cache_view View>
  void store(View const& view, layer_id layer, selection const& retained) {
    if (layer.value == 0) {
      settle();
      for (std::int64_t l = 0; l < shape_.layers; ++l) forget({l});
      ++generation_;
      stored_ = view.tokens();
      arena_.clear();
      for (head_state& head : heads_) {
        head.committed.clear();
        head.appended = stored_;
      }
    }
    auto const keys = view.keys(layer);
    auto const values = view.values(layer);
    std::int64_t const row = bytes_of(shape_.type, shape_.head_dim);
    KVPOLICY_EXPECTS(keys.contiguous() && values.contiguous(),
                     "a tier takes rows whose elements are contiguous; these are not");
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      range_list& list = at(layer, h).stored;
      list = retained.of({h});
      truncate(list, view.tokens());
      staging_.resize(static_cast<std::size_t>(token_count(list) * 2 * row));
      writes_.clear();
      each_token(list, [&](std::int32_t t) {
        std::byte* const to = staging_.data() + std::ssize(writes_) * 2 * row;
        std::memcpy(to, keys.address({h}, {t}), static_cast<std::size_t>(row));
        std::memcpy(to + row, values.address({h}, {t}), static_cast<std::size_t>(row));
        writes_.push_back({key_of(layer, h, t), to});
      });
      if (!tier_->put(writes_)) {
        list.clear();
        throw error(describe(*tier_) + " has no room for the " + std::to_string(writes_.size()) + " rows that layer " +
                    std::to_string(layer.value) + ", head " + std::to_string(h) + " retains; its capacity is " +
                    std::to_string(tier_->capacity()) + " blocks");
      }
      statistics_.bytes_stored += std::ssize(staging_);
    }
  }

  /// Makes a selection readable: fetches what is missing, waits if that was asked for, and returns what this step reads, which
  /// is all of it then. The rows to read it from are keys(layer) and values(layer). The view's last token is the current one.
  template <kv_cache_view View>
  selection ready(View const& view, layer_id layer, selection const& kept) {
    ++now_;
    if (view.tokens() - 1 < stored_) cut(view.tokens() - 1);
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      truncate(at(layer, h).committed, view.tokens());
      append_new(view, layer, h);
      fetch(layer, h, kept.of({h}));
      range_list& list = readable_[static_cast<std::size_t>(h)];
      head_state& head = at(layer, h);
      if (head.pending == 0) {
        list = kept.of({h});
        head.committed = list;
      } else {  // what the head last had whole, and the tokens since
        list = head.committed;
        append(list, std::max<std::int64_t>(list.empty() ? stored_ : list.back().end, stored_), view.tokens(), reason::open);
      }
      touch(layer, h, list, now_);
    }
    return {scope::head, readable_, shape_.kv_heads};
  }

  basic_rows<host_memory> keys(layer_id layer) const noexcept { return arena_.keys(layer); }
  basic_rows<host_memory> values(layer_id layer) const noexcept { return arena_.values(layer); }

 private:
  static constexpr std::int32_t nowhere = row_arena::nowhere;

  struct head_state {
    range_list stored;          ///< tokens of the prompt that the tier has
    range_list committed;       ///< what was last readable whole
    std::int64_t appended = 0;  ///< tokens of the sequence that were written here
    ticket pending = 0;
    std::vector<block_read> reads;  ///< of the pending get
  };

  static std::int64_t checked(std::int64_t slots) {
    KVPOLICY_EXPECTS(slots > 0, "a head with " + std::to_string(slots) + " rows of fast memory reads nothing; give at least 1");
    return slots;
  }

  template <class Visit>
  static void each_token(range_list const& list, Visit visit) {
    for (token_range const& range : list) {
      for (std::int32_t t = range.begin; t < range.end; ++t) visit(t);
    }
  }

  block_key key_of(layer_id layer, std::int64_t head, std::int32_t token) const noexcept {
    return {options_.request, static_cast<std::int32_t>(layer.value), static_cast<std::int32_t>(head), token, generation_};
  }
  head_state& at(layer_id layer, std::int64_t head) noexcept {
    return heads_[static_cast<std::size_t>(layer.value * shape_.kv_heads + head)];
  }

  /// Tokens behind the prompt have no block in the tier: they stay where they are written.
  template <class View>
  void append_new(View const& view, layer_id layer, std::int64_t h) {
    head_state& head = at(layer, h);
    head_slots& slots = arena_.slots(layer, h);
    if (!options_.wait) touch(layer, h, head.committed, now_);
    head.appended = std::clamp(head.appended, stored_, view.tokens() - 1);
    for (; head.appended < view.tokens(); ++head.appended) {
      auto const token = static_cast<std::int32_t>(head.appended);
      std::int32_t slot = arena_.slot_of(layer, h, token);
      if (slot == nowhere) slot = arena_.take(layer, h, token, now_);
      slots.hold(slot);
      arena_.write(layer, h, slot, view.keys(layer).address({h}, {token}), view.values(layer).address({h}, {token}));
      arena_.slot_of(layer, h, token) = slot;
    }
  }

  void fetch(layer_id layer, std::int64_t h, range_list const& list) {
    head_state& head = at(layer, h);
    head_slots& slots = arena_.slots(layer, h);
    if (head.pending != 0) end(layer, h, options_.wait ? wait_for(head.pending) : tier_->poll(head.pending));
    std::int64_t const now = now_;
    missing_.clear();
    each_token(list, [&](std::int32_t t) {
      if (t >= stored_) return;
      ++statistics_.wanted;
      std::int32_t const slot = arena_.slot_of(layer, h, t);
      if (slot == nowhere) {
        missing_.push_back(t);
      } else {
        ++statistics_.hits;
        slots.touch(slot, now);
      }
    });
    if (missing_.empty() || head.pending != 0) return;
    // While the old rows are still read, theirs are not the slots to take.
    if (!options_.wait) touch(layer, h, head.committed, now);
    head.reads.clear();
    try {
      head.reads.reserve(missing_.size());
      for (std::int32_t const t : missing_)
        head.reads.push_back({key_of(layer, h, t), arena_.address(layer, h, arena_.take(layer, h, t, now))});
      for (block_read const& read : head.reads) slots.hold(arena_.slot_at(layer, h, read.to));
      head.pending = tier_->get(head.reads);
    } catch (...) {
      for (block_read const& read : head.reads) slots.empty(arena_.slot_at(layer, h, read.to));
      throw;
    }
    end(layer, h, options_.wait ? wait_for(head.pending) : tier_->poll(head.pending));
  }

  status wait_for(ticket id) {
    auto const start = clock::now();
    status const result =
        tier_->wait(id, start + std::min<std::chrono::milliseconds>(options_.deadline, std::chrono::hours(24)));
    statistics_.stall_seconds += std::chrono::duration<double>(clock::now() - start).count();
    if (result == status::pending) {
      throw error(describe(*tier_) + " did not deliver within " + std::to_string(options_.deadline.count()) + " ms");
    }
    return result;
  }

  /// A get ended: its rows are readable, or their slots are empty again.
  void end(layer_id layer, std::int64_t h, status result) {
    if (result == status::pending) return;
    head_state& head = at(layer, h);
    head_slots& slots = arena_.slots(layer, h);
    head.pending = 0;
    for (block_read const& read : head.reads) {
      std::int32_t const slot = arena_.slot_at(layer, h, read.to);
      slots.touch(slot, now_);
      if (result == status::done) arena_.slot_of(layer, h, read.key.position) = slot;
      else slots.empty(slot);
    }
    if (result == status::done) {
      statistics_.bytes_fetched += std::ssize(head.reads) * block_bytes(shape_);
    } else {
      throw error(describe(*tier_) + " lost rows of layer " + std::to_string(layer.value) + ", head " + std::to_string(h) +
                  ": a block that it acknowledged is missing or damaged");
    }
  }

  void touch(layer_id layer, std::int64_t h, range_list const& list, std::int64_t now) {
    head_slots& slots = arena_.slots(layer, h);
    each_token(list, [&](std::int32_t t) {
      std::int32_t const slot = arena_.slot_of(layer, h, t);
      if (slot != nowhere && t < stored_) slots.touch(slot, now);
    });
  }

  /// Drops a head's blocks of the prompt from `token` on. A tier that can't drop keeps them: they are never read again.
  void drop_from(layer_id layer, std::int64_t h, std::int64_t token) noexcept {
    range_list& list = at(layer, h).stored;
    try {
      dropped_.clear();
      each_token(list, [&](std::int32_t t) {
        if (t >= token) dropped_.push_back(key_of(layer, h, t));
      });
      if (!dropped_.empty()) tier_->drop(dropped_);
    } catch (std::exception const&) {
    }
    truncate(list, token);
  }

  /// Drops a layer's blocks of the current prompt.
  void forget(layer_id layer) noexcept {
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      drop_from(layer, h, 0);
    }
  }

  /// The sequence was cut back into the prompt, to so many tokens: those behind are gone, and others will have their places.
  void cut(std::int64_t tokens) {
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        head_state& head = at(layer, h);
        if (head.pending != 0) end(layer, h, wait_for(head.pending));
        drop_from(layer, h, tokens);
        truncate(head.committed, tokens);
        head.appended = tokens;
        for (std::int64_t t = tokens; t < shape_.max_tokens; ++t) {
          std::int32_t& slot = arena_.slot_of(layer, h, static_cast<std::int32_t>(t));
          if (slot != nowhere) arena_.slots(layer, h).empty(slot);
          slot = nowhere;
        }
      }
    }
    stored_ = tokens;
  }

  /// Waits until no get is pending any more: their destinations are ours again.
  void settle() {
    for (head_state& head : heads_) {
      if (head.pending == 0) continue;
      wait_for(head.pending);
      head.pending = 0;
    }
  }

  Tier* tier_;
  cache_shape shape_;
  resident_options options_;
  std::int64_t now_ = 0;
  std::uint32_t generation_ = 0;
  std::int64_t stored_ = 0;  ///< tokens of the prompt that is in the tier
  row_arena arena_;
  std::vector<head_state> heads_;
  std::vector<range_list> readable_;
  std::vector<std::int32_t> missing_;
  std::vector<std::byte> staging_;
  std::vector<block_write> writes_;
  std::vector<block_key> dropped_;
  resident_statistics statistics_;
};

}  // namespace kvpolicy::tier
