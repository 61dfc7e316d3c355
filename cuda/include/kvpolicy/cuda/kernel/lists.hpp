// Which tokens a step reads, list by list, as kernels find them.
#pragma once

#include "kvpolicy/cuda/rows.hpp"

namespace kvpolicy::cuda {

/// Which tokens each list names, ascending: `named` ones, then a tail that reaches to the sequence's end. Units have
/// `unit_size` tokens: named token i is units[i / unit_size] unit_size + i % unit_size.
struct token_lists {
  buffer<std::int32_t const> units;  ///< `[sequences, lists, stride]`
  std::int64_t stride = 0;
  buffer<std::int32_t const> named;  ///< `[sequences, lists]` tokens; or none: no list names any
  per_sequence tail{{}, no_tail};    ///< its first token
  per_sequence tokens;               ///< of the sequence; 0: it is not there, and reads nothing
  std::int32_t lists = 1;            ///< of a sequence: 1, or one for each KV head
  std::int32_t unit_size = 1;
  std::int64_t about = 0;  ///< tokens that a list has at most, or not many more: how finely attention is split; 0: not known

  static constexpr std::int64_t no_tail = INT32_MAX;
};

/// One head's list.
template <class B>
class list_reader {
 public:
  KVPOLICY_KERNEL list_reader(B& block, token_lists const& lists, unsigned sequence, unsigned head)
      : units_(block.global(lists.units)), unit_size_(lists.unit_size) {
    std::int64_t const list = static_cast<std::int64_t>(sequence) * lists.lists + (lists.lists == 1 ? 0 : head);
    at_ = list * lists.stride;
    std::int64_t const tokens = lists.tokens.of(block, sequence);
    if (lists.named.data != nullptr && tokens > 0) {
      std::int32_t const named = block.global(lists.named)[list];
      named_ = named;
    }
    tail_ = lists.tail.of(block, sequence);
    count_ = named_ + (tokens > tail_ ? tokens - tail_ : 0);
  }
  KVPOLICY_KERNEL std::int64_t count() const { return count_; }
  KVPOLICY_KERNEL std::int64_t token(std::int64_t i) const {
    if (i >= named_) return tail_ + (i - named_);
    auto const position = static_cast<std::int32_t>(i);
    std::int32_t const nth = unit_size_ == 1 ? position : position / unit_size_;
    std::int32_t const unit = units_[at_ + nth];
    return static_cast<std::int64_t>(unit) * unit_size_ + (position - nth * unit_size_);
  }

 private:
  decltype(std::declval<B&>().global(buffer<std::int32_t const>{})) units_;
  std::int64_t at_ = 0;
  std::int64_t named_ = 0;
  std::int64_t tail_ = 0;
  std::int64_t count_ = 0;
  std::int32_t unit_size_;
};

}  // namespace kvpolicy::cuda
