#include "attention_probe.hpp"

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace kvpolicy::llama::testing {
namespace {

ggml_tensor const* root_of(ggml_tensor const* tensor) {
  while (tensor->view_src != nullptr) tensor = tensor->view_src;
  return tensor;
}

float element(ggml_tensor const* t, std::int64_t i0, std::int64_t i1, std::int64_t i2) {
  auto const* const at = static_cast<char const*>(t->data) + static_cast<std::size_t>(i0) * t->nb[0] +
                         static_cast<std::size_t>(i1) * t->nb[1] + static_cast<std::size_t>(i2) * t->nb[2];
  if (t->type == GGML_TYPE_F32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t half = 0;
  std::memcpy(&half, at, sizeof half);
  return t->type == GGML_TYPE_F16 ? half_to_float(half) : bfloat_to_float(half);
}

/// `[d, tokens, heads]` as `[tokens, heads, d]`.
std::vector<float> copy_of(ggml_tensor const* t) {
  std::vector<float> all;
  all.reserve(static_cast<std::size_t>(ggml_nelements(t)));
  for (std::int64_t token = 0; token < t->ne[1]; ++token) {
    for (std::int64_t head = 0; head < t->ne[2]; ++head) {
      for (std::int64_t d = 0; d < t->ne[0]; ++d) all.push_back(element(t, d, token, head));
    }
  }
  return all;
}

bool is_attention(ggml_tensor const* node) {
  return node->op == GGML_OP_FLASH_ATTN_EXT || (node->op == GGML_OP_CUSTOM && node->src[1] != nullptr &&
                                                std::string_view(root_of(node->src[1])->name).starts_with("cache_k_l"));
}

}  // namespace

attention_probe::attention_probe(llama_context_params& params) : inner_(params.cb_eval), inner_data_(params.cb_eval_user_data) {
  params.cb_eval = &on_node;
  params.cb_eval_user_data = this;
}

bool attention_probe::on_node(ggml_tensor* node, bool ask, void* self_data) {
  auto& self = *static_cast<attention_probe*>(self_data);
  if (ask) {
    if (node->op == GGML_OP_SET_ROWS) self.first_ = *static_cast<std::int64_t const*>(node->src[1]->data);
    self.inner_wants_ = self.inner_ != nullptr && self.inner_(node, true, self.inner_data_);
    return self.inner_wants_ || is_attention(node);
  }
  bool const go_on = !self.inner_wants_ || self.inner_(node, false, self.inner_data_);
  if (!is_attention(node)) return go_on;
  seen_attention seen{.layer = std::strtoll(root_of(node->src[1])->name + 9, nullptr, 10),
                      .queries = node->src[0]->ne[1],
                      .first = self.first_,
                      .q_heads = node->src[0]->ne[2],
                      .kv_heads = node->src[1]->ne[2],
                      .head_dim = node->src[1]->ne[0],
                      .cells = node->src[1]->ne[1],
                      .by_policy = node->op == GGML_OP_CUSTOM,
                      .q = copy_of(node->src[0]),
                      .keys = copy_of(node->src[1]),
                      .values = copy_of(node->src[2]),
                      .out = {}};
  auto const* const out = static_cast<float const*>(node->data);
  seen.out.assign(out, out + ggml_nelements(node));
  self.seen.push_back(std::move(seen));
  return go_on;
}

std::vector<double> reference_attention(seen_attention const& node, std::vector<range_list> const& kept) {
  auto const d = static_cast<std::size_t>(node.head_dim);
  auto const kv_heads = static_cast<std::size_t>(node.kv_heads);
  auto const q_heads = static_cast<std::size_t>(node.q_heads);
  std::vector<double> out(q_heads * d);
  for (std::size_t h = 0; h < q_heads; ++h) {
    std::size_t const kv = h / (q_heads / kv_heads);
    double sum = 0;
    for (token_range const& range : kept.size() == 1 ? kept[0] : kept[kv]) {
      for (auto token = static_cast<std::size_t>(range.begin); token < static_cast<std::size_t>(range.end); ++token) {
        std::size_t const row = (token * kv_heads + kv) * d;
        double dot = 0;
        for (std::size_t i = 0; i < d; ++i)
          dot += static_cast<double>(node.q[h * d + i]) * static_cast<double>(node.keys[row + i]);
        double const weight = std::exp(dot / std::sqrt(static_cast<double>(d)));  // |dot| is small: no overflow in double
        sum += weight;
        for (std::size_t i = 0; i < d; ++i) out[h * d + i] += weight * static_cast<double>(node.values[row + i]);
      }
    }
    for (std::size_t i = 0; i < d; ++i) out[h * d + i] /= sum;
  }
  return out;
}

strided_view<> view_of(seen_attention const& node, std::int64_t tokens) {
  byte_strides const strides{.layer = 0, .head = node.head_dim * 4, .token = node.kv_heads * node.head_dim * 4, .dim = 4};
  return {.cache = {.layers = 1,
                    .q_heads = node.q_heads,
                    .kv_heads = node.kv_heads,
                    .head_dim = node.head_dim,
                    .max_tokens = 1024,
                    .type = element_type::f32},
          .token_count = tokens,
          .key_base = reinterpret_cast<std::byte const*>(node.keys.data()),
          .value_base = reinterpret_cast<std::byte const*>(node.values.data()),
          .key_strides = strides,
          .value_strides = strides};
}

}  // namespace kvpolicy::llama::testing
