// kvpolicy.h from C++: owners, tensors over vectors and over a random cache's rows.
#pragma once

#include <kvpolicy.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "conformance/random_cache.hpp"
#include "profile_file.hpp"

namespace kvpolicy_test {

struct frees {
  void operator()(kvpolicy_policy* policy) const { kvpolicy_policy_free(policy); }
  void operator()(kvpolicy_state* state) const { kvpolicy_state_free(state); }
  void operator()(kvpolicy_arena* arena) const { kvpolicy_arena_free(arena); }
  void operator()(kvpolicy_store* store) const { kvpolicy_store_free(store); }
};
using c_policy = std::unique_ptr<kvpolicy_policy, frees>;
using c_state = std::unique_ptr<kvpolicy_state, frees>;
using c_arena = std::unique_ptr<kvpolicy_arena, frees>;
using c_store = std::unique_ptr<kvpolicy_store, frees>;

inline c_policy parsed(std::string const& text, std::vector<std::uint8_t> const& boundary = {}) {
  kvpolicy_policy* made = nullptr;
  kvpolicy_policy_parse(text.c_str(), boundary.empty() ? nullptr : boundary.data(), std::ssize(boundary), &made);
  return c_policy(made);
}

inline kvpolicy_shape c_shape(cache_shape const& shape) {
  return {shape.layers,   shape.q_heads,    shape.kv_heads,
          shape.head_dim, shape.max_tokens, static_cast<std::int32_t>(shape.type),
          shape.value_dim};
}

inline c_state started(c_policy const& policy, cache_shape const& shape) {
  kvpolicy_shape const sizes = c_shape(shape);
  kvpolicy_state* made = nullptr;
  kvpolicy_start(policy.get(), &sizes, &made);
  return c_state(made);
}

constexpr kvpolicy_dtype c_float{2, 32, 1};
constexpr kvpolicy_dtype c_int{0, 32, 1};

inline kvpolicy_dtype c_dtype(element_type type) {
  if (type == element_type::f32) return c_float;
  return {static_cast<std::uint8_t>(type == element_type::f16 ? 2 : 4), 16, 1};
}

/// A profile of that many heads with every role in it.
inline std::string profile_path(cache_shape const& shape) {
  std::string const path = (std::filesystem::temp_directory_path() /
                            ("kvpolicy-c-" + std::to_string(shape.layers) + "-" + std::to_string(shape.kv_heads) + ".json"))
                               .string();
  profile_file profile{
      .model = "none", .layers = shape.layers, .kv_heads = shape.kv_heads, .thresholds = {}, .heads = {}, .retrieval = {}};
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      if (h == 0 && shape.kv_heads > 1) profile.heads.push_back({head_role::pivot, -1, .5f});
      else if (h == 1) profile.heads.push_back({head_role::satellite, 0, .4f});
      else profile.heads.push_back({h % 2 == 0 ? head_role::anchor : head_role::shifting, -1, .6f});
      profile.retrieval.push_back(static_cast<float>((5 * l + 3 * h) % 7) / 7);
    }
  }
  std::ofstream(path) << to_json(profile);
  return path;
}

/// A tensor with its shape and strides, which it points to: it may not be copied.
struct c_tensor {
  c_tensor(void const* data, kvpolicy_dtype dtype, std::vector<std::int64_t> extents, std::vector<std::int64_t> steps = {},
           kvpolicy_device where = {1, 0})
      : shape(std::move(extents)), strides(std::move(steps)) {
    t = {const_cast<void*>(data), where, static_cast<std::int32_t>(shape.size()), dtype, shape.data(), strides.data(), 0};
    if (strides.empty()) t.strides = nullptr;
  }
  c_tensor(std::vector<float> const& values, std::vector<std::int64_t> extents, std::vector<std::int64_t> steps = {})
      : c_tensor(values.data(), c_float, std::move(extents), std::move(steps)) {}
  c_tensor(c_tensor const&) = delete;
  c_tensor& operator=(c_tensor const&) = delete;
  operator kvpolicy_tensor const*() const { return &t; }

  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  kvpolicy_tensor t{};
};

/// Rows as an engine would hand them over; `pages` is how many physical ones there are.
inline std::unique_ptr<c_tensor> c_rows(rows const& from, std::int64_t pages) {
  std::int64_t const size = size_of(from.type);
  std::vector<std::int64_t> extents{from.heads, from.tokens, from.head_dim};
  std::vector<std::int64_t> steps{from.head_stride / size, from.token_stride / size, from.dim_stride / size};
  if (from.pages != nullptr) {
    extents = {pages, from.heads, from.page_size, from.head_dim};
    steps.insert(steps.begin(), from.page_stride / size);
  }
  return std::make_unique<c_tensor>(from.base, c_dtype(from.type), extents, steps);
}

/// Binds a layer of a random cache, all of its tokens.
inline kvpolicy_status bind(kvpolicy_state* state, random_cache const& cache, std::int64_t layer) {
  rows const keys = cache.keys(layer, cache.shape().max_tokens);
  rows const values = cache.values(layer, cache.shape().max_tokens);
  std::int64_t const used = keys.pages == nullptr ? 0 : (keys.tokens + keys.page_size - 1) / keys.page_size;
  auto const k = c_rows(keys, used + 3);
  auto const v = c_rows(values, used + 3);
  c_tensor const table(keys.pages, c_int, {used});
  return kvpolicy_bind(state, layer, *k, *v, keys.pages == nullptr ? nullptr : static_cast<kvpolicy_tensor const*>(table));
}

}  // namespace kvpolicy_test
