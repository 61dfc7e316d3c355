// What a block of a prompt's queries reads while the prompt is read: not all before it, but the pages that it may want.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kvpolicy/pools/bounds.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/primitive/top_k.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/signals.hpp"

namespace kvpolicy {

/// Retrieval while a prompt is read. Each block of neighbouring queries reads the first tokens, the recent ones, its own, and
/// of the pages between those that have the most of the block's estimated attention: by KV head, the sum over some of its
/// queries of the softmax over pages of the score of their bounds. Compare docs/methods.md: what MInference and XAttention do
/// alike.
struct prompt_pages {
  static constexpr char const* name = "pages";

  double share = .15;         ///< of the pages between that are read
  std::int32_t least = 1024;  ///< tokens of them, at least
  std::int32_t page = 32;     ///< tokens
  std::int32_t sinks = 64;
  std::int32_t recent = 512;  ///< tokens before the block
  std::int32_t from = 4096;   ///< tokens; blocks that begin before read all
  std::int32_t block = 128;   ///< queries
  std::int32_t every = 16;    ///< of the block's queries, one in so many is asked
  pools::bounds::kind metadata = pools::bounds::kind::mean_deviation;

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("share", p.share, "of the pages between sinks and recent tokens that a block reads");
    visit("least", p.least, "tokens of them, at least");
    visit("page", p.page, "tokens of a page");
    visit("sinks", p.sinks, "first tokens, always read");
    visit("recent", p.recent, "tokens before a block, always read");
    visit("from", p.from, "tokens before a block below which it reads all");
    visit("block", p.block, "queries that read the same");
    visit("every", p.every, "one in so many of a block's queries is asked");
    visit("metadata", p.metadata, "of a page: range (min and max) or spread (mean and std)");
  }

  class state;
  /// Allocates all that there will ever be. Throws invalid_value, as check() does.
  state start(cache_shape const& shape) const;
};

/// Throws invalid_value for what can't be.
inline void check(prompt_pages const& p, cache_shape const& shape) {
  KVPOLICY_EXPECTS(p.share > 0 && p.share <= 1,
                   "a prompt policy's share is " + std::to_string(p.share) + "; it must be above 0 and at most 1");
  auto const at_least = [](std::int32_t value, std::int32_t least, char const* what) {
    KVPOLICY_EXPECTS(value >= least, std::string("a prompt policy's ") + what + " is " + std::to_string(value) +
                                         "; it must be at least " + std::to_string(least));
  };
  at_least(p.page, 1, "page");
  at_least(p.block, 1, "block");
  at_least(p.every, 1, "every");
  at_least(p.least, 0, "least");
  at_least(p.sinks, 0, "sinks");
  at_least(p.recent, 0, "recent");
  at_least(p.from, 0, "from");
  KVPOLICY_EXPECTS(p.from < shape.max_tokens, "a prompt policy from token " + std::to_string(p.from) +
                                                  " on is beyond the context of " + std::to_string(shape.max_tokens));
}

class prompt_pages::state {
 public:
  state(prompt_pages const& how, cache_shape const& shape)
      : how_(how),
        shape_(shape),
        pool_{how.metadata},
        summaries_(pool_.start(shape, segments::pages{how.page})),
        scores_(static_cast<std::size_t>(shape.kv_heads * units())),
        sums_(scores_.size()),
        chosen_(scores_.size()),
        counts_(static_cast<std::size_t>(shape.kv_heads)),
        lists_(static_cast<std::size_t>(shape.kv_heads)) {
    for (range_list& list : lists_) list.reserve(static_cast<std::size_t>(units()) + 2);
  }

