// A caller's prompt, checked: what a policy needs of it, as the verbs take it.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kvpolicy/policy.hpp"
#include "tensor.hpp"

namespace kvpolicy::c {

inline void check_scale(float scale) {
  KVPOLICY_EXPECTS(scale > 0 && std::isfinite(scale),
                   "scale is " + std::to_string(scale) + "; set it to the factor of q.k, in most models 1 / sqrt(head_dim)");
}

/// A prompt's queries as floats; those of 16 bits are copied to `floats`.
template <class Backend>
query_window queries_of(kvpolicy_prompt const& prompt, cache_shape const& shape, std::int64_t layer, Backend& backend,
                        std::vector<float>& floats) {
  kvpolicy_dtype const type = float_type_of(prompt.queries);
  std::int64_t const size = type.bits / 8;
  tensor t = checked(
      prompt.queries,
      {.name = "prompt queries", .layer = layer, .dtype = type, .where = backend.vectors, .dense_last = true, .apart = true},
      {{"tokens"}, {"q_heads", shape.q_heads}, {"head_dim", shape.head_dim}});
  check_scale(prompt.scale);
  t = backend.on_host(t, 3, static_cast<std::size_t>(size));
  query_window made{
      reinterpret_cast<float const*>(t.data), t.extent[0], shape.q_heads, t.stride[0] / size, t.stride[1] / size, prompt.scale};
  if (type.bits == 32) return made;
  floats.resize(static_cast<std::size_t>(made.tokens * made.heads * shape.head_dim));
  float* to = floats.data();
  for (std::int64_t i = 0; i < made.tokens * made.heads; ++i) {
    auto const* const from =
        reinterpret_cast<std::uint16_t const*>(t.data) + i / made.heads * made.token_stride + i % made.heads * made.head_stride;
    for (std::int64_t d = 0; d < shape.head_dim; ++d)
      *to++ = element_of(type) == element_type::f16 ? half_to_float(from[d]) : bfloat_to_float(from[d]);
  }
  made.data = floats.data();
  made.head_stride = shape.head_dim;
  made.token_stride = made.heads * shape.head_dim;
  return made;
}

inline rotation rotation_of(kvpolicy_prompt const& prompt, cache_shape const& shape, std::int64_t layer) {
  tensor const t = checked(prompt.inverse_frequencies,
                           {.name = "inverse frequencies", .layer = layer, .dtype = float32, .dense_last = true}, {{"pairs"}});
  KVPOLICY_EXPECTS(t.extent[0] <= shape.head_dim / 2, "inverse frequencies of layer " + std::to_string(layer) +
                                                          ": axis 0 (pairs) has " + std::to_string(t.extent[0]) +
                                                          " elements; rows of " + std::to_string(shape.head_dim) +
                                                          " channels have at most " + std::to_string(shape.head_dim / 2));
  KVPOLICY_EXPECTS(prompt.pairing == KVPOLICY_HALVES || prompt.pairing == KVPOLICY_NEIGHBOURS,
                   "pairing is " + std::to_string(prompt.pairing) + "; it must be KVPOLICY_HALVES or KVPOLICY_NEIGHBOURS");
  return {reinterpret_cast<float const*>(t.data), t.extent[0],
          prompt.pairing == KVPOLICY_HALVES ? rotation::pairing::halves : rotation::pairing::neighbours};
}

/// What the policy needs of the prompt of a layer that now has `tokens` tokens. Queries are where the host reads them, in
/// `floats` if they are not floats.
template <class Backend>
prompt_signals signals_of(kvpolicy_prompt const& prompt, requirements const& needed, cache_shape const& shape,
                          std::int64_t layer, std::int64_t tokens, Backend& backend, std::vector<float>& floats) {
  prompt_signals made{.first = prompt.first};
  made.repeats = {prompt.repeats_begin, prompt.repeats_end};
  if (contains(needed.needs, signals::observation_queries) ||
      (contains(needed.needs, signals::repetition) && !made.repeats.empty())) {
    made.queries = queries_of(prompt, shape, layer, backend, floats);
  }
  if (contains(needed.needs, signals::rotation)) made.rope = rotation_of(prompt, shape, layer);
  if (contains(needed.needs, signals::token_ids)) {
    tensor const ids = checked(prompt.token_ids, {.name = "token ids", .dtype = int32, .dense_last = true},
                               {{"tokens - first", tokens - prompt.first}});
    made.token_ids = {reinterpret_cast<std::int32_t const*>(ids.data), static_cast<std::size_t>(tokens - prompt.first)};
  }
  return made;
}

}  // namespace kvpolicy::c
