#include "graph.hpp"

#include <ggml-impl.h>

#include <string>
#include <string_view>

#include "kvpolicy/error.hpp"

namespace kvpolicy::ggml {
namespace {

/// Attention that the device can compute in the engine's place: throws unsupported for other.
void check(ggml_tensor const* node) {
  llama::check_attention(node);
  if (node->src[1]->ne[0] != node->src[2]->ne[0])
    throw unsupported("keys of " + std::to_string(node->src[1]->ne[0]) + " and values of " +
                      std::to_string(node->src[2]->ne[0]) + " elements (latent attention) on a device; leave --gpu away");
  ggml_tensor const* const q = node->src[0];
  ggml_tensor const* const cache = llama::storage_of(node->src[1]);
  llama::attention_parameters const said(node);
  if (cache->type != GGML_TYPE_F16 && cache->type != GGML_TYPE_BF16)  // of f32 the engine makes copies in f16 at each step
    throw unsupported(std::string("a cache of type ") + ggml_type_name(cache->type) +
                      " on a device; set --cache-type-k and --cache-type-v to f16 or bf16");
  if (!llama::is_offloaded(node) || node->src[1]->view_src == nullptr)
    throw unsupported("layer " + std::to_string(llama::attended_layer(node).value_or(-1)) +
                      " has its rows in host memory; start the program without --no-kv-offload");
  if (said.max_bias != 0) throw unsupported("a model with ALiBi on a device");
  auto const row = static_cast<std::size_t>(q->ne[0]) * sizeof(float);
  if (q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) || q->nb[2] != row ||
      q->nb[1] != row * static_cast<std::size_t>(q->ne[2]) ||
      (q->ne[3] > 1 && q->nb[3] != q->nb[1] * static_cast<std::size_t>(q->ne[1])))
    throw unsupported("this llama.cpp lays out its queries in a way that kvpolicy does not know");
}

/// Not an encoder's attention, nor a vision model's.
bool attends_to_cache(ggml_tensor const* node) {
  return node->op == GGML_OP_FLASH_ATTN_EXT && llama::attended_layer(node).has_value();
}

/// Whether ggml-cuda's product of experts, for so many tokens, waits for the device.
bool may_wait(ggml_tensor const* node) {
  return node->op == GGML_OP_MUL_MAT_ID && (!ggml_is_quantized(node->src[0]->type) || node->ne[2] > 1);
}

}  // namespace

attention_graph read(ggml_cgraph* graph) {
  attention_graph made;
  ggml_tensor const* masked_by = nullptr;
  for (int i = 0; i < graph->n_nodes; ++i) {
    ggml_tensor* const node = graph->nodes[i];
    if (std::string_view(node->name) == "result_output") made.logits = node;
    if (node->op == GGML_OP_GET_ROWS && std::string_view(node->src[1]->name).find("out_ids") != std::string_view::npos)
      made.outputs = node->src[1];
    made.waits = made.waits || may_wait(node);
    if (ggml_tensor const* const by = llama::rotated_by(node)) made.shifts = by;
    if (node->op == GGML_OP_SET_ROWS && llama::key_cache_layer(node)) made.written.push_back(node);
    if (!attends_to_cache(node)) continue;
    check(node);
    llama::graph_mask const mask(node);
    if (masked_by != nullptr && mask.input() != masked_by)
      throw unsupported("a model with sliding windows on a device: its layers see different tokens");
    masked_by = mask.input();
    made.mask = mask;
    made.layers.push_back({i, node});
  }
  if (!made.written.empty()) made.cells = made.written.front()->src[1];
  if (made.layers.empty() && made.cells == nullptr) return made;
  if (made.layers.empty())
    throw unsupported(
        "attention without flash attention on the device; start the program with --flash-attn on (llama.cpp has no "
        "such kernel for some sizes of heads)");
  if (made.cells == nullptr || made.cells->type != GGML_TYPE_I64)
    throw unsupported(
        "attention to a cache that the graph does not write (a draft model that shares the other's, say), or writes in a "
        "way that kvpolicy does not know");
  std::size_t all = 0;
  for (std::size_t i = 0; i < graph->visited_hash_set.size; ++i)
    if (ggml_bitset_get(graph->visited_hash_set.used, i) && attends_to_cache(graph->visited_hash_set.keys[i])) ++all;
  if (all > made.layers.size())
    throw unsupported(
        std::to_string(made.layers.size()) + " of the model's " + std::to_string(all) +
        " layers with attention are in one graph on the device; all have to be: start the program with --n-gpu-layers 999, "
        "without --cpu-moe, --n-cpu-moe and --override-tensor");
  return made;
}

void refuse_attention(ggml_cgraph* graph) {
  for (int i = 0; i < graph->n_nodes; ++i)
    if (attends_to_cache(graph->nodes[i]) ||
        (graph->nodes[i]->op == GGML_OP_SET_ROWS && llama::key_cache_layer(graph->nodes[i])))
      throw unsupported(
          "layers with attention on the CPU, where --gpu serves none; start the program with --n-gpu-layers 999 and "
          "without --no-kv-offload, or leave --gpu away");
}

}  // namespace kvpolicy::ggml
