// What a retain left, as its retrieve sees it: tokens by index.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// The tokens of one layer that a retain left: in index order, list by list; or every token.
struct retained_tokens {
  std::int32_t const* ids = nullptr;  ///< `[lists, stride]` ascending tokens, or null: every token is there
  std::int64_t stride = 0;
  std::span<std::int64_t const> counts{};  ///< `[lists]`, one list for each head or one for all

  bool all() const noexcept { return ids == nullptr; }
  std::size_t list(std::int64_t head) const noexcept { return counts.size() == 1 ? 0 : static_cast<std::size_t>(head); }
  std::int32_t const* of(std::int64_t head) const noexcept { return ids + static_cast<std::int64_t>(list(head)) * stride; }
  /// How many of a head's tokens come before `token`.
  std::int64_t index_of(std::int64_t head, std::int64_t token) const noexcept {
    if (all()) return token;
    return std::lower_bound(of(head), of(head) + counts[list(head)], token) - of(head);
  }
  /// Calls visit(begin, end) for ranges of tokens, ascending, that together are a head's indices [begin, end).
  template <class Visit>
  void each_range(std::int64_t head, std::int64_t begin, std::int64_t end, Visit visit) const {
    if (all()) return visit(begin, end);
    for (std::int64_t i = begin; i < end; ++i) visit(std::int64_t{of(head)[i]}, std::int64_t{of(head)[i]} + 1);
  }
};

/// A layer's lists of tokens by index.
class indexed_lists {
 public:
  indexed_lists() = default;
  explicit indexed_lists(std::size_t lists) : ids_(static_cast<std::int64_t>(lists), 1), counts_(lists) {}

  /// Makes room for so many tokens in each list.
  void reserve(std::int64_t tokens) { ids_.reserve(tokens); }
  retained_tokens tokens() const noexcept { return {ids_.row(0), ids_.stride(), counts_}; }
  std::size_t count() const noexcept { return counts_.size(); }
  std::int64_t count(std::size_t list) const noexcept { return counts_[list]; }
  /// How many of a list's tokens come before `token`.
  std::int64_t before(std::size_t list, std::int64_t token) const noexcept {
    return std::lower_bound(of(list), of(list) + counts_[list], token) - of(list);
  }
  /// Leaves the first `count` tokens of a list.
  void cut(std::size_t list, std::int64_t count) noexcept { counts_[list] = count; }
  /// The tokens of these ranges that are not before `first` come behind those that a list has.
  void append(std::size_t list, range_list const& from, std::int64_t first) {
    std::int32_t* const ids = of(list);
    auto next = std::ranges::partition_point(from, [&](token_range const& range) { return range.end <= first; });
    for (; next != from.end(); ++next) {
      for (std::int64_t t = std::max<std::int64_t>(next->begin, first); t < next->end; ++t) {
        ids[counts_[list]++] = static_cast<std::int32_t>(t);
      }
    }
  }
  /// All tokens of a list again. How many of the first ones are as before.
  std::int64_t assign(std::size_t list, range_list const& from) {
    std::int32_t* const ids = of(list);
    std::int64_t count = 0;
    std::int64_t same = 0;
    for (token_range const& range : from) {
      for (std::int32_t t = range.begin; t < range.end; ++t, ++count) {
        if (same == count && count < counts_[list] && ids[count] == t) ++same;
        ids[count] = t;
      }
    }
    counts_[list] = count;
    return same;
  }

  template <class Archive>
  void archive(Archive& a) {
    a(ids_, counts_);
  }

 private:
  std::int32_t* of(std::size_t list) noexcept { return ids_.row(static_cast<std::int64_t>(list)); }
  std::int32_t const* of(std::size_t list) const noexcept { return ids_.row(static_cast<std::int64_t>(list)); }

  token_table<std::int32_t> ids_;     ///< `[lists, tokens]`
  std::vector<std::int64_t> counts_;  ///< `[lists]`
};

/// Calls work(view of the tokens that are there, KV heads) for all heads at once where they see the same, else for each.
template <kv_cache_view View, class Work>
void each_group(View const& view, retained_tokens const& retained, std::int64_t kv_heads, bool by_head, Work work) {
  if (retained.all()) return work(view, head_range{0, kv_heads});
  for (std::int64_t h = 0; h < (by_head ? kv_heads : 1); ++h) {
    indexed_view<View> const indices{view, retained.counts[retained.list(h)], retained.of(h), 0};
    work(indices, by_head ? head_range{h, 1} : head_range{0, kv_heads});
  }
}

}  // namespace kvpolicy
