// Rows in host memory, with the rows that steps list kept on the device: a cache larger than the device's memory.
#pragma once

#include <string>
#include <vector>

#include "kvpolicy/gpu/base/batch.hpp"
#include "kvpolicy/gpu/offload/gather.hpp"

namespace kvpolicy::gpu {

/// One layer's slots on the device, for every sequence and KV head.
/// gather() brings the rows that a step lists and that are not in a slot, and nothing else; the rows that were not listed for
/// longest make room. It enqueues on the device's stream, so a row is read only after it came, and overwritten only after it
/// was read; a graph can capture it. The source is pinned (pinned_memory) or managed memory, and must live until those launches
/// have run.
///
/// @tparam D  the device
template <owning_device D>
class resident_rows {
 public:
  /// Allocates the slots, all empty.
  /// @param shape  the shape of each sequence's cache
  /// @param sequences  slots of the batch
  /// @param slots  tokens of each head that fit: at least as many as any list names
  /// @param device  the device
  /// @throws invalid_value if `slots` is not above 0
  /// @throws device_memory_exceeded if the device has too little memory
  resident_rows(cache_shape const& shape, std::int64_t sequences, std::int32_t slots, D& device)
      : shape_(shape),
        sequences_(sequences),
        rows_(sequences * shape.kv_heads),
        slots_(slots),
        slot_of_(device.template allocate<std::int32_t>(rows_ * shape.max_tokens)),
        of_slots_(device.template allocate<std::int32_t>(5 * rows_ * slots)),
        of_rows_(device.template allocate<std::int32_t>(3 * rows_ + 1)),
        keys_(device.template allocate<pack>(divided_up(rows_ * slots * shape.head_dim * size_of(shape.type), 16))),
        values_(device.template allocate<pack>(divided_up(rows_ * slots * shape.head_dim * size_of(shape.type), 16))) {
    KVPOLICY_EXPECTS(slots >= 1, "a cache with " + std::to_string(slots) + " slots holds nothing; give at least 1");
    std::vector<std::int32_t> const none(static_cast<std::size_t>(rows_ * std::max<std::int64_t>(shape.max_tokens, slots)), -1);
    device.upload(slot_of_.get(), none.data(), rows_ * shape.max_tokens);
    device.upload(part(of_slots_.get(), 0, rows_ * slots), none.data(), rows_ * slots);
    std::vector<std::int32_t> const zeros(static_cast<std::size_t>(std::max(rows_ * slots, 3 * rows_ + 1)));
    device.upload(part(of_slots_.get(), 1, rows_ * slots), zeros.data(), rows_ * slots);
    std::vector<std::int32_t> const ones(static_cast<std::size_t>(rows_), 1);
    device.upload(of_rows_.get(), zeros.data(), 3 * rows_ + 1);
    device.upload(of_rows_.get(), ones.data(), rows_);
  }

  /// Empties a sequence's slots, because its rows are other ones from now on.
  /// @param sequence  the sequence
  /// @param device  the device
  void forget(std::int64_t sequence, D& device) {
    std::int64_t const few = shape_.kv_heads * std::max<std::int64_t>(shape_.max_tokens, slots_);
    std::vector<std::int32_t> const none(static_cast<std::size_t>(few), -1);
    std::int64_t const tokens = shape_.kv_heads * shape_.max_tokens;
    std::int64_t const slots = shape_.kv_heads * slots_;
    device.upload(buffer<std::int32_t>{slot_of_.get().data + sequence * tokens, tokens}, none.data(), tokens);
    device.upload(buffer<std::int32_t>{of_slots_.get().data + sequence * slots, slots}, none.data(), slots);
  }

