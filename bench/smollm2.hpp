// Random data at the shape of SmolLM2-135M. Rings are larger than caches, so that what a turn reads comes from memory, as in
// decoding, where weights and other layers pass between two uses.
#pragma once

#include <random>
#include <vector>

#include <kvpolicy/view.hpp>

namespace kvpolicy::bench::smollm2 {

inline constexpr cache_shape shape{
    .layers = 30, .q_heads = 9, .kv_heads = 3, .head_dim = 64, .max_tokens = 8192, .type = element_type::f16};
inline constexpr std::int64_t row_bytes = shape.head_dim * size_of(shape.type);
inline constexpr std::int64_t layer_bytes = shape.kv_heads * shape.max_tokens * row_bytes;  ///< keys, or values
inline constexpr std::int64_t all_dims = shape.layers * shape.kv_heads * shape.head_dim;    ///< of a CHESS vector
inline constexpr std::int64_t ring_bytes = shape.layers * layer_bytes;                      ///< 94 MB

/// f16 elements of magnitude 1/8 to 2.
inline std::vector<std::uint16_t> random_halves(std::size_t count) {
  std::vector<std::uint16_t> halves(count);
  std::minstd_rand random{1};
  for (std::uint16_t& half : halves) half = static_cast<std::uint16_t>(((random() >> 8) & 0x8fffu) | 0x3000u);
  return halves;
}

inline std::vector<float> random_floats(std::size_t count) {
  std::vector<float> floats(count);
  std::minstd_rand random{2};
  for (float& value : floats) value = static_cast<float>(random() % 65536) / 32768.0f - 1.0f;
  return floats;
}

/// Keys and values of all layers, `[layers, tokens, heads, head_dim]` as in llama.cpp; turn t is layer t % 30.
inline strided_view<> cache() {
  static std::vector<std::uint16_t> const keys = random_halves(static_cast<std::size_t>(ring_bytes / 2));
  static std::vector<std::uint16_t> const values = keys;
  byte_strides const strides{
      .layer = layer_bytes, .head = row_bytes, .token = shape.kv_heads * row_bytes, .dim = size_of(shape.type)};
  return {.cache = shape,
          .token_count = shape.max_tokens,
          .key_base = reinterpret_cast<std::byte const*>(keys.data()),
          .value_base = reinterpret_cast<std::byte const*>(values.data()),
          .key_strides = strides,
          .value_strides = strides};
}

inline layer_id layer_of(std::size_t turn) { return {static_cast<std::int64_t>(turn) % shape.layers}; }

/// Query heads of `tokens` tokens, 512 at most, `[tokens, q_heads, head_dim]`.
inline query_window window(std::int64_t tokens) {
  static std::vector<float> const floats = random_floats(static_cast<std::size_t>(512 * shape.q_heads * shape.head_dim));
  return {.data = floats.data(),
          .tokens = tokens,
          .heads = shape.q_heads,
          .token_stride = shape.q_heads * shape.head_dim,
          .head_stride = shape.head_dim,
          .scale = .125f};
}

inline query_heads queries() { return {window(1).data, shape.q_heads, shape.head_dim, .125f}; }

/// A ring of tables `[rows, columns]` of floats; turn t takes its turn.
class ring {
 public:
  ring(std::int64_t rows, std::int64_t columns, std::int64_t bytes = ring_bytes)
      : rows_(rows),
        columns_(columns),
        tables_(static_cast<std::size_t>(bytes / (rows * columns * 4) + 1)),
        floats_(random_floats(tables_ * static_cast<std::size_t>(rows * columns))) {}

  table<float const> at(std::size_t turn) const {
    return {floats_.data() + turn % tables_ * static_cast<std::size_t>(rows_ * columns_), rows_, columns_, columns_};
  }

 private:
  std::int64_t rows_;
  std::int64_t columns_;
  std::size_t tables_;
  std::vector<float> floats_;
};

/// A table to write to.
class output {
 public:
  output(std::int64_t rows, std::int64_t columns)
      : floats_(static_cast<std::size_t>(rows * columns)), table_{floats_.data(), rows, columns, columns} {}
  output(output const&) = delete;
  output& operator=(output const&) = delete;

  operator table<float>() const { return table_; }

 private:
  std::vector<float> floats_;
  table<float> table_;
};

}  // namespace kvpolicy::bench::smollm2
