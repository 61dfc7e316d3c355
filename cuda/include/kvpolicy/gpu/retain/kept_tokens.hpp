// What a retain left of each layer, on the device, and how much that is, on the host.
#pragma once

#include <span>
#include <vector>

#include "kvpolicy/gpu/step/arrays.hpp"

namespace kvpolicy::gpu::detail {

/// Of every layer and sequence the tokens that lists name, and from where on every token is there.
template <owning_device D>
class kept_tokens {
 public:
  /// @param device, shape, sequences  of the decoder
  /// @param lists  of a layer: 1, or one for each KV head
  kept_tokens(D& device, cache_shape const& shape, std::int64_t sequences, std::int64_t lists)
      : device_(&device),
        tails_(device, shape.layers, sequences),
        lists_(device, shape.layers, sequences, lists, shape.max_tokens),
        counts_(static_cast<std::size_t>(shape.layers * lists_.rows())) {}

  std::int64_t size() const noexcept { return lists_.lists(); }
  /// The lists of a layer, and every token from `tail` on.
  void put(layer_id layer, std::int64_t sequence, std::span<range_list const> lists, std::int64_t tail) {
    tails_.set(layer.value, sequence, tail);
    lists_.upload(layer, sequence, lists, *device_);
    for (std::size_t l = 0; l < lists.size(); ++l) counts_[place(layer, sequence) + l] = token_count(lists[l]);
  }
  /// Every token.
  void put_all(layer_id layer, std::int64_t sequence) {
    put(layer, sequence, std::vector<range_list>(static_cast<std::size_t>(size())), 0);
  }
  void upload() const { tails_.upload(*device_); }

  /// How many of a sequence's `tokens` tokens are there for a head.
  std::int64_t count(layer_id layer, std::int64_t sequence, head_id head, std::int64_t tokens) const noexcept {
    std::size_t const list = size() == 1 ? 0 : static_cast<std::size_t>(head.value);
    return counts_[place(layer, sequence) + list] + tokens - tails_.get(layer.value, sequence);
  }
  token_lists of(layer_id layer, per_sequence const& lengths, std::int64_t about) const noexcept {
    return lists_.of(layer, tails_.of(layer.value), lengths, about);
  }
  token_lists of_sequence(layer_id layer, std::int64_t sequence, std::int64_t tokens) const noexcept {
    return lists_.of_sequence(layer, sequence, tokens);
  }

 private:
  std::size_t place(layer_id layer, std::int64_t sequence) const noexcept {
    return static_cast<std::size_t>(layer.value * lists_.rows() + sequence * size());
  }

  D* device_;
  step_numbers<D> tails_;
  list_store<D> lists_;
  std::vector<std::int64_t> counts_;  ///< `[layers, sequences, lists]` tokens that lists name
};

}  // namespace kvpolicy::gpu::detail
