// Which tokens a step reads, list by list, as kernels find them.
#pragma once

#include "kvpolicy/gpu/base/rows.hpp"

namespace kvpolicy::gpu {

/// Which tokens each list names, ascending: `named` ones, then a tail that reaches to the sequence's end. Units have
/// `unit_size` tokens: named token i is units[i / unit_size] unit_size + i % unit_size.
struct token_lists {
  buffer<std::int32_t const> units;  ///< `[sequences, lists, stride]`
  std::int64_t stride = 0;
  buffer<std::int32_t const> named;  ///< `[sequences, lists]` tokens; or none: no list names any
  per_sequence tail{{}, no_tail};    ///< its first token, of each sequence's lists or of each list
  per_sequence tokens;               ///< of the sequence; 0: it is not there, and reads nothing
  std::int32_t lists = 1;            ///< of a sequence: 1, or one for each KV head
  std::int32_t tails = 1;            ///< of a sequence: 1, or one for each list
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
    // The three are read at once: none waits for another.
    std::int64_t const tokens = lists.tokens.of(block, sequence);
    tail_ = lists.tail.of(block, lists.tails == 1 ? sequence : static_cast<unsigned>(list));
    std::int32_t named = 0;
    if (lists.named.data != nullptr) named = block.global(lists.named)[list];
    named_ = tokens > 0 ? named : 0;
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

namespace detail {

/// Lists of units by index of other lists, as lists of those' tokens: named units, then every index from `tail` on.
struct named_tokens_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "named_tokens";
  struct arguments {
    buffer<std::int32_t const> units;  ///< `[sequences, heads, stride]`
    std::int64_t stride = 0;
    buffer<std::int32_t const> named;  ///< `[sequences, heads]` indices
    std::int32_t unit_size = 1;
    per_sequence tail;               ///< an index; of each list, or each sequence's lists
    std::int32_t lists_of_tail = 1;  ///< that share one
    token_lists retained;            ///< whose tokens are meant
    buffer<std::int32_t> ids;        ///< `[sequences, heads, id_stride]`
    std::int64_t id_stride = 0;
    buffer<std::int32_t> count;  ///< `[sequences, heads]`
    std::int32_t heads = 1;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const row = static_cast<std::int64_t>(block.y()) * a.heads + block.x();
    list_reader<B> const retained(block, a.retained, block.y(), block.x());
    auto const units = block.global(a.units);
    std::int64_t const tail = a.tail.of(block, static_cast<unsigned>(row / a.lists_of_tail));
    std::int64_t const behind = retained.count() > tail ? retained.count() - tail : 0;
    std::int32_t named = 0;
    if (retained.count() > 0) named = block.global(a.named)[row];
    for (std::int64_t i = block.thread(); i < named + behind; i += B::threads) {
      std::int64_t index = tail + i - named;
      if (i < named) {
        std::int64_t const nth = i / a.unit_size;
        std::int32_t const unit = units[row * a.stride + nth];
        index = static_cast<std::int64_t>(unit) * a.unit_size + (i - nth * a.unit_size);
      }
      block.global(a.ids)[row * a.id_stride + i] = static_cast<std::int32_t>(retained.token(index));
    }
    if (block.thread() == 0) block.global(a.count)[row] = static_cast<std::int32_t>(named + behind);
  }
};

}  // namespace detail
}  // namespace kvpolicy::gpu
