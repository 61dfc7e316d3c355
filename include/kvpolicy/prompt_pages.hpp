// Retrieval while a prompt is read: each block of queries reads only some pages of the tokens before it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kvpolicy/detail/signal_checks.hpp"
#include "kvpolicy/pools/bounds.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/primitive/top_k.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/signals.hpp"

namespace kvpolicy {

/// Chooses, while a prompt is read, which tokens each block of neighbouring queries reads.
/// A block reads the first tokens, the recent tokens, its own tokens, and the best pages between. The best pages of a KV head
/// have the most of the block's estimated attention: the sum, over some of the block's queries, of the softmax over pages of
/// the score of their bounds. docs/methods.md compares this with MInference and XAttention.
struct prompt_pages {
  static constexpr char const* name = "pages";

  double share = .3;          ///< fraction of the pages between that a block reads
  std::int32_t least = 1024;  ///< tokens of the pages between that a block reads at least
  std::int32_t page = 32;     ///< tokens of a page
  std::int32_t sinks = 64;    ///< first tokens, always read, rounded up to whole pages
  std::int32_t recent = 512;  ///< tokens before the block, always read
  std::int32_t from = 4096;   ///< tokens; a block that begins before this token reads everything
  std::int32_t block = 128;   ///< queries that read the same tokens
  std::int32_t every = 16;    ///< one in so many of a block's queries is scored
  pools::bounds::kind metadata = pools::bounds::kind::mean_deviation;  ///< how a page is summarised

  /// Visits each parameter, for command lines and bindings.
  /// @param p  the parameters
  /// @param visit  called as visit(name, member, description)
  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("share", p.share, "share of the pages between sinks and recent tokens that a block reads");
    visit("least", p.least, "the fewest tokens that a block reads of these pages");
    visit("page", p.page, "tokens of a page");
    visit("sinks", p.sinks, "first tokens, always read");
    visit("recent", p.recent, "tokens before a block, always read");
    visit("from", p.from, "a block with fewer tokens before it reads all of them");
    visit("block", p.block, "queries that read the same");
    visit("every", p.every, "one query in so many of a block scores the pages");
    visit("metadata", p.metadata, "summary of a page: range (minimum and maximum) or mean_deviation");
  }

  class state;
  /// Begins a sequence, and allocates everything that it needs.
  /// @param shape  the sequence's cache
  /// @return the state
  /// @throws invalid_value as check() does
  state start(cache_shape const& shape) const;
};

/// Checks the parameters against a cache.
/// @param p  the parameters
/// @param shape  the sequence's cache
/// @throws invalid_value if a parameter is out of its range, or `from` is not below `shape.max_tokens`
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
  KVPOLICY_EXPECTS(p.from < shape.max_tokens, "a prompt policy's from is " + std::to_string(p.from) +
                                                  "; it must be below the context of " + std::to_string(shape.max_tokens) +
                                                  " tokens");
}

/// The summaries of one sequence's pages, and the last choice.
class prompt_pages::state {
 public:
  /// Allocates for a sequence. Call prompt_pages::start(), which checks first.
  /// @param how  the parameters
  /// @param shape  the sequence's cache
  state(prompt_pages const& how, cache_shape const& shape)
      : how_(how),
        shape_(shape),
        pool_{how.metadata},
        summaries_(pool_.start(shape, segments::pages{how.page})),
        scores_(static_cast<std::size_t>(shape.kv_heads * units())),
        sums_(scores_.size()),
        chosen_(scores_.size()),
        counts_(static_cast<std::size_t>(shape.kv_heads)),
        lists_(static_cast<std::size_t>(shape.kv_heads)),
        seen_(static_cast<std::size_t>(shape.layers)) {
    for (range_list& list : lists_) list.reserve(static_cast<std::size_t>(units()) + 2);
  }

  /// Chooses what a block reads. Pass the result to attend_block, which ends the lists at each query's own row.
  /// @param view  the cache, with the block's own keys written in `layer`
  /// @param layer  the layer
  /// @param queries  the block's query heads; the last query is of the view's last token
  /// @param exec  the executor
  /// @return one list for each KV head, or one for the layer if the block reads everything; valid until the next call
  /// @throws invalid_value for another cache, layer, or queries that do not fit; or if the block begins before the end of the
  ///         layer's last one, and cut() was not called
  template <kv_cache_view View, class Exec>
  selection choose(View const& view, layer_id layer, query_window const& queries, Exec& exec) {
    std::int64_t const tokens = view.tokens();
    std::int64_t const before = tokens - queries.tokens;
    check_block(view, layer, queries);
    seen_[static_cast<std::size_t>(layer.value)] = tokens;
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

  /// Forgets tokens that were removed or replaced, in every layer.
  /// @param tokens  the first token that is forgotten
  void cut(std::int64_t tokens) noexcept {
    for (std::int64_t l = 0; l < shape_.layers; ++l) summaries_.cut({l}, {0, shape_.kv_heads}, tokens);
    for (std::int64_t& seen : seen_) seen = std::min(seen, tokens);
  }

 private:
  std::int64_t units() const noexcept { return (shape_.max_tokens + how_.page - 1) / how_.page; }

  template <class View>
  void check_block(View const& view, layer_id layer, query_window const& queries) const {
    check_layer(layer, shape_.layers);
    check_view(view, layer, signals::keys, shape_);
    check_heads(queries, shape_, "the block's queries", "queries");
    std::int64_t const tokens = view.tokens();
    KVPOLICY_EXPECTS(queries.tokens >= 1 && queries.tokens <= tokens && tokens <= shape_.max_tokens,
                     "a block of " + std::to_string(queries.tokens) + " queries, the last of " + std::to_string(tokens) +
                         " tokens; the sequence was started for " + std::to_string(shape_.max_tokens));
    std::int64_t const seen = seen_[static_cast<std::size_t>(layer.value)];
    KVPOLICY_EXPECTS(tokens - queries.tokens >= seen,
                     "a block that begins at token " + std::to_string(tokens - queries.tokens) + ", where " +
                         std::to_string(seen) + " were seen; call cut() after tokens were removed or replaced");
  }

  /// Estimates the block's attention to pages [first, last), summed over every `every`-th query, counted from the last.
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
  std::vector<std::int64_t> seen_;    ///< `[layers]` tokens up to the last block's end
};

inline prompt_pages::state prompt_pages::start(cache_shape const& shape) const {
  check(*this, shape);
  return {*this, shape};
}

}  // namespace kvpolicy
