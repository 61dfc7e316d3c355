// What a thread of a pooling kernel works on: 8 channels of one unit's tokens.
#pragma once

#include "kvpolicy/gpu/attention/lists.hpp"

namespace kvpolicy::gpu::detail {

/// Tokens that are folded in, of each sequence: [last - newest, last), not below 0, or from `begin` where that is given; units
/// of `unit_size` from `origin` on.
struct pooled_tokens {
  per_sequence last;
  std::int64_t newest = INT64_MAX;
  per_sequence begin{{}, -1};
  std::int32_t unit_size = 1;
  std::int64_t origin = 0;
  std::int64_t later = 0;  ///< last tokens that are not folded in yet; with `lists`' kernels alone
  token_lists lists{};     ///< pool_bounds and pool_mean_deviation alone: tokens are by index in these, `last` is their length
  std::int64_t units = 0;  ///< of any sequence that are touched, at most: the grid's
  std::int64_t unit_base = 0;  ///< the first unit of the output

  template <class B>
  KVPOLICY_KERNEL std::int64_t first(B& block, std::int64_t last_token) const {
    if (begin.values.data != nullptr) return begin.of(block, block.z());
    return newest < last_token ? last_token - newest : 0;
  }
};

/// What one thread of a pooling kernel works on.
struct pool_item {
  std::int64_t unit = 0;
  std::int32_t part = 0;
  std::int64_t begin = 0;  ///< tokens to fold in
  std::int64_t end = 0;
  std::int64_t already = 0;  ///< tokens of the unit that are in
};

template <class B>
KVPOLICY_KERNEL pool_item item_of(B& block, batch_rows const& keys, pooled_tokens const& what, std::int64_t last) {
  std::int64_t const first = what.first(block, last);
  std::int64_t const item = static_cast<std::int64_t>(block.x()) * B::threads + block.thread();
  std::int64_t const nth = item / keys.parts();
  pool_item mine;
  mine.part = static_cast<std::int32_t>(item - nth * keys.parts());
  std::int64_t const unit = (first - what.origin) / what.unit_size + nth;
  mine.unit = unit - what.unit_base;
  std::int64_t const unit_begin = what.origin + unit * what.unit_size;
  mine.begin = unit_begin > first ? unit_begin : first;
  mine.end = unit_begin + what.unit_size < last ? unit_begin + what.unit_size : last;
  mine.already = mine.begin - unit_begin;
  return mine;
}

template <class B>
KVPOLICY_KERNEL pool_item item_of(B& block, batch_rows const& keys, pooled_tokens const& what) {
  return item_of(block, keys, what, what.last.of(block, block.z()));
}

/// A head's keys: those of its list, or all.
template <element_type E, class B>
class pooled_keys {
 public:
  KVPOLICY_KERNEL pooled_keys(B& block, batch_rows const& keys, pooled_tokens const& what)
      : keys_(block, keys, block.z()),
        list_(block, what.lists, block.z(), block.y()),
        listed_(what.lists.units.data != nullptr),
        last_((listed_ ? list_.count() : what.last.of(block, block.z())) - what.later) {}

  KVPOLICY_KERNEL std::int64_t last() const { return last_; }
  /// Calls each(x) with 8 channels of each token of an item, in order.
  template <class Each>
  KVPOLICY_KERNEL void each_row(B& block, pool_item const& item, Each each) const {
    if (!listed_) return keys_.each_row(block.y(), item.begin, item.end, item.part, each);
    for (std::int64_t t = item.begin; t < item.end; ++t) {
      float x[8];
      keys_.load(keys_.offset(block.y(), list_.token(t)), item.part, x);
      each(x);
    }
  }

 private:
  row_reader<E, B> keys_;
  list_reader<B> list_;
  bool listed_;
  std::int64_t last_;
};

}  // namespace kvpolicy::gpu::detail
