// Rows in host memory, with the rows that steps list kept on the device: a cache larger than the device's memory.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/gpu/base/batch.hpp"
#include "kvpolicy/gpu/offload/gather.hpp"

namespace kvpolicy::gpu {

/// Rows of all layers by token, as far as they are in slots. Models batch_view: a decoder attends over them, and looks at them.
/// Valid while its resident_rows is.
struct slots_view {
  static constexpr bool by_sequence = true;
  batch_rows const* rows = nullptr;  ///< `[layers, 2]` keys and values

  batch_rows keys(layer_id layer) const { return rows[2 * layer.value]; }
  batch_rows values(layer_id layer) const { return rows[2 * layer.value + 1]; }
};
static_assert(batch_view<slots_view>);

/// Slots on the device for rows in host memory, for every sequence, layer and KV head.
/// gather() brings the rows that lists name and that are not in a slot, and nothing else; the rows that were not listed for
/// longest make room. A head with a slot for each token keeps all of its rows on the device. gather() enqueues on the device's
/// stream, and uses none of its scratch; a graph can capture it. The source is pinned (pinned_memory), managed or device
/// memory, and must live until those launches have run.
/// @tparam D  the device
template <owning_device D>
class resident_rows {
 public:
  /// Allocates the slots, all empty.
  /// @param shape  the shape of each sequence's cache
  /// @param sequences  slots of the batch
  /// @param slots  `[layers, kv_heads]` tokens of a head that fit; or one number for all heads. max_tokens: the head is whole
  /// @param device  the device
  /// @throws invalid_value if there is another number of heads, or a head has no slot, or more than max_tokens
  /// @throws unsupported if rows of that shape are not packed: a multiple of 8 channels of f16, bf16 or f32; or values are not
  /// as wide as keys
  /// @throws device_memory_exceeded if the device has too little memory
  resident_rows(cache_shape const& shape, std::int64_t sequences, std::span<std::int32_t const> slots, D& device)
      : shape_(shape), sequences_(sequences), heads_(sequences * shape.kv_heads), slots_(of_each(shape, slots)) {
    if (shape.values_dim() != shape.head_dim)
      throw unsupported("rows in slots have values as wide as keys; the cache is of " + text_of(shape));
    layers_.reserve(static_cast<std::size_t>(shape.layers));
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      std::vector<std::int32_t> first(1);
      std::vector<std::int32_t> whole;
      std::int32_t most = 0;
      for (std::int64_t row = 0; row < heads_; ++row) {
        std::int32_t const mine = slots_of({l}, {row % shape.kv_heads});
        first.push_back(first.back() + mine);
        whole.push_back(mine == shape.max_tokens ? 0 : -1);
        most = std::max(most, mine);
      }
      std::int64_t const count = first.back();
      std::int64_t const packs = divided_up(count * shape.head_dim * size_of(shape.type), 16);
      layer_slots const& mine =
          layers_.emplace_back(layer_slots{count, most, device.template allocate<std::int32_t>(heads_ * shape.max_tokens),
                                           device.template allocate<std::int32_t>(slot_rows * count),
                                           device.template allocate<std::int32_t>(head_rows * heads_ + 2),
                                           device.template allocate<pack>(packs), device.template allocate<pack>(packs)});
      fill(mine.slot_of.get(), -1, device);
      fill(of_slots(mine, tokens), -1, device);
      fill(of_slots(mine, used), 0, device);
      fill(mine.of_heads.get(), 0, device);
      fill(of_heads(mine, step), 1, device);
      device.upload(of_heads(mine, known), whole.data(), heads_);
      device.upload(firsts(mine), first.data(), heads_ + 1);
      view_.push_back(at(mine, mine.keys.get()));
      view_.push_back(at(mine, mine.values.get()));
      if (!view_.back().packed)
        throw unsupported("rows in slots are contiguous and 16-byte aligned, and a head size of " +
                          std::to_string(shape.head_dim) + " is no multiple of 8 channels");
    }
  }
  resident_rows(resident_rows const&) = delete;
  resident_rows& operator=(resident_rows const&) = delete;

  /// Returns how many tokens of a head fit.
  std::int32_t slots_of(layer_id layer, head_id head) const noexcept {
    return slots_[static_cast<std::size_t>(layer.value * shape_.kv_heads + head.value)];
  }

