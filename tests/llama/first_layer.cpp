#include "first_layer.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "decoding.hpp"
#include "kvpolicy/presets/full.hpp"

namespace kvpolicy::llama::testing {

first_layer::first_layer(tiny_shape const& shape) : shape_(shape) {
  auto const see = [&](llama_seq_id, layer_id layer, layer_table_view const& view, query_heads const& queries, simd_exec&) {
    if (layer.value != 0) return;
    auto const at = static_cast<llama_pos>(view.tokens()) - 1;
    row key(static_cast<std::size_t>(shape.head_dim));
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      view.keys(layer).load({h}, {at}, key);
      keys_.push_back(turned(key.data(), -at));
    }
    for (std::int64_t h = 0; h < shape.q_heads; ++h) queries_.push_back(turned(queries.data + h * queries.head_stride, -at));
  };
  model_owner const model = tiny_llama(shape);
  session all(presets::full{}, {.on_queries = see});
  decoder steps(model.get(), &all);
  for (llama_token id = 0; id < tiny_vocabulary; ++id) steps.feed(id);
}

bool first_layer::is_key(float const* actual, llama_token id, llama_pos position, std::int64_t head, float rounding) const {
  return is(keys_[static_cast<std::size_t>(id * shape_.kv_heads + head)], actual, position, rounding);
}
bool first_layer::is_query(float const* actual, llama_token id, llama_pos position, std::int64_t head) const {
  return is(queries_[static_cast<std::size_t>(id * shape_.q_heads + head)], actual, position, .03f);
}

/// The llama architecture's rotary embedding, of neighbouring channels.
first_layer::row first_layer::turned(float const* by, llama_pos position) const {
  row made(static_cast<std::size_t>(shape_.head_dim));
  for (std::size_t i = 0; i < made.size(); i += 2) {
    double const angle = position * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(made.size()));
    made[i] = static_cast<float>(by[i] * std::cos(angle) - by[i + 1] * std::sin(angle));
    made[i + 1] = static_cast<float>(by[i] * std::sin(angle) + by[i + 1] * std::cos(angle));
  }
  return made;
}

bool first_layer::is(row const& at_zero, float const* actual, llama_pos position, float rounding) const {
  row const expected = turned(at_zero.data(), position);
  return std::ranges::equal(expected, std::span(actual, expected.size()),
                            [&](float a, float b) { return std::abs(a - b) < rounding; });
}

}  // namespace kvpolicy::llama::testing
