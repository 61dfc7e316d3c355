// Writes a model with random weights as GGUF, with the public API, and has the engine load it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tiny_model.hpp"

struct ggml_context;
struct ggml_tensor;
struct gguf_context;

namespace kvpolicy::llama::testing {

inline constexpr std::int64_t tiny_feed_forward = 64;

/// Near-normal numbers, the same on every machine.
class generator {
 public:
  explicit generator(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  float normal() noexcept;

 private:
  float uniform() noexcept;
  std::uint64_t state_;
};

class gguf_writer {
 public:
  gguf_writer(std::string const& architecture, std::uint64_t seed);
  ~gguf_writer();
  gguf_writer(gguf_writer const&) = delete;
  gguf_writer& operator=(gguf_writer const&) = delete;

  void number(std::string const& key, std::int64_t value);
  /// One number a layer; replaces a `number` of the same key.
  void numbers(std::string const& key, std::span<std::uint32_t const> values);
  void real(std::string const& key, float value);

  /// `[copies, rows, columns]`, ne[0] = columns; outputs have `deviation` for unit inputs.
  void matrix(std::string const& name, std::int64_t columns, std::int64_t rows, float deviation, std::int64_t copies = 1);
  void vector(std::string const& name, std::int64_t columns, float mean, float deviation);
  /// `[rows, columns]`; draws no random number.
  void constant(std::string const& name, std::int64_t columns, float value = 1, std::int64_t rows = 1);

  model_owner load(bool header_only = false, std::int32_t gpu_layers = 0);

 private:
  float* add(std::string const& name, std::int64_t columns, std::int64_t rows, std::int64_t copies);

  std::string architecture_;
  generator random_;
  gguf_context* gguf_;
  ggml_context* tensors_;
};

struct attention_parts {
  float projection = 1.4f;  ///< the deviation of queries and keys, before their norms
  float norm = 0;           ///< the gain of the norms of queries and keys; 0 for none
};

std::int64_t width_of(tiny_shape const& shape);
/// "blk.3."
std::string block_of(std::int64_t layer);

void write_sizes(gguf_writer& out, tiny_shape const& shape);
/// The token embedding, whose elements have that deviation, and the norm before the output.
void write_ends(gguf_writer& out, tiny_shape const& shape, float deviation);
void write_attention(gguf_writer& out, std::string const& block, tiny_shape const& shape, attention_parts const& parts = {});
void write_feed_forward(gguf_writer& out, std::string const& block, std::int64_t width);
void write_layers(gguf_writer& out, tiny_shape const& shape);
/// As gemma's: with norms after attention and after the feed-forward part too.
void write_gemma_layers(gguf_writer& out, tiny_shape const& shape, attention_parts const& parts = {});

void silence_engine();

}  // namespace kvpolicy::llama::testing
