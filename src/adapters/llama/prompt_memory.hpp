// What a session remembers of a sequence's prompt for policies that ask: last queries of each layer, and token ids.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "kvpolicy/interop/llama.hpp"
#include "nodes.hpp"

namespace kvpolicy::llama {

class prompt_memory {
 public:
  /// Room for the last `queries` queries of each layer, as many as the cache has cells at most; growing forgets.
  void reserve(cache_shape const& shape, std::int64_t queries);
  /// No room for queries any more; what was kept of them is forgotten.
  void release() noexcept;

  /// Appends the last queries of one layer, of these tokens of the micro-batch; they are the sequence's from `first` on.
  void keep(std::int64_t layer, graph_queries const& q, std::span<std::int32_t const> tokens, std::int64_t first);
  void keep_id(std::int64_t token, std::int32_t id);

  /// The last queries up to token `end`, or none.
  query_window window_of(std::int64_t layer, std::int64_t end, float scale) const noexcept;
  /// Ids of tokens [first, end), or none where they are not all known.
  std::span<std::int32_t const> ids_of(std::int64_t first, std::int64_t end) const noexcept;

  bool keeps_queries() const noexcept { return room_ > 0; }
  /// Queries of a layer that are kept, at most.
  std::int64_t room() const noexcept { return room_; }
  void forget(std::int64_t tokens) noexcept;

  /// Of the first `until` tokens.
  saved_prompt save(std::int64_t until = std::numeric_limits<std::int64_t>::max()) const;
  void load(saved_prompt const& saved);
  /// load(other.save(until)) of the same cache.
  void take_over(prompt_memory const& other, std::int64_t until);

 private:
  std::int64_t row() const noexcept { return shape_.q_heads * shape_.head_dim; }

  struct span_of_layer {
    std::int64_t count = 0;  ///< queries
    std::int64_t end = 0;    ///< token behind the last of them
  };
  /// Up to token `until`, what every layer has.
  span_of_layer of_all_layers(std::int64_t until) const noexcept;
  /// So many of a layer, before token `end`.
  float const* last_queries(std::int64_t layer, std::int64_t count, std::int64_t end) const noexcept;

  cache_shape shape_{};
  std::int64_t room_ = 0;
  std::unique_ptr<float[]> queries_;  ///< `[layers, room, q_heads, head_dim]`, oldest first; written before it is read
  std::vector<span_of_layer> kept_;
  std::vector<std::int32_t> ids_;
};

}  // namespace kvpolicy::llama
