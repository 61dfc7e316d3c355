// Where rows that were dropped are gone: which tokens a layer still has, by index.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "kvpolicy/detail/retained_tokens.hpp"
#include "kvpolicy/selection.hpp"

namespace kvpolicy {

/// Of one layer, for a rule that makes `lists` lists of it.
class resident_tokens {
 public:
  /// `resident`: one list for each head, or one for all. Throws unsupported where heads differ and the rule's list is one.
  void list(std::span<range_list const> resident, std::size_t lists, std::int64_t tokens) {
    if (resident.size() > lists &&
        !std::ranges::all_of(resident, [&](range_list const& list) { return list == resident.front(); })) {
      throw unsupported(
          "heads have other tokens each, and the policy keeps the same ones in all; begin with an empty sequence");
    }
    if (lists_.count() != lists) lists_ = indexed_lists(lists);
    lists_.reserve(tokens);
    for (std::size_t l = 0; l < lists; ++l) lists_.assign(l, resident[resident.size() == 1 ? 0 : l]);
  }

  retained_tokens tokens() const noexcept { return lists_.tokens(); }
  /// Whether all lists have as many.
  bool alike() const noexcept {
    std::span const counts = tokens().counts;
    return std::ranges::adjacent_find(counts, std::ranges::not_equal_to{}) == counts.end();
  }
  /// A head's tokens of a view; where all lists are alike, head 0's view is of all heads.
  template <kv_cache_view View>
  indexed_view<View> of(View const& view, std::int64_t head) const noexcept {
    retained_tokens const all = tokens();
    return {view, all.counts[all.list(head)], all.of(head), alike() && all.counts.size() > 1 ? all.stride : 0};
  }

 private:
  indexed_lists lists_;
};

/// Throws unsupported where a layer is to keep one of the first tokens that is gone; `resident` empty: none is.
inline void expect_resident(std::span<range_list const> kept, std::span<range_list const> resident, std::int64_t tokens) {
  for (std::size_t l = 0; l < std::max(kept.size(), resident.size()) && !resident.empty(); ++l) {
    range_list const& has = resident[resident.size() == 1 ? 0 : l];
    for (token_range const& wanted : kept[kept.size() == 1 ? 0 : l]) {
      std::int32_t end = wanted.begin;  // the resident tokens from its beginning on
      for (token_range const& range : has) end = range.begin <= end ? std::max(end, range.end) : end;
      if (end >= std::min<std::int64_t>(wanted.end, tokens)) continue;
      throw unsupported("tokens from " + std::to_string(end) +
                        " on are gone in a layer that keeps them under this policy; begin with an empty sequence");
    }
  }
}

}  // namespace kvpolicy
