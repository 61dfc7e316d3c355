#include "tiny_model.hpp"

#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <stdexcept>

namespace kvpolicy::llama::testing {
namespace {

void silence_engine() {
  static bool const once = [] {
    llama_log_set([](ggml_log_level, char const*, void*) {}, nullptr);
    llama_backend_init();
    return true;
  }();
  static_cast<void>(once);
}

/// Near-normal numbers, the same on every machine.
class generator {
 public:
  explicit generator(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  float normal() noexcept {
    float sum = 0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum - 6.0f;
  }

 private:
  float uniform() noexcept {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<float>(state_ >> 40) * 0x1p-24f;
  }
  std::uint64_t state_;
};

class gguf_writer {
 public:
  explicit gguf_writer(std::string const& architecture, std::uint64_t seed)
      : architecture_(architecture), random_(seed), gguf_(gguf_init_empty()) {
    gguf_set_val_str(gguf_, "general.architecture", architecture.c_str());
    gguf_set_val_str(gguf_, "tokenizer.ggml.model", "none");
    number("vocab_size", tiny_vocabulary);
    tensors_ = ggml_init({.mem_size = std::size_t{64} << 20, .mem_buffer = nullptr, .no_alloc = false});
  }
  ~gguf_writer() {
    gguf_free(gguf_);
    ggml_free(tensors_);
  }
  gguf_writer(gguf_writer const&) = delete;
  gguf_writer& operator=(gguf_writer const&) = delete;

  void number(std::string const& key, std::int64_t value) {
    gguf_set_val_u32(gguf_, (architecture_ + "." + key).c_str(), static_cast<std::uint32_t>(value));
  }
  void real(std::string const& key, float value) { gguf_set_val_f32(gguf_, (architecture_ + "." + key).c_str(), value); }

  /// `[rows, columns]`, ne[0] = columns; outputs have `deviation` for unit inputs.
  void matrix(std::string const& name, std::int64_t columns, std::int64_t rows, float deviation) {
    ggml_tensor* const tensor = ggml_new_tensor_2d(tensors_, GGML_TYPE_F32, columns, rows);
    float const each = deviation / std::sqrt(static_cast<float>(columns));
    auto* const data = static_cast<float*>(tensor->data);
    for (std::int64_t i = 0; i < columns * rows; ++i) data[i] = each * random_.normal();
    add(tensor, name);
  }
  void ones(std::string const& name, std::int64_t columns) {
    ggml_tensor* const tensor = ggml_new_tensor_1d(tensors_, GGML_TYPE_F32, columns);
    for (std::int64_t i = 0; i < columns; ++i) static_cast<float*>(tensor->data)[i] = 1;
    add(tensor, name);
  }

  model_owner load(bool header_only = false) {
    silence_engine();
    static int files = 0;
    auto const path = std::filesystem::temp_directory_path() /
                      ("kvpolicy_" + architecture_ + "_" + std::to_string(getpid()) + "_" + std::to_string(files++) + ".gguf");
    if (!gguf_write_to_file(gguf_, path.c_str(), false)) throw std::runtime_error("can't write " + path.string());
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.vocab_only = header_only;
    model_owner model(llama_model_load_from_file(path.c_str(), params));
    std::filesystem::remove(path);
    if (model == nullptr) throw std::runtime_error("the engine does not load the tiny " + architecture_ + " model");
    return model;
  }

 private:
  void add(ggml_tensor* tensor, std::string const& name) {
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(gguf_, tensor);
  }

  std::string architecture_;
  generator random_;
  gguf_context* gguf_;
  ggml_context* tensors_;
};

void write_sizes(gguf_writer& out, tiny_shape const& shape, std::int64_t feed_forward) {
  out.number("context_length", 4096);
  out.number("embedding_length", shape.q_heads * shape.head_dim);
  out.number("block_count", shape.layers);
  out.number("feed_forward_length", feed_forward);
  out.number("attention.head_count", shape.q_heads);
  out.number("attention.head_count_kv", shape.kv_heads);
  out.number("attention.key_length", shape.head_dim);
  out.number("attention.value_length", shape.head_dim);
  out.number("rope.dimension_count", shape.head_dim);
  out.real("attention.layer_norm_rms_epsilon", 1e-5f);
}

void write_layers(gguf_writer& out, tiny_shape const& shape, std::int64_t feed_forward, bool post_norms) {
  std::int64_t const width = shape.q_heads * shape.head_dim;
  std::int64_t const narrow = shape.kv_heads * shape.head_dim;
  out.matrix("token_embd.weight", width, tiny_vocabulary, std::sqrt(static_cast<float>(width)));
  out.ones("output_norm.weight", width);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::string const block = "blk." + std::to_string(l) + ".";
    out.ones(block + "attn_norm.weight", width);
    out.matrix(block + "attn_q.weight", width, width, 1.4f);
    out.matrix(block + "attn_k.weight", width, narrow, 1.4f);
    out.matrix(block + "attn_v.weight", width, narrow, 1);
    out.matrix(block + "attn_output.weight", width, width, 1);
    out.ones(block + "ffn_norm.weight", width);
    out.matrix(block + "ffn_gate.weight", width, feed_forward, 1);
    out.matrix(block + "ffn_up.weight", width, feed_forward, 1);
    out.matrix(block + "ffn_down.weight", feed_forward, width, .5f);
    if (post_norms) {
      out.ones(block + "post_attention_norm.weight", width);
      out.ones(block + "post_ffw_norm.weight", width);
    }
  }
}

}  // namespace

model_owner tiny_llama(tiny_shape const& shape) {
  gguf_writer out("llama", shape.seed);
  write_sizes(out, shape, 64);
  write_layers(out, shape, 64, false);
  out.matrix("output.weight", shape.q_heads * shape.head_dim, tiny_vocabulary, 1);
  return out.load();
}

model_owner tiny_sliding_window() {
  gguf_writer out("gemma2", 2);
  write_sizes(out, {}, 64);
  out.number("attention.sliding_window", 64);
  write_layers(out, {}, 64, true);
  return out.load();
}

model_owner header_of(std::string const& architecture) {
  gguf_writer out(architecture, 1);
  write_sizes(out, {}, 64);
  return out.load(true);
}

model_owner load_model(std::string const& path) {
  silence_engine();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  return model_owner(llama_model_load_from_file(path.c_str(), params));
}

}  // namespace kvpolicy::llama::testing