  /// Empties a sequence's slots, because its rows are other ones from now on: after a cut, or for a new sequence.
  /// @param sequence  the sequence
  /// @param device  the device
  void forget(std::int64_t sequence, D& device) {
    std::int64_t const first = sequence * shape_.kv_heads;
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      layer_slots const& mine = layers_[static_cast<std::size_t>(l)];
      fill(part_of(mine.slot_of.get(), first * shape_.max_tokens, shape_.kv_heads * shape_.max_tokens), -1, device);
      std::int32_t before = 0;
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) before += slots_of({l}, {h});
      fill(part_of(of_slots(mine, tokens), sequence * before, before), -1, device);
      std::vector<std::int32_t> whole;
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) whole.push_back(slots_of({l}, {h}) == shape_.max_tokens ? 0 : -1);
      device.upload(part_of(of_heads(mine, known), first, shape_.kv_heads), whole.data(), shape_.kv_heads);
    }
  }

  /// Checks that the lists of a planned step fit. Call it after decoder::plan(), before each step.
  /// @param decoder  the decoder
  /// @throws invalid_value if a list may name more tokens than its head has slots
  template <class Decoder>
  void plan(Decoder const& decoder) {
    check("read", [&](auto... head) { return decoder.most_listed(head...); });
  }
  /// The same for an engine that gathers what the policy retains (decoder::retained()), and so needs no other row any more.
  /// @param decoder  the decoder
  /// @throws invalid_value if a head retains more tokens than it has slots
  template <class Decoder>
  void plan_retained(Decoder const& decoder) {
    check("retain", [&](auto... head) { return decoder.retained_count(head...); });
  }

  /// Enqueues copies of the listed rows from the host to the slots.
  /// @param host  the rows on the host, or on the device, of all sequences
  /// @param layer  the layer
  /// @param lists  which rows are wanted: a step's lists, those of the next one, or what the policy retains
  /// @param device  the device
  /// @throws invalid_value if plan() was never called
  /// @throws unsupported if the host's rows are not packed: contiguous, 16-byte aligned, a multiple of 8 channels
  template <batch_view V>
  void gather(V const& host, layer_id layer, token_lists const& lists, D& device) {
    KVPOLICY_EXPECTS(planned_, "slots were never planned for; call plan() after the decoder's, so that no list is too long");
    batch_rows const keys = host.keys(layer);
    batch_rows const values = host.values(layer);
    if (!keys.packed || !values.packed) {
      throw unsupported(
          "rows that are gathered must be contiguous, 16-byte aligned and a multiple of 8 channels long; a head size of " +
          std::to_string(keys.head_dim) + " or its strides are not");
    }
    auto& mine = layers_[static_cast<std::size_t>(layer.value)];
    auto const heads = static_cast<std::int32_t>(shape_.kv_heads);
    detail::slot_table const table{mine.slot_of.get(),   firsts(mine),          of_slots(mine, tokens),
                                   of_slots(mine, used), of_heads(mine, known), shape_.max_tokens};
    device.template launch<detail::resolve_slots_body>(
        {heads, sequences_, 1}, {lists, heads, table, of_heads(mine, step), of_slots(mine, victims), of_slots(mine, missing),
                                 of_heads(mine, misses), overflow_of(mine)});
    with_type(shape_.type, [&]<element_type E>() {
      using body = detail::gather_rows_body<E>;
      std::int64_t const blocks = blocks_of_row<body>(device, mine.most, 1, heads_);
      auto const enqueue = [&](batch_rows const& from, buffer<pack> to) {
        device.template launch<body>({blocks, heads, sequences_},
                                     {from,
                                      table,
                                      of_slots(mine, missing),
                                      of_heads(mine, misses),
                                      {reinterpret_cast<stored<E>*>(to.data), mine.slots * shape_.head_dim},
                                      static_cast<std::int32_t>(blocks)});
      };
      enqueue(keys, mine.keys.get());
      enqueue(values, mine.values.get());
    });
  }
  /// Returns the rows in the slots, by token: what decoder::attend() reads after gather().
  slots_view view() const noexcept { return {view_.data()}; }
  /// Returns how many rows of each sequence and head a layer's last gather brought: `[sequences, kv_heads]`, on the device.
  buffer<std::int32_t const> missed(layer_id layer) const noexcept {
    return of_heads(layers_[static_cast<std::size_t>(layer.value)], misses);
  }
  /// Returns how many lists of a layer did not fit so far: `[1]`, on the device. plan() keeps it at 0.
  buffer<std::int32_t const> overflow(layer_id layer) const noexcept {
    return overflow_of(layers_[static_cast<std::size_t>(layer.value)]);
  }

 private:
  enum slot_row { tokens, used, victims, missing, slot_rows };   ///< of a slot: its token, its last use, and scratch
  enum head_row { step, known, misses, first_slot, head_rows };  ///< first_slot last: it has one entry more
  struct layer_slots {
    std::int64_t slots = 0;
    std::int64_t most = 0;               ///< slots of a head
    array_of<D, std::int32_t> slot_of;   ///< `[sequences, kv_heads, max_tokens]`
    array_of<D, std::int32_t> of_slots;  ///< `[slot_rows, slots]`
    array_of<D, std::int32_t> of_heads;  ///< `[head_rows, sequences, kv_heads]`, the end of the last head's slots, overflow
    array_of<D, pack> keys;              ///< `[slots, head_dim]`
    array_of<D, pack> values;
  };

  template <class Count>
  void check(char const* what, Count count) {
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      for (std::int64_t row = 0; row < heads_; ++row) {
        std::int64_t const sequence = row / shape_.kv_heads;
        head_id const head{row % shape_.kv_heads};
        std::int64_t const most = count(layer_id{l}, sequence, head);
        KVPOLICY_EXPECTS(most <= slots_of({l}, head), "KV head " + std::to_string(head.value) + " of layer " +
                                                          std::to_string(l) + " may " + what + " " + std::to_string(most) +
                                                          " tokens of sequence " + std::to_string(sequence) + ", and has " +
                                                          std::to_string(slots_of({l}, head)) + " slots; give it as many");
      }
    }
    planned_ = true;
  }
  static std::vector<std::int32_t> of_each(cache_shape const& shape, std::span<std::int32_t const> slots) {
    auto const heads = static_cast<std::size_t>(shape.layers * shape.kv_heads);
    KVPOLICY_EXPECTS(slots.size() == 1 || slots.size() == heads,
                     "slots of " + std::to_string(slots.size()) + " heads; give a number for each of " +
                         std::to_string(shape.layers) + " layers' " + std::to_string(shape.kv_heads) +
                         " KV heads, or one for all");
    for (std::int32_t const mine : slots)
      KVPOLICY_EXPECTS(mine >= 1 && mine <= shape.max_tokens, "a head with " + std::to_string(mine) +
                                                                  " slots; it has 1 to max_tokens, which is " +
                                                                  std::to_string(shape.max_tokens));
    return slots.size() == heads ? std::vector(slots.begin(), slots.end()) : std::vector(heads, slots[0]);
  }
  static buffer<std::int32_t> of_slots(layer_slots const& mine, int row) noexcept {
    return part_of(mine.of_slots.get(), row * mine.slots, mine.slots);
  }
  buffer<std::int32_t> of_heads(layer_slots const& mine, int row) const noexcept {
    return part_of(mine.of_heads.get(), row * heads_, heads_);
  }
  buffer<std::int32_t> firsts(layer_slots const& mine) const noexcept {
    return part_of(mine.of_heads.get(), first_slot * heads_, heads_ + 1);
  }
  buffer<std::int32_t> overflow_of(layer_slots const& mine) const noexcept {
    return part_of(mine.of_heads.get(), head_rows * heads_ + 1, 1);
  }
  static void fill(buffer<std::int32_t> to, std::int32_t value, D& device) {
    std::vector<std::int32_t> const all(static_cast<std::size_t>(to.size), value);
    device.upload(to, all.data(), to.size);
  }
  /// A layer's rows: token t of a head is the row of its slot.
  batch_rows at(layer_slots const& mine, buffer<pack> rows) const noexcept {
    batch_rows made{};
    made.base = rows.data;
    made.elements = mine.slots * shape_.head_dim;
    made.type = shape_.type;
    made.heads = static_cast<std::int32_t>(shape_.kv_heads);
    made.head_dim = static_cast<std::int32_t>(shape_.head_dim);
    made.token_stride = shape_.head_dim;
    made.indices = mine.slot_of.get();
    made.index_sequence_stride = shape_.kv_heads * shape_.max_tokens;
    made.index_stride = shape_.max_tokens;
    return finished(made);
  }

  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t heads_;               ///< sequences x KV heads
  std::vector<std::int32_t> slots_;  ///< `[layers, kv_heads]`
  std::vector<layer_slots> layers_;
  std::vector<batch_rows> view_;  ///< `[layers, 2]`
  bool planned_ = false;
};

}  // namespace kvpolicy::gpu
