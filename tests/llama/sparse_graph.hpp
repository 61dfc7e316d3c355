// Attention as llama.cpp's graphs of DeepSeek V3.2 and kin have it: over a cache, under a mask that the graph computes.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cmath>
#include <cstdint>
#include <memory>

namespace kvpolicy::llama::testing {

struct sparse_shape {
  std::int64_t q_heads;
  std::int64_t kv_heads;
  std::int64_t key_dim;
  std::int64_t value_dim;  ///< below key_dim: values are the first elements of the keys' rows (MLA)
  std::int64_t cells;      ///< of a stream
  std::int64_t chosen;     ///< tokens for each token
  std::int64_t tokens = 1;
  std::int64_t streams = 1;
  bool f32 = false;  ///< the cache, of which attention gets copies
};

class sparse_graph {
 public:
  explicit sparse_graph(sparse_shape const& of) {
    context_.reset(ggml_init({std::size_t{1} << 20, nullptr, true}));
    ggml_context* const c = context_.get();
    queries = ggml_new_tensor_4d(c, GGML_TYPE_F32, of.key_dim, of.tokens, of.q_heads, of.streams);
    auto const rows = [&](char const* name) {
      ggml_tensor* const made =
          ggml_new_tensor_3d(c, of.f32 ? GGML_TYPE_F32 : GGML_TYPE_F16, of.key_dim * of.kv_heads, of.cells, of.streams);
      ggml_set_name(made, name);
      return made;
    };
    auto const view = [&](ggml_tensor* rows_of, std::int64_t dim) {
      std::size_t const head = ggml_row_size(rows_of->type, of.key_dim);
      ggml_tensor* const part =
          ggml_view_4d(c, rows_of, dim, of.cells, of.kv_heads, of.streams, rows_of->nb[1], head, rows_of->nb[2], 0);
      return of.f32 ? ggml_cast(c, part, GGML_TYPE_F16) : part;
    };
    cache = rows("cache_k_l0");
    values = of.value_dim < of.key_dim ? cache : rows("cache_v_l0");
    engines = ggml_new_tensor_4d(c, GGML_TYPE_F32, of.cells, of.tokens, 1, of.streams);
    indices = ggml_new_tensor_3d(c, GGML_TYPE_I32, of.chosen, of.tokens, of.streams);
    ggml_tensor* all = ggml_fill(c, engines, -INFINITY);
    all = ggml_view_4d(c, all, 1, of.cells, of.tokens, of.streams, all->nb[0], all->nb[1], all->nb[2], 0);
    ggml_tensor* const zeros = ggml_fill(c, ggml_new_tensor_4d(c, GGML_TYPE_F32, 1, of.chosen, of.tokens, of.streams), 0);
    ggml_tensor* mask = ggml_set_rows(c, all, zeros, indices);
    mask = ggml_view_4d(c, mask, of.cells, of.tokens, 1, of.streams, mask->nb[2], mask->nb[3], mask->nb[3], 0);
    mask = ggml_cast(c, ggml_add(c, mask, engines), GGML_TYPE_F16);
    float const scale = 1 / std::sqrt(static_cast<float>(of.key_dim));
    attention = ggml_flash_attn_ext(c, queries, view(cache, of.key_dim), view(values, of.value_dim), mask, scale, 0, 0);
    graph_ = ggml_new_graph(c);
    ggml_build_forward_expand(graph_, attention);
    alone_ = ggml_new_graph_custom(c, 1, false);
    ggml_graph_add_node(alone_, attention);
    cpu_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    memory_.reset(ggml_backend_alloc_ctx_tensors(c, cpu_.get()));
  }

  /// Of the mask too.
  bool compute() { return ggml_backend_graph_compute(cpu_.get(), graph_) == GGML_STATUS_SUCCESS; }
  /// Of attention alone, on a mask that was computed.
  bool compute_attention() { return ggml_backend_graph_compute(cpu_.get(), alone_) == GGML_STATUS_SUCCESS; }
  ggml_backend_t cpu() const noexcept { return cpu_.get(); }

  ggml_tensor* queries;
  ggml_tensor* cache;    ///< keys
  ggml_tensor* values;   ///< or the keys
  ggml_tensor* engines;  ///< mask
  ggml_tensor* indices;
  ggml_tensor* attention;

 private:
  std::unique_ptr<ggml_context, decltype(&ggml_free)> context_{nullptr, &ggml_free};
  std::unique_ptr<ggml_backend, decltype(&ggml_backend_free)> cpu_{nullptr, &ggml_backend_free};
  std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)> memory_{nullptr, &ggml_backend_buffer_free};
  ggml_cgraph* graph_;
  ggml_cgraph* alone_;
};

template <class T>
T* data_of(ggml_tensor* tensor) {
  return static_cast<T*>(tensor->data);
}

}  // namespace kvpolicy::llama::testing
