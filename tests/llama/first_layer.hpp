// What layer 0 of the tiny model has for a token: its rows depend on the token's id and position alone.
#pragma once

#include <llama.h>

#include <vector>

#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {

/// Computed by the engine once for each id, and turned to position 0.
class first_layer {
 public:
  explicit first_layer(tiny_shape const& shape);

  /// Within the rounding to the cache's type, of keys that the engine may have turned in its cache too.
  bool is_key(float const* row, llama_token id, llama_pos position, std::int64_t head, float rounding) const;
  bool is_query(float const* row, llama_token id, llama_pos position, std::int64_t head) const;

 private:
  using row = std::vector<float>;

  row turned(float const* by, llama_pos position) const;
  bool is(row const& at_zero, float const* actual, llama_pos position, float rounding) const;

  tiny_shape shape_;
  std::vector<row> keys_;     ///< `[ids, kv_heads]`
  std::vector<row> queries_;  ///< `[ids, q_heads]`
};

}  // namespace kvpolicy::llama::testing