  /// Enqueues copies of the listed rows from the host to the slots.
  /// @param keys,values  the layer's rows on the host, of all sequences
  /// @param lists  the step's lists
  /// @param device  the device
  /// @return the same lists by slot, for the rows of keys() and values()
  /// @throws unsupported if rows are not packed: contiguous, 16-byte aligned, a multiple of 8 channels
  token_lists gather(batch_rows const& keys, batch_rows const& values, token_lists const& lists, D& device) {
    if (!keys.packed || !values.packed) {
      throw unsupported(
          "rows that are gathered must be contiguous, 16-byte aligned and a multiple of 8 channels long; a head size of " +
          std::to_string(keys.head_dim) + " or its strides are not");
    }
    auto const heads = static_cast<std::int32_t>(shape_.kv_heads);
    buffer<std::int32_t> const all = of_slots_.get();
    std::int64_t const size = rows_ * slots_;
    detail::slot_table const table{slot_of_.get(), part(all, 0, size), part(all, 1, size), shape_.max_tokens, slots_};
    buffer<std::int32_t> const counts = part(of_rows_.get(), 1, rows_);
    buffer<std::int32_t> const missed = part(of_rows_.get(), 2, rows_);
    device.template launch<detail::resolve_slots_body>({heads, sequences_, 1}, {lists,
                                                                                heads,
                                                                                table,
                                                                                part(of_rows_.get(), 0, rows_),
                                                                                part(all, 2, size),
                                                                                part(all, 3, size),
                                                                                counts,
                                                                                part(all, 4, size),
                                                                                missed,
                                                                                {of_rows_.get().data + 3 * rows_, 1}});
    with_type(shape_.type, [&]<element_type E>() {
      using body = detail::gather_rows_body<E>;
      std::int64_t const blocks = blocks_of_row<body>(device, slots_, 1, rows_);
      auto const enqueue = [&](batch_rows const& from, buffer<pack> to) {
        device.template launch<body>({blocks, heads, sequences_},
                                     {from,
                                      table,
                                      part(all, 4, size),
                                      missed,
                                      {reinterpret_cast<stored<E>*>(to.data), size * shape_.head_dim},
                                      static_cast<std::int32_t>(blocks)});
      };
      enqueue(keys, keys_.get());
      enqueue(values, values_.get());
    });
    token_lists made{};
    made.units = part(all, 3, size);
    made.stride = slots_;
    made.named = counts;
    made.tokens = lists.tokens;
    made.lists = heads;
    return made;
  }
  /// Returns the keys in the slots.
  batch_rows keys() const noexcept { return at(keys_.get()); }
  /// Returns the values in the slots.
  batch_rows values() const noexcept { return at(values_.get()); }
  /// Returns how many rows of each sequence and head the last gather brought: `[sequences, kv_heads]`, on the device.
  buffer<std::int32_t const> missed() const noexcept { return part(of_rows_.get(), 2, rows_); }
  /// Returns how many lists did not fit so far: `[1]`, on the device. Check it now and then.
  /// If it is not 0, steps read lists in part.
  buffer<std::int32_t const> overflow() const noexcept { return {of_rows_.get().data + 3 * rows_, 1}; }

 private:
  static buffer<std::int32_t> part(buffer<std::int32_t> all, std::int64_t nth, std::int64_t size) noexcept {
    return {all.data + nth * size, size};
  }
  batch_rows at(buffer<pack> rows) const noexcept {
    batch_rows made{};
    made.base = rows.data;
    made.elements = rows_ * slots_ * shape_.head_dim;
    made.type = shape_.type;
    made.heads = static_cast<std::int32_t>(shape_.kv_heads);
    made.head_dim = static_cast<std::int32_t>(shape_.head_dim);
    made.sequence_stride = shape_.kv_heads * slots_ * shape_.head_dim;
    made.head_stride = slots_ * shape_.head_dim;
    made.token_stride = shape_.head_dim;
    return finished(made);
  }

  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t rows_;  ///< sequences x KV heads
  std::int32_t slots_;
  array_of<D, std::int32_t> slot_of_;   ///< `[rows, max_tokens]`
  array_of<D, std::int32_t> of_slots_;  ///< `[5, rows, slots]`: token, last use, victims, the list's slots, missing slots
  array_of<D, std::int32_t> of_rows_;   ///< `[3, rows]` and one: step, listed, missed; overflow
  array_of<D, pack> keys_;              ///< `[rows, slots, head_dim]`
  array_of<D, pack> values_;
};

}  // namespace kvpolicy::gpu
