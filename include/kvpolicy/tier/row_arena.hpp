// Fast memory for some rows of every KV head: which token is in which slot, and the rows as a view has them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kvpolicy/tier/head_slots.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::tier {

/// `[layers, kv_heads, slots, 2, head_dim]`: a slot holds one token's key and value. A head's slots are taken from its first
/// on, and what was never taken was never touched: where memory is given out by pages, a head has as many as it uses.
class row_arena {
 public:
  static constexpr std::int32_t nowhere = head_slots::nowhere;

  row_arena(cache_shape const& shape, std::int64_t slots)
      : shape_(shape),
        count_(slots),
        slots_(static_cast<std::size_t>(shape.layers * shape.kv_heads), head_slots(slots)),
        bytes_(
            std::make_unique_for_overwrite<std::byte[]>(slots_.size() * static_cast<std::size_t>(slots * block_bytes(shape)))),
        slot_of_(slots_.size() * static_cast<std::size_t>(shape.max_tokens), nowhere) {}

  static constexpr std::int64_t block_bytes(cache_shape const& shape) noexcept {
    return 2 * bytes_of(shape.type, shape.head_dim);
  }

  /// No token has a slot.
  void clear() noexcept {
    std::ranges::fill(slot_of_, nowhere);
    for (head_slots& slots : slots_) slots.clear();
  }
  /// Never frees the memory: somebody may still write to it.
  void abandon() noexcept {
    lost* const made = spare_.release();
    *made = {std::move(bytes_), lost_.load()};
    while (!lost_.compare_exchange_weak(made->next, made)) {
    }
  }

  head_slots& slots(layer_id layer, std::int64_t head) noexcept {
    return slots_[static_cast<std::size_t>(list_of(layer, head))];
  }
  std::int32_t& slot_of(layer_id layer, std::int64_t head, std::int32_t token) noexcept {
    return slot_of_[static_cast<std::size_t>(list_of(layer, head) * shape_.max_tokens + token)];
  }
  /// A slot for a token; what was there is resident no more.
  std::int32_t take(layer_id layer, std::int64_t head, std::int32_t token, std::int64_t now) {
    head_slots::taken const taken = slots(layer, head).take(token, now);
    if (taken.evicted != nowhere) slot_of(layer, head, taken.evicted) = nowhere;
    return taken.slot;
  }

  std::byte* address(layer_id layer, std::int64_t head, std::int32_t slot) noexcept {
    return bytes_.get() + (list_of(layer, head) * count_ + slot) * block_bytes(shape_);
  }
  std::int32_t slot_at(layer_id layer, std::int64_t head, std::byte const* address_of_slot) noexcept {
    return static_cast<std::int32_t>((address_of_slot - address(layer, head, 0)) / block_bytes(shape_));
  }
  void write(layer_id layer, std::int64_t head, std::int32_t slot, std::byte const* key, std::byte const* value) noexcept {
    auto const row = static_cast<std::size_t>(bytes_of(shape_.type, shape_.head_dim));
    std::byte* const to = address(layer, head, slot);
    std::memcpy(to, key, row);
    std::memcpy(to + row, value, row);
  }

  basic_rows<host_memory> keys(layer_id layer) const noexcept { return rows_at(layer, 0); }
  basic_rows<host_memory> values(layer_id layer) const noexcept {
    return rows_at(layer, bytes_of(shape_.type, shape_.head_dim));
  }

 private:
  struct lost {
    std::unique_ptr<std::byte[]> bytes{};
    lost* next = nullptr;
  };
  inline static std::atomic<lost*> lost_{nullptr};

  std::int64_t list_of(layer_id layer, std::int64_t head) const noexcept { return layer.value * shape_.kv_heads + head; }

  rows rows_at(layer_id layer, std::int64_t offset) const noexcept {
    std::int64_t const block = block_bytes(shape_);
    return {.base = bytes_.get() + list_of(layer, 0) * count_ * block + offset,
            .type = shape_.type,
            .heads = shape_.kv_heads,
            .tokens = shape_.max_tokens,
            .head_dim = shape_.head_dim,
            .head_stride = count_ * block,
            .token_stride = block,
            .dim_stride = size_of(shape_.type),
            .indices = slot_of_.data() + list_of(layer, 0) * shape_.max_tokens,
            .index_stride = shape_.max_tokens};
  }

  cache_shape shape_;
  std::int64_t count_;  ///< slots of a head
  std::vector<head_slots> slots_;
  std::unique_ptr<lost> spare_ = std::make_unique<lost>();  ///< where abandon() leaves the memory
  std::unique_ptr<std::byte[]> bytes_;
  std::vector<std::int32_t> slot_of_;  ///< `[layers, kv_heads, max_tokens]`
};

}  // namespace kvpolicy::tier
