// What a retain left, as its retrieve sees it: tokens by index.
#pragma once

#include <algorithm>
#include <span>

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
