#include "model_kinds.hpp"

#include <array>
#include <cmath>

#include "gguf_writer.hpp"

namespace kvpolicy::llama::testing {
namespace {

/// gemma multiplies embeddings by the root of their width: this makes them of deviation 1 after that, as a layer's output is.
float gemma_embedding(tiny_shape const& shape) { return 1 / std::sqrt(static_cast<float>(width_of(shape))); }

/// A hybrid's heads by layer: none where the layer is not attention.
constexpr std::array<std::uint32_t, 6> hybrid_kv_heads = {0, 0, 2, 0, 2, 0};

}  // namespace

model_owner tiny_window_pattern() {
  tiny_shape const shape{.layers = 12, .kv_heads = 1};
  gguf_writer out("gemma3", 3);
  write_sizes(out, shape);
  out.number("attention.sliding_window", 64);
  out.real("rope.freq_base", 1e6f);
  write_ends(out, shape, gemma_embedding(shape));
  write_gemma_layers(out, shape, {.norm = 1.4f});
  return out.load();
}

model_owner tiny_soft_capped() {
  tiny_shape const shape{.layers = 4};
  gguf_writer out("gemma2", 4);
  write_sizes(out, shape);
  out.number("attention.sliding_window", 64);
  out.real("attn_logit_softcapping", 5);
  out.real("final_logit_softcapping", 30);
  write_ends(out, shape, gemma_embedding(shape));
  write_gemma_layers(out, shape, {.projection = 2});
  return out.load();
}

model_owner tiny_attention_sinks() {
  tiny_shape const shape{.layers = 4};
  std::int64_t const width = width_of(shape);
  std::int64_t const experts = 4;
  gguf_writer out("gpt-oss", 5);
  write_sizes(out, shape);
  out.number("attention.sliding_window", 64);
  out.number("expert_count", experts);
  out.number("expert_used_count", 2);
  out.number("expert_feed_forward_length", tiny_feed_forward);
  write_ends(out, shape, 1);
  out.matrix("output.weight", width, tiny_vocabulary, 1);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::string const block = block_of(l);
    write_attention(out, block, shape);
    out.vector(block + "attn_output.bias", width, 0, .1f);
    // The exponentials of 200 logits of deviation 2 add up to about exp(7.3): a sink near 0 would not be felt.
    out.vector(block + "attn_sinks.weight", shape.q_heads, 5, 1);
    out.constant(block + "post_attention_norm.weight", width);  // gpt-oss: the one before the experts
    // The biases choose the experts: a choice that hung on rounding would make attentions' outputs hard to compare.
    out.matrix(block + "ffn_gate_inp.weight", width, experts, .02f);
    out.vector(block + "ffn_gate_inp.bias", experts, 0, 1);
    out.matrix(block + "ffn_gate_exps.weight", width, tiny_feed_forward, 1, experts);
    out.matrix(block + "ffn_up_exps.weight", width, tiny_feed_forward, 1, experts);
    out.matrix(block + "ffn_down_exps.weight", tiny_feed_forward, width, .5f, experts);
    out.matrix(block + "ffn_gate_exps.bias", tiny_feed_forward, experts, 1);
    out.matrix(block + "ffn_up_exps.bias", tiny_feed_forward, experts, 1);
    out.matrix(block + "ffn_down_exps.bias", width, experts, 1);
  }
  return out.load();
}

model_owner tiny_alibi() {
  tiny_shape const shape{.layers = 4, .q_heads = 6};
  std::int64_t const width = width_of(shape);
  gguf_writer out("mpt", 6);
  write_sizes(out, shape);
  out.real("attention.layer_norm_epsilon", 1e-5f);
  out.real("attention.max_alibi_bias", 8);
  write_ends(out, shape, 1);
  out.matrix("output.weight", width, tiny_vocabulary, 1);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::string const block = block_of(l);
    out.constant(block + "attn_norm.weight", width);
    out.matrix(block + "attn_qkv.weight", width, (shape.q_heads + 2 * shape.kv_heads) * shape.head_dim, 1.4f);
    out.matrix(block + "attn_output.weight", width, width, 1);
    out.constant(block + "ffn_norm.weight", width);
    out.matrix(block + "ffn_up.weight", width, tiny_feed_forward, 1);
    out.matrix(block + "ffn_down.weight", tiny_feed_forward, width, 1);
  }
  return out.load();
}

