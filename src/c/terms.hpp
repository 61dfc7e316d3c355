// What a model adds to attention, as a caller's tensors say it.
#pragma once

#include <cmath>
#include <string>

#include "kvpolicy/primitive/attention_terms.hpp"
#include "tensor.hpp"

namespace kvpolicy::c {

/// Throws invalid_value for a cap that is no number or negative, and for tensors of another length, type or place.
inline attention_terms terms_of(kvpolicy_terms const& given, cache_shape const& shape, std::int64_t layer, place where) {
  KVPOLICY_EXPECTS(given.soft_cap >= 0 && std::isfinite(given.soft_cap),
                   "a soft cap of " + std::to_string(given.soft_cap) + "; give 0 for none, or more than that");
  auto const floats = [&](kvpolicy_tensor const* of, char const* name) -> float const* {
    if (of == nullptr) return nullptr;
    tensor const t = checked(of, {.name = name, .layer = layer, .dtype = float32, .where = where, .dense_last = true},
                             {{"q_heads", shape.q_heads}});
    return reinterpret_cast<float const*>(t.data);
  };
  return {.soft_cap = given.soft_cap, .slopes = floats(given.slopes, "slopes"), .sinks = floats(given.sinks, "sinks")};
}

}  // namespace kvpolicy::c
