#include "families.hpp"

#include <ggml-backend.h>
#include <gguf.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "gguf_writer.hpp"

namespace kvpolicy::llama::testing {
namespace {

using names = std::set<std::string_view>;

bool is_one_of(std::string const& architecture, names const& some) { return some.contains(architecture); }

/// What the engine asks for, of any architecture: keys that it does not know, it passes over.
class metadata {
 public:
  explicit metadata(std::string const& architecture) : architecture_(architecture), made_(gguf_init_empty(), &gguf_free) {
    gguf_set_val_str(made_.get(), "general.architecture", architecture.c_str());
    gguf_set_val_str(made_.get(), "tokenizer.ggml.model", "none");
    sizes();
    attention();
    experts();
    recurrent();
    indexers();
  }
  gguf_context* get() const noexcept { return made_.get(); }

 private:
  bool is(names const& some) const { return is_one_of(architecture_, some); }
  std::string key(char const* of) const { return architecture_ + "." + of; }
  void number(char const* of, std::uint32_t value) { gguf_set_val_u32(made_.get(), key(of).c_str(), value); }
  void real(char const* of, float value) { gguf_set_val_f32(made_.get(), key(of).c_str(), value); }
  void flag(char const* of, bool value) { gguf_set_val_bool(made_.get(), key(of).c_str(), value); }
  void numbers(char const* of, std::vector<std::uint32_t> const& values) {
    gguf_set_arr_data(made_.get(), key(of).c_str(), GGUF_TYPE_UINT32, values.data(), values.size());
  }
  void long_numbers(char const* of, std::vector<std::uint64_t> const& values) {
    gguf_set_arr_data(made_.get(), key(of).c_str(), GGUF_TYPE_UINT64, values.data(), values.size());
  }
  std::vector<std::uint32_t> by_layer(std::function<std::uint32_t(std::uint32_t)> const& of) const {
    std::vector<std::uint32_t> made;
    for (std::uint32_t l = 0; l < layers_; ++l) made.push_back(of(l));
    return made;
  }

  void sizes() {
    if (is({"gemma4", "gemma3"})) layers_ = 6;

    if (is({"deepseek32", "glm-dsa"})) layers_ = 1;  // a second layer's choice would hang on the first one's rounding
    if (is({"qwen4exp"})) layers_ = 2;               // one of them attends
    if (is({"gemma3n"})) layers_ = 22;               // the engine has the number of layers with a cache, 20
    number("vocab_size", tiny_vocabulary);
    number("context_length", 1024);
    number("embedding_length", width_);
    number("block_count", layers_);
    number("leading_dense_block_count", 1);
    if (is({"nemotron_h", "nemotron_h_moe"})) {
      numbers("feed_forward_length", by_layer([](std::uint32_t l) { return l == 3 ? tiny_feed_forward : 0; }));
    } else {
      number("feed_forward_length", tiny_feed_forward);
    }
    real("logit_scale", 1);
    real("attention.layer_norm_epsilon", 1e-5f);
    real("attention.layer_norm_rms_epsilon", 1e-5f);
  }