model_owner tiny_unequal_heads() {
  tiny_shape const shape{.layers = 4};
  std::int64_t const width = width_of(shape);
  constexpr std::array<std::uint32_t, 4> kv_heads = {2, 2, 1, 2};
  gguf_writer out("openelm", 7);
  write_sizes(out, shape);
  out.numbers("attention.head_count_kv", kv_heads);
  write_ends(out, shape, 1);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::string const block = block_of(l);
    std::int64_t const rows = (shape.q_heads + 2 * kv_heads[static_cast<std::size_t>(l)]) * shape.head_dim;
    out.constant(block + "attn_norm.weight", width);
    out.matrix(block + "attn_qkv.weight", width, rows, 1);
    out.constant(block + "attn_q_norm.weight", shape.head_dim, 1.4f);
    out.constant(block + "attn_k_norm.weight", shape.head_dim, 1.4f);
    out.matrix(block + "attn_output.weight", width, width, 1);
    write_feed_forward(out, block, width);
  }
  return out.load();
}

model_owner tiny_short_convolution() {
  tiny_shape const shape{.layers = 6};
  std::int64_t const width = width_of(shape);
  std::int64_t const taps = 3;
  gguf_writer out("lfm2", 8);
  write_sizes(out, shape);
  out.numbers("attention.head_count_kv", hybrid_kv_heads);
  out.number("shortconv.l_cache", taps);
  out.matrix("token_embd.weight", width, tiny_vocabulary, std::sqrt(static_cast<float>(width)));
  out.constant("token_embd_norm.weight", width);  // what lfm2 calls the norm before the output
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::string const block = block_of(l);
    if (hybrid_kv_heads[static_cast<std::size_t>(l)] != 0) {
      write_attention(out, block, shape, {.norm = 1.4f});
    } else {
      out.constant(block + "attn_norm.weight", width);
      out.matrix(block + "shortconv.in_proj.weight", width, 3 * width, 1);
      out.matrix(block + "shortconv.conv.weight", taps, width, 1);
      out.matrix(block + "shortconv.out_proj.weight", width, width, 1);
    }
    write_feed_forward(out, block, width);
  }
  return out.load();
}

model_owner tiny_state_space() {
  tiny_shape const shape{.layers = 6};
  std::int64_t const width = width_of(shape);
  std::int64_t const inner = 2 * width;
  std::int64_t const state = 16;
  std::int64_t const taps = 4;
  std::int64_t const heads = 8;
  gguf_writer out("granitehybrid", 9);
  write_sizes(out, shape);
  out.numbers("attention.head_count_kv", hybrid_kv_heads);
  out.number("ssm.conv_kernel", taps);
  out.number("ssm.inner_size", inner);
  out.number("ssm.state_size", state);
  out.number("ssm.time_step_rank", heads);
  out.number("ssm.group_count", 1);
  write_ends(out, shape, 1);
  out.matrix("output.weight", width, tiny_vocabulary, 1);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::string const block = block_of(l);
    if (hybrid_kv_heads[static_cast<std::size_t>(l)] != 0) {
      write_attention(out, block, shape);
    } else {
      out.constant(block + "attn_norm.weight", width);
      out.matrix(block + "ssm_in.weight", width, 2 * inner + 2 * state + heads, 1);
      out.matrix(block + "ssm_conv1d.weight", taps, inner + 2 * state, 1);
      out.vector(block + "ssm_conv1d.bias", inner + 2 * state, 0, .1f);
      out.vector(block + "ssm_dt.bias", heads, -2, 1);
      out.constant(block + "ssm_a", 1, -1, heads);  // negative, so that states decay
      out.constant(block + "ssm_d", 1, 1, heads);
      out.constant(block + "ssm_norm.weight", inner);
      out.matrix(block + "ssm_out.weight", inner, width, 1);
    }
    write_feed_forward(out, block, width);
  }
  return out.load();
}

model_owner tiny_windows_only() {
  tiny_shape const shape{};
  gguf_writer out("gemma3", 10);
  write_sizes(out, shape);
  out.number("attention.sliding_window", 64);
  out.number("attention.sliding_window_pattern", 0);
  write_ends(out, shape, gemma_embedding(shape));
  write_gemma_layers(out, shape, {.norm = 1.4f});
  return out.load();
}

model_owner tiny_shared_cache() {
  tiny_shape const shape{.layers = 6};
  constexpr std::array<std::uint32_t, 6> windowed = {1, 0, 1, 0, 1, 0};
  gguf_writer out("gemma4", 11);
  write_sizes(out, shape);
  out.number("attention.sliding_window", 64);
  out.numbers("attention.sliding_window_pattern", windowed);
  out.number("attention.shared_kv_layers", 2);
  out.number("attention.key_length_swa", shape.head_dim);
  out.number("attention.value_length_swa", shape.head_dim);
  out.number("embedding_length_per_layer_input", 0);
  out.constant("rope_freqs.weight", shape.head_dim / 2, 2);
  write_ends(out, shape, gemma_embedding(shape));
  write_gemma_layers(out, shape, {.norm = .6f});  // .6 squared times the root of 32 is near 2
  return out.load();
}

}  // namespace kvpolicy::llama::testing
