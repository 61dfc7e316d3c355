#include "gguf_writer.hpp"

#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <stdexcept>

namespace kvpolicy::llama::testing {

float generator::normal() noexcept {
  float sum = 0;
  for (int i = 0; i < 12; ++i) sum += uniform();
  return sum - 6.0f;
}

float generator::uniform() noexcept {
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return static_cast<float>(state_ >> 40) * 0x1p-24f;
}

gguf_writer::gguf_writer(std::string const& architecture, std::uint64_t seed)
    : architecture_(architecture), random_(seed), gguf_(gguf_init_empty()) {
  gguf_set_val_str(gguf_, "general.architecture", architecture.c_str());
  gguf_set_val_str(gguf_, "tokenizer.ggml.model", "none");
  number("vocab_size", tiny_vocabulary);
  tensors_ = ggml_init({.mem_size = std::size_t{64} << 20, .mem_buffer = nullptr, .no_alloc = false});
}

gguf_writer::~gguf_writer() {
  gguf_free(gguf_);
  ggml_free(tensors_);
}

void gguf_writer::number(std::string const& key, std::int64_t value) {
  gguf_set_val_u32(gguf_, (architecture_ + "." + key).c_str(), static_cast<std::uint32_t>(value));
}

void gguf_writer::numbers(std::string const& key, std::span<std::uint32_t const> values) {
  gguf_set_arr_data(gguf_, (architecture_ + "." + key).c_str(), GGUF_TYPE_UINT32, values.data(), values.size());
}

void gguf_writer::real(std::string const& key, float value) {
  gguf_set_val_f32(gguf_, (architecture_ + "." + key).c_str(), value);
}

void gguf_writer::matrix(std::string const& name, std::int64_t columns, std::int64_t rows, float deviation,
                         std::int64_t copies) {
  float* const data = add(name, columns, rows, copies);
  float const each = deviation / std::sqrt(static_cast<float>(columns));
  for (std::int64_t i = 0; i < columns * rows * copies; ++i) data[i] = each * random_.normal();
}

void gguf_writer::vector(std::string const& name, std::int64_t columns, float mean, float deviation) {
  float* const data = add(name, columns, 1, 1);
  for (std::int64_t i = 0; i < columns; ++i) data[i] = mean + deviation * random_.normal();
}

void gguf_writer::constant(std::string const& name, std::int64_t columns, float value, std::int64_t rows) {
  float* const data = add(name, columns, rows, 1);
  for (std::int64_t i = 0; i < columns * rows; ++i) data[i] = value;
}

model_owner gguf_writer::load(bool header_only, std::int32_t gpu_layers) {
  silence_engine();
  static int files = 0;
  auto const path = std::filesystem::temp_directory_path() /
                    ("kvpolicy_" + architecture_ + "_" + std::to_string(getpid()) + "_" + std::to_string(files++) + ".gguf");
  if (!gguf_write_to_file(gguf_, path.c_str(), false)) throw std::runtime_error("can't write " + path.string());
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = gpu_layers;
  params.vocab_only = header_only;
  model_owner model(llama_model_load_from_file(path.c_str(), params));
  std::filesystem::remove(path);
  if (model == nullptr) throw std::runtime_error("the engine does not load the tiny " + architecture_ + " model");
  return model;
}

float* gguf_writer::add(std::string const& name, std::int64_t columns, std::int64_t rows, std::int64_t copies) {
  ggml_tensor* const tensor = ggml_new_tensor_3d(tensors_, GGML_TYPE_F32, columns, rows, copies);
  ggml_set_name(tensor, name.c_str());
  gguf_add_tensor(gguf_, tensor);
  return static_cast<float*>(tensor->data);
}

std::int64_t width_of(tiny_shape const& shape) { return shape.q_heads * shape.head_dim; }

std::string block_of(std::int64_t layer) { return "blk." + std::to_string(layer) + "."; }

void write_sizes(gguf_writer& out, tiny_shape const& shape) {
  out.number("context_length", 4096);
  out.number("embedding_length", width_of(shape));
  out.number("block_count", shape.layers);
  out.number("feed_forward_length", tiny_feed_forward);
  out.number("attention.head_count", shape.q_heads);
  out.number("attention.head_count_kv", shape.kv_heads);
  out.number("attention.key_length", shape.head_dim);
  out.number("attention.value_length", shape.head_dim);
  out.number("rope.dimension_count", shape.head_dim);
  out.real("attention.layer_norm_rms_epsilon", 1e-5f);
}

void write_ends(gguf_writer& out, tiny_shape const& shape, float deviation) {
  std::int64_t const width = width_of(shape);
  out.matrix("token_embd.weight", width, tiny_vocabulary, deviation * std::sqrt(static_cast<float>(width)));
  out.constant("output_norm.weight", width);
}

void write_attention(gguf_writer& out, std::string const& block, tiny_shape const& shape, attention_parts const& parts) {
  std::int64_t const width = width_of(shape);
  std::int64_t const narrow = shape.kv_heads * shape.head_dim;
  out.constant(block + "attn_norm.weight", width);
  out.matrix(block + "attn_q.weight", width, width, parts.projection);
  out.matrix(block + "attn_k.weight", width, narrow, parts.projection);
  out.matrix(block + "attn_v.weight", width, narrow, 1);
  out.matrix(block + "attn_output.weight", width, width, 1);
  if (parts.norm != 0) {
    out.constant(block + "attn_q_norm.weight", shape.head_dim, parts.norm);
    out.constant(block + "attn_k_norm.weight", shape.head_dim, parts.norm);
  }
}

void write_feed_forward(gguf_writer& out, std::string const& block, std::int64_t width) {
  out.constant(block + "ffn_norm.weight", width);
  out.matrix(block + "ffn_gate.weight", width, tiny_feed_forward, 1);
  out.matrix(block + "ffn_up.weight", width, tiny_feed_forward, 1);
  out.matrix(block + "ffn_down.weight", tiny_feed_forward, width, .5f);
}

void write_layers(gguf_writer& out, tiny_shape const& shape) {
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    write_attention(out, block_of(l), shape);
    write_feed_forward(out, block_of(l), width_of(shape));
  }
}

void write_gemma_layers(gguf_writer& out, tiny_shape const& shape, attention_parts const& parts) {
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::string const block = block_of(l);
    write_attention(out, block, shape, parts);
    write_feed_forward(out, block, width_of(shape));
    out.constant(block + "post_attention_norm.weight", width_of(shape));
    out.constant(block + "post_ffw_norm.weight", width_of(shape));
  }
}

void silence_engine() {
  static bool const once = [] {
    llama_log_set([](ggml_log_level, char const*, void*) {}, nullptr);
    llama_backend_init();
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace kvpolicy::llama::testing
