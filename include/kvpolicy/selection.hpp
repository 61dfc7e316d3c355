// Selections: which tokens a step reads, and why, for each KV head, each layer or the whole request.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// How fine a policy selects: one list for the whole request, for each layer, or for each KV head of a layer.
enum class scope : std::uint8_t { request, layer, head };

/// Names a scope.
/// @param value  the scope
/// @return "request", "layer" or "head"
constexpr char const* name_of(scope value) noexcept {
  return value == scope::request ? "request" : value == scope::layer ? "layer" : "head";
}

/// Why a step reads a range of tokens.
/// `sink`: first tokens; `scored`: the selector chose them; `recent`: the window names them; `open`: their unit is not complete
/// yet, or they were generated after the choice.
enum class reason : std::uint8_t { sink, scored, recent, open };

/// Names a reason.
/// @param value  the reason
/// @return "sink", "scored", "recent" or "open"
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

/// Ranges in ascending order, disjoint, none of them empty. Neighbours with different reasons may touch.
using range_list = std::vector<token_range>;

/// Appends a range. Within the list's capacity this does not allocate.
/// Only the part after the list's end is appended. It extends the last range if both touch and have the same reason.
/// @param list  the list
/// @param begin  the first token
/// @param end  the token after the last
/// @param why  the reason
inline void append(range_list& list, std::int64_t begin, std::int64_t end, reason why) {
  if (!list.empty()) begin = std::max<std::int64_t>(begin, list.back().end);
  if (begin >= end) return;
  if (!list.empty() && list.back().end == begin && list.back().why == why) {
    list.back().end = static_cast<std::int32_t>(end);
  } else {
    list.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end), why});
  }
}

/// Drops a list's tokens from `tokens` on.
/// @param list  the list
/// @param tokens  the first token that is dropped
inline void truncate(range_list& list, std::int64_t tokens) {
  while (!list.empty() && list.back().begin >= tokens) list.pop_back();
  if (!list.empty()) list.back().end = static_cast<std::int32_t>(std::min<std::int64_t>(list.back().end, tokens));
}

/// Visits a list's tokens in their order.
/// @param list  the list
/// @param visit  is called as `visit(token)`, an int32
template <class Visit>
void each_token(range_list const& list, Visit visit) {
  for (token_range const& range : list) {
    for (std::int32_t t = range.begin; t < range.end; ++t) visit(t);
  }
}

/// Finds a head's list.
/// @param lists  one for all heads, or one for each
/// @param head  the head
/// @return its list
inline range_list const& list_of(std::span<range_list const> lists, std::int64_t head) noexcept {
  return lists[lists.size() == 1 ? 0 : static_cast<std::size_t>(head)];
}

/// Counts tokens.
/// @param list  the list
/// @return the tokens of all its ranges
inline std::int64_t token_count(range_list const& list) noexcept {
  std::int64_t count = 0;
  for (token_range const& range : list) count += range.size();
  return count;
}

/// Counts, for each token of a run, how many of a list's tokens lie before it.
/// @param list  the list
/// @param first  the run's first token; may be negative
/// @param out  a count for each of tokens [first, first + out.size())
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

/// A non-owning view of the lists that a request holds. It is valid until the request's next verb.
class selection {
 public:
  selection() = default;
  /// Makes a selection of lists.
  /// @param granularity  the scope of the lists
  /// @param lists  one list, or `[kv_heads]` if the scope is head; not owned
  /// @param kv_heads  KV heads of a layer
  /// @param step_tokens  tokens of the step that reads them all at once; 0: not known
  selection(scope granularity, std::span<range_list const> lists, std::int64_t kv_heads, std::int64_t step_tokens = 0) noexcept
      : lists_(lists), kv_heads_(kv_heads), step_tokens_(step_tokens), scope_(granularity) {}

  scope granularity() const noexcept { return scope_; }
  std::int64_t kv_heads() const noexcept { return kv_heads_; }
  /// The tokens of the step that the lists were chosen for; 0 where that is not known.
  std::int64_t step_tokens() const noexcept { return step_tokens_; }

  /// Returns the tokens that a KV head reads.
  /// @param head  the KV head
  /// @return its list
  /// @throws invalid_value for a head that is none of the lists'
  range_list const& of(head_id head) const {
    KVPOLICY_EXPECTS(head.value >= 0 && (scope_ != scope::head || head.value < std::ssize(lists_)) && !lists_.empty(),
                     "KV head " + std::to_string(head.value) + " of " + std::to_string(lists_.size()) +
                         " lists; query head h reads KV head h / (q_heads / kv_heads)");
    return lists_[scope_ == scope::head ? static_cast<std::size_t>(head.value) : 0];
  }

  /// The number of tokens, summed over the layer's KV heads.
  std::int64_t tokens() const noexcept {
    std::int64_t count = 0;
    for (range_list const& list : lists_) count += token_count(list);
    return scope_ == scope::head ? count : count * kv_heads_;
  }

  std::span<range_list const> lists() const noexcept { return lists_; }

 private:
  std::span<range_list const> lists_;
  std::int64_t kv_heads_ = 0;
  std::int64_t step_tokens_ = 0;
  scope scope_ = scope::request;
};

}  // namespace kvpolicy