  void attention() {
    bool const latent = is({"deepseek2", "deepseek32", "glm-dsa", "kimi-linear", "mistral4", "minicpm3"});
    heads_ = is({"deepseek2", "deepseek32", "glm-dsa", "kimi-linear", "mistral4"}) ? 4 : heads_;
    std::uint32_t const kv_heads = latent && !is({"minicpm3"}) ? 1 : is({"minicpm3"}) ? heads_ : 2;
    if (is({"jamba", "nemotron_h", "nemotron_h_moe", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear"})) {
      auto const some = [&](std::uint32_t of) { return by_layer([of](std::uint32_t l) { return l % 2 == 1 ? of : 0u; }); };
      numbers("attention.head_count_kv", some(kv_heads));
      number("attention.head_count", heads_);
    } else {
      number("attention.head_count", heads_);
      number("attention.head_count_kv", kv_heads);
    }
    if (latent) {
      bool const absorbed = !is({"minicpm3"});
      number("attention.key_length", absorbed ? latent_ + rotated_ : head_ + rotated_);
      number("attention.value_length", absorbed ? latent_ : head_);
      number("attention.key_length_mla", head_ + rotated_);
      number("attention.value_length_mla", head_);
      number("rope.dimension_count", rotated_);
      number("attention.q_lora_rank", 32);
      number("attention.kv_lora_rank", latent_);
    } else if (!is({"minicpm3"})) {
      number("attention.key_length", head_);
      number("attention.value_length", head_);
    }
    if (!is({"lfm2", "exaone4"})) number("attention.sliding_window", 64);  // those have none
    number("attention.key_length_swa", head_);
    number("attention.value_length_swa", head_);
    real("rope.freq_base", 1e5f);
    real("rope.freq_base_swa", 1e4f);
    number("attention.shared_kv_layers", 0);
    number("embedding_length_per_layer_input", is({"qwen4exp"}) ? width_ / 4 : 16);
    number("full_attention_interval", 2);
    real("residual_scale", 1);
    if (is({"gemma4", "mimo2", "step35"})) {
      numbers("attention.sliding_window_pattern", by_layer([](std::uint32_t l) { return l % 2 == 0 ? 1u : 0u; }));
    } else {
      number("attention.sliding_window_pattern", is({"llama4"}) ? 4 : 2);
    }
    numbers("rope.dimension_sections", {head_ / 8, head_ / 8, head_ / 8, head_ / 8});
  }

  void experts() {
    number("expert_feed_forward_length", tiny_feed_forward);
    number("expert_shared_feed_forward_length", tiny_feed_forward);
    number("interleave_moe_layer_step", 2);
    if (!is({"llama4",   "qwen3moe",    "qwen3next",      "qwen35moe", "qwen4exp",   "deepseek2",    "deepseek32",
             "glm-dsa",  "glm4moe",     "gpt-oss",        "lfm2moe",   "minimax-m2", "minimax-m3",   "kimi-linear",
             "mistral4", "hunyuan-moe", "nemotron_h_moe", "mimo2",     "step35",     "ernie4_5-moe", "jamba"}))
      return;
    number("expert_count", 2);
    number("expert_used_count", 2);  // all: a choice that hung on rounding would make logits hard to compare
    number("expert_shared_count", 1);
    number("expert_gating_func", 2);
    real("expert_weights_scale", 1);
  }

  void recurrent() {
    number("ssm.inner_size", is({"qwen3next", "qwen35", "qwen35moe", "qwen4exp"}) ? 2 * 32 : 2 * width_);
    number("ssm.conv_kernel", 4);
    number("ssm.state_size", 32);
    number("ssm.time_step_rank", is({"qwen3next", "qwen35", "qwen35moe", "qwen4exp"}) ? 2 : 4);
    number("ssm.group_count", 2);
    number("shortconv.l_cache", 3);
    number("kda.head_dim", 32);
  }

  void indexers() {
    number("attention.indexer.head_count", is({"minimax-m3"}) ? 2 : 4);
    number("attention.indexer.key_length", is({"deepseek32", "glm-dsa"}) ? 2 * rotated_ : head_);
    number("attention.indexer.top_k", 64);
    number("attention.indexer.block_size", 4);
    number("attention.indexer.local_blocks", 1);
    number("hyper_connection.count", 2);
    number("hyper_connection.sinkhorn_iterations", 2);
    real("hyper_connection.epsilon", 1e-6f);
    number("hyper_connection.low_rank", 8);
    numbers("attention.compress_ratios", by_layer([](std::uint32_t) { return 4; }));
    number("ple.ngram_size", 3);
    number("ple.heads_per_ngram", 2);
    number("ple.conv_kernel", 4);
    number("ple.eos_token_id", 0);
    numbers("ple.layers", {0});
    long_numbers("ple.layer_multipliers", {1, 3, 5});
    long_numbers("ple.head_offsets", {0, tiny_vocabulary, 2 * tiny_vocabulary, 3 * tiny_vocabulary});
    long_numbers("ple.head_vocab_sizes", std::vector<std::uint64_t>(4, tiny_vocabulary));
  }

  static constexpr std::uint32_t width_ = 128;
  static constexpr std::uint32_t head_ = 32;
  static constexpr std::uint32_t latent_ = 64;
  static constexpr std::uint32_t rotated_ = 32;
  std::uint32_t layers_ = 4;
  std::uint32_t heads_ = 4;
  std::string architecture_;
  std::unique_ptr<gguf_context, decltype(&gguf_free)> made_;
};

/// Norms near 1, decays below 0, biases small; products have a deviation near 1.
void fill(ggml_tensor* tensor, void* architecture) {
  std::string_view const name = tensor->name;
  generator random(std::hash<std::string_view>{}(name));
  std::vector<float> values(static_cast<std::size_t>(ggml_nelements(tensor)));
  bool const matrix = ggml_n_dims(tensor) > 1;
  bool const attends = name.find("attn_q") != name.npos || name.find("attn_k") != name.npos;
  float const scale = matrix ? (attends ? 1.4f : 1) / std::sqrt(static_cast<float>(tensor->ne[0])) : .1f;
  bool const norm = name.find("norm") != name.npos;
  // Gemma 4 does not scale its logits.
  float const gain = attends && *static_cast<std::string const*>(architecture) == "gemma4" ? .6f : 1;
  for (float& value : values) {
    value = scale * random.normal();
    if (name.find("ssm_a") != name.npos) value = -std::abs(value) - .5f;
    else if (name.ends_with("scale")) value = 1;  // of quantised weights
    else if (name.starts_with("rope_f")) value = 1 + std::abs(value);
    else if (norm && !matrix) value = gain * (1 + value);
    else if (name.find("token_embd") != name.npos) value /= scale;
  }
  if (tensor->type == GGML_TYPE_F32) return ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
  throw std::runtime_error(std::string(name) + " is not of f32");
}

constexpr family all[] = {
    {"llama", "Llama 3, SmolLM2, Mistral"},
    {"qwen3", "Qwen3"},
    {"qwen3moe", "Qwen3 MoE"},
    {"qwen35", "Qwen3.5, 3.6, 3.8"},
    {"qwen35moe", "Qwen3.5 MoE"},
    {"qwen3next", "Qwen3-Next"},
    {"qwen4exp", "Qwen3.8-Flash-Next"},
    {"granitehybrid", "Granite 4"},
    {"nemotron_h", "Nemotron-H"},
    {"nemotron_h_moe", "Nemotron 3"},
    {"jamba", "Jamba"},
    {"falcon-h1", "Falcon-H1"},
    {"lfm2", "LFM2"},
    {"lfm2moe", "LFM2 MoE"},
    {"gpt-oss", "gpt-oss"},
    {"gemma3", "Gemma 3"},
    {"gemma3n", "Gemma 3n"},
    {"gemma4", "Gemma 4"},
    {"deepseek2", "DeepSeek V2 to V3.1, Kimi K2, GLM-4.7-Flash"},
    {"deepseek32", "DeepSeek V3.2"},
    {"glm-dsa", "GLM-5"},
    {"kimi-linear", "Kimi Linear"},
    {"mistral4", "Mistral 4"},
    {"minicpm3", "MiniCPM3"},
    {"glm4moe", "GLM-4.5, 4.6"},
    {"minimax-m2", "MiniMax-M2"},
    {"minimax-m3", "MiniMax-M3"},
    {"llama4", "Llama 4"},
    {"cohere2", "Command R7B"},
    {"olmo2", "OLMo 2"},
    {"phi3", "Phi-3, Phi-4"},
    {"smollm3", "SmolLM3"},
    {"mistral3", "Ministral 3"},
    {"exaone4", "EXAONE 4"},
    {"hunyuan-moe", "Hunyuan"},
    {"ernie4_5-moe", "ERNIE 4.5"},
    {"mimo2", "MiMo-V2"},
    {"step35", "Step-3.5"},
};

}  // namespace

std::span<family const> families() { return all; }

model_owner tiny_model_of(std::string const& architecture) {
  silence_engine();
  metadata const described(architecture);
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  model_owner model(llama_model_init_from_user(described.get(), fill, const_cast<std::string*>(&architecture), params));
  if (model == nullptr) throw std::runtime_error("the engine does not make the tiny " + architecture + " model");
  return model;
}

}  // namespace kvpolicy::llama::testing