  /// What the block reads, whose last query is the view's last token; see attend_block, which cuts lists off at each query's
  /// own row. Valid until the next call.
  template <kv_cache_view View, class Exec>
  selection choose(View const& view, layer_id layer, query_window const& queries, Exec& exec) {
    std::int64_t const tokens = view.tokens();
    std::int64_t const before = tokens - queries.tokens;
    std::int64_t const first = (how_.sinks + how_.page - 1) / how_.page;
    std::int64_t const last = std::max<std::int64_t>(first, (before - how_.recent) / how_.page);
    std::int64_t const pages = last - first;
    std::int64_t const wanted =
        std::max<std::int64_t>((how_.least + how_.page - 1) / how_.page,
                               static_cast<std::int64_t>(std::ceil(how_.share * static_cast<double>(pages))));
    for (range_list& list : lists_) list.clear();
    if (before < how_.from || wanted >= pages) {
      append(lists_[0], 0, tokens, reason::open);
      return {scope::layer, std::span(lists_).first(1), shape_.kv_heads};
    }
    pool_.update(summaries_, view, layer, {0, shape_.kv_heads}, last * how_.page, exec);
    estimate(layer, queries, first, last, exec);
    std::ranges::fill(counts_, static_cast<std::int32_t>(wanted));
    table<float const> const between{sums_.data() + first, shape_.kv_heads, pages, units()};
    table<std::int32_t> const to{chosen_.data(), shape_.kv_heads, wanted, units()};
    top_k(between, counts_, to, exec);
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      range_list& list = lists_[static_cast<std::size_t>(h)];
      append(list, 0, first * how_.page, reason::sink);
      for (std::int64_t i = 0; i < wanted; ++i) {
        std::int64_t const at = (first + to(h, i)) * how_.page;
        append(list, at, at + how_.page, reason::scored);
      }
      append(list, last * how_.page, tokens, reason::recent);
    }
    return {scope::head, lists_, shape_.kv_heads};
  }

  /// Tokens from `tokens` on are gone or others.
  void cut(std::int64_t tokens) noexcept {
    for (std::int64_t l = 0; l < shape_.layers; ++l) summaries_.cut({l}, {0, shape_.kv_heads}, tokens);
  }

 private:
  std::int64_t units() const noexcept { return (shape_.max_tokens + how_.page - 1) / how_.page; }

  /// Attention of the block to pages [first, last), summed over the queries that are asked: the last of the block, and back.
  template <class Exec>
  void estimate(layer_id layer, query_window const& queries, std::int64_t first, std::int64_t last, Exec& exec) {
    std::ranges::fill(sums_, 0.0f);
    table<float> const scores{scores_.data(), shape_.kv_heads, last, units()};
    for (std::int64_t t = queries.tokens - 1; t >= 0; t -= how_.every) {
      query_heads const query{queries.at(t, 0), queries.heads, queries.head_stride, queries.scale};
      score_bounds(query, summaries_.of(layer), last, group_merge::maximum, scores, exec);
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        std::span const row(scores.row(h) + first, static_cast<std::size_t>(last - first));
        for (float& score : row) score = std::isnan(score) ? -std::numeric_limits<float>::max() : score;
        float const most = *std::ranges::max_element(row);
        float total = 0;
        for (float& score : row) total += score = std::exp((score - most) * queries.scale);
        float* const to = sums_.data() + h * units() + first;
        for (std::size_t i = 0; i < row.size(); ++i) to[i] += row[i] / total;
      }
    }
  }

  prompt_pages how_;
  cache_shape shape_;
  pools::bounds pool_;
  pools::bounds::summaries summaries_;
  std::vector<float> scores_;         ///< `[kv_heads, units]`
  std::vector<float> sums_;           ///< `[kv_heads, units]`
  std::vector<std::int32_t> chosen_;  ///< `[kv_heads, units]`
  std::vector<std::int32_t> counts_;  ///< `[kv_heads]`
  std::vector<range_list> lists_;     ///< `[kv_heads]`
};

inline prompt_pages::state prompt_pages::start(cache_shape const& shape) const {
  check(*this, shape);
  return {*this, shape};
}

}  // namespace kvpolicy
