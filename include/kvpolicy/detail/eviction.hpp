// Which tokens of a list an eviction leaves.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/detail/layer_lists.hpp"
#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/primitive/top_k.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// What a rule's window protects of a list, within what the list may keep beside a kept prompt.
struct protected_list {
  protected_tokens safe;
  std::int64_t most = 0;
};
/// The same for a list of these heads, of a sequence of `tokens` tokens whose last prompt had `prompt`; rows of `gone` more
/// tokens are gone.
template <class Rule>
protected_list protection(Rule const& rule, cache_shape const& shape, layer_id layer, head_range heads, std::int64_t tokens,
                          std::int64_t prompt, std::int64_t gone = 0) {
  budget_request request{.shape = shape, .layer = layer, .heads = heads, .tokens = tokens, .prompt = tokens, .gone = gone};
  if (!keeps_prompt(rule.window)) prompt = tokens;
  request.recent = rule.window.at(tokens, prompt, rule.budget.of(request)).recent;
  std::int64_t const most = rule.budget.of(request);
  return {clipped(rule.window.at(tokens, prompt, most), tokens, most), most};
}

/// The scratch of evictions: between two of them every new token is kept, with triggers that fire now and then any number.
class eviction {
 public:
  explicit eviction(std::int64_t lists) : scores_(lists, 1) {}

  /// Makes room for lists of so many tokens.
  void reserve(std::int64_t most) {
    scores_.reserve(most);
    chosen_.resize(static_cast<std::size_t>(scores_.room()));
  }
  /// `[lists, most]`, for a scorer to fill: a list's tokens in their order.
  table<float> scores(std::int64_t lists) noexcept { return scores_.rows(0, lists, scores_.room()); }

  /// `left` becomes the protected tokens of a list, and its others with the highest scores: `keep` in all, and those beside the
  /// budget. `scores` `[tokens of the list]` is overwritten.
  template <class Exec>
  void leave(range_list const& list, float* scores, protected_tokens const& safe, std::int64_t keep, range_list& left,
             Exec& exec) {
    std::int64_t count = 0;
    std::int64_t free = 0;  // tokens that are not protected; their scores move to the front
    each_token(list, [&](std::int32_t t) {
      if (t >= safe.sink_end && t < safe.recent_begin) scores[free++] = scores[count];
      ++count;
      keep += t < safe.beside ? 1 : 0;
    });
    left.clear();
    if (keep >= count) return label(list, safe, left);
    std::array const wanted{static_cast<std::int32_t>(std::clamp<std::int64_t>(keep - (count - free), 0, free))};
    table<std::int32_t> const chosen{chosen_.data(), 1, scores_.room(), scores_.room()};
    top_k(table<float const>{scores, 1, free, scores_.room()}, wanted, chosen, exec);
    std::int32_t at = 0;
    std::int32_t next = 0;
    each_token(list, [&](std::int32_t t) {
      if (t < safe.sink_end) append(left, t, t + 1, reason::sink);
      else if (t >= safe.open_begin) append(left, t, t + 1, reason::open);
      else if (t >= safe.recent_begin) append(left, t, t + 1, reason::recent);
      else if (next < wanted[0] && chosen(0, next) == at++) {
        append(left, t, t + 1, reason::scored);
        ++next;
      }
    });
  }

 private:
  /// `left` becomes the whole list, each token with the reason for which it is there now.
  static void label(range_list const& list, protected_tokens const& safe, range_list& left) {
    for (token_range const& range : list) {
      std::int64_t begin = range.begin;
      auto const until = [&](std::int64_t end, reason why) {
        end = std::clamp<std::int64_t>(end, begin, range.end);
        append(left, begin, end, why);
        begin = end;
      };
      until(safe.sink_end, reason::sink);
      until(safe.recent_begin, reason::scored);
      until(safe.open_begin, reason::recent);
      until(range.end, reason::open);
    }
  }

  token_table<float> scores_;
  std::vector<std::int32_t> chosen_;
};

}  // namespace kvpolicy
