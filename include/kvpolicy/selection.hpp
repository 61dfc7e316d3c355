// What choose returns: for each list of KV heads, which tokens this step reads, and why.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// How fine a policy selects: one list for the whole request, one for a layer, or one for each KV head of a layer.
enum class scope : std::uint8_t { request, layer, head };

constexpr char const* name_of(scope value) noexcept {
  return value == scope::request ? "request" : value == scope::layer ? "layer" : "head";
}

/// Why a range of tokens is read. `open`: its unit is not complete yet, or the token was generated after the choice.
enum class reason : std::uint8_t { sink, scored, recent, open };

constexpr char const* name_of(reason value) noexcept {
  constexpr std::array names{"sink", "scored", "recent", "open"};
  return names[static_cast<std::size_t>(value)];
}

/// Tokens [begin, end) of a sequence.
struct token_range {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  reason why = reason::scored;

  constexpr std::int32_t size() const noexcept { return end - begin; }
  bool operator==(token_range const&) const = default;
};

/// Ascending, disjoint, not empty. Neighbours with different reasons may touch.
using range_list = std::vector<token_range>;

/// Appends [begin, end), clipped to what lies behind the list's end, merged with a touching range of the same reason.
/// Does not allocate within the list's capacity.
inline void append(range_list& list, std::int64_t begin, std::int64_t end, reason why) {
  if (!list.empty()) begin = std::max<std::int64_t>(begin, list.back().end);
  if (begin >= end) return;
  if (!list.empty() && list.back().end == begin && list.back().why == why) {
    list.back().end = static_cast<std::int32_t>(end);
  } else {
    list.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end), why});
  }
}

/// Drops every token from `tokens` on.
inline void truncate(range_list& list, std::int64_t tokens) {
  while (!list.empty() && list.back().begin >= tokens) list.pop_back();
  if (!list.empty()) list.back().end = static_cast<std::int32_t>(std::min<std::int64_t>(list.back().end, tokens));
}

inline std::int64_t token_count(range_list const& list) noexcept {
  std::int64_t count = 0;
  for (token_range const& range : list) count += range.size();
  return count;
}

/// Writes how many of a list's tokens lie before each of tokens [first, first + out.size()); `first` may be negative.
inline void count_before(range_list const& list, std::int64_t first, std::span<std::int32_t> out) noexcept {
  auto range = list.begin();
  std::int64_t passed = 0;  // tokens of the ranges before
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::int64_t const token = first + static_cast<std::int64_t>(i);
    for (; range != list.end() && range->end <= token; ++range) passed += range->size();
    std::int64_t const within = range == list.end() ? 0 : std::max<std::int64_t>(0, token - range->begin);
    out[i] = static_cast<std::int32_t>(passed + within);
  }
}

/// A view of the lists that a policy's state holds; valid until the next verb on that state.
class selection {
 public:
  selection() = default;
  selection(scope granularity, std::span<range_list const> lists, std::int64_t kv_heads) noexcept
      : lists_(lists), kv_heads_(kv_heads), scope_(granularity) {}

  scope granularity() const noexcept { return scope_; }
  std::int64_t kv_heads() const noexcept { return kv_heads_; }

  /// The tokens that KV head `head` reads.
  range_list const& of(head_id head) const noexcept {
    return lists_[scope_ == scope::head ? static_cast<std::size_t>(head.value) : 0];
  }

  /// Tokens read, summed over the layer's KV heads.
  std::int64_t tokens() const noexcept {
    std::int64_t count = 0;
    for (range_list const& list : lists_) count += token_count(list);
    return scope_ == scope::head ? count : count * kv_heads_;
  }

  /// The same for one reason.
  std::int64_t tokens(reason why) const noexcept {
    std::int64_t count = 0;
    for (range_list const& list : lists_) {
      for (token_range const& range : list) count += range.why == why ? range.size() : 0;
    }
    return scope_ == scope::head ? count : count * kv_heads_;
  }

  std::span<range_list const> lists() const noexcept { return lists_; }

 private:
  std::span<range_list const> lists_;
  std::int64_t kv_heads_ = 0;
  scope scope_ = scope::request;
};

}  // namespace kvpolicy
