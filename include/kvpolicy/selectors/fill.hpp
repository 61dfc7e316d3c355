// Selector fill: chooses sentences by falling score until the budget is spent (SentenceKV, sec. 4.2).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/primitive/fill.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy::selectors {

/// Chooses whole sentences by falling score until the budget's tokens are spent (SentenceKV, sec. 4.2). If the last sentence
/// does not fit, its first tokens are read.
struct fill {
  static constexpr scope coarsest = scope::head;

  template <class Score, class Pool, class Segment, class Budget>
  static consteval bool fits() {
    static_assert(writes_scores<Score, Pool, Segment>,
                  "the scorer lacks score(input, out, exec) for this pool's summaries, which selectors::fill calls");
    static_assert(!Budget::reads_scores,
                  "selectors::fill spends a number of tokens; a budget that reads scores is selectors::top's");
    static_assert(
        Segment::ragged && requires(summaries_of<Pool, Segment> & s) { s.index_ends(layer_id{}, std::int64_t{}); },
        "selectors::fill takes ragged units, whose pool has units(), tokens, open_begin() and index_ends(layer, head): "
        "pools::unit_mean");
    return true;
  }

  /// Reads everything retained at three kinds of tokens, as the authors' code does: the first token behind the prompt, a token
  /// that ends a sentence, and the token behind that one.
  bool all_after_boundary = false;

  /// Buffers of one call.
  struct scratch {
    std::vector<float> scores;        ///< `[kv_heads, most units]`
    std::vector<std::int32_t> sizes;  ///< `[units]` retained tokens of each unit without protected ones
    std::vector<std::int32_t> taken;  ///< `[units]` tokens that are chosen of each unit
    std::int64_t most = 0;            ///< most units
  };

  /// Throws invalid_value if a count budget can't hold the window's tokens.
  template <class Keep>
  void check(Keep const& keep, cache_shape const& shape) const {
    if (keep.budget.relative()) return;
    std::int64_t const budget = keep.budget.most_tokens(shape);
    expect_room(budget, keep.window.at(shape.max_tokens, shape.max_tokens, budget).counted);
  }
  template <class Keep>
  std::int64_t max_ranges(Keep const& keep, cache_shape const& shape) const {
    return shape.max_tokens / keep.segment.shortest + 1;
  }
  template <class Keep>
  scratch start(Keep const& keep, cache_shape const& shape) const {
    auto const most = static_cast<std::size_t>(max_ranges(keep, shape));
    return {std::vector<float>(most * static_cast<std::size_t>(shape.kv_heads)), std::vector<std::int32_t>(most),
            std::vector<std::int32_t>(most), static_cast<std::int64_t>(most)};
  }

  /// Calls emit(list, begin, end) for the chosen tokens of each unit, ascending, by index among the retained tokens.
  template <class Keep, class Input, executor Exec, class Emit>
  void select(Keep const& keep, scratch& s, Input& input, protected_tokens const& safe, Exec& exec, Emit emit) const {
    auto& summaries = input.summaries;
    std::int64_t const units = summaries.units();
    if (units == 0) return;
    table<float> const scores{s.scores.data(), input.heads.count, units, s.most};
    keep.score.score(input, scores, exec);
    budget_request const request{
        .shape = input.view.shape(), .layer = input.layer, .heads = input.heads, .tokens = summaries.tokens};
    std::int64_t const budget = keep.budget.of(request) - safe.counted;
    bool const at_boundary = summaries.tokens - summaries.open_begin() == 1 || summaries.last_closes() ||
                             summaries.tokens == input.prompt_tokens + 1;
    bool const everything = all_after_boundary && at_boundary;
    for (std::int64_t h = 0; h < input.heads.count; ++h) {
      std::int32_t const* const ends = summaries.index_ends(input.layer, input.heads.first + h);
      auto const begin_of = [&](std::int64_t u) { return std::max<std::int64_t>(u == 0 ? 0 : ends[u - 1], safe.sink_end); };
      auto const count = static_cast<std::size_t>(units);
      for (std::int64_t u = 0; u < units; ++u) {
        std::int64_t const size = std::min<std::int64_t>(ends[u], safe.recent_begin) - begin_of(u);
        s.sizes[static_cast<std::size_t>(u)] = static_cast<std::int32_t>(std::max<std::int64_t>(size, 0));
      }
      std::span const taken = std::span(s.taken).first(count);
      if (everything) std::copy_n(s.sizes.begin(), units, taken.begin());
      else kvpolicy::fill(std::span<float const>(scores.row(h), count), std::span(s.sizes).first(count), budget, taken);
      for (std::int64_t u = 0; u < units; ++u) {
        std::int32_t const tokens = taken[static_cast<std::size_t>(u)];
        if (tokens > 0) emit(h, begin_of(u), begin_of(u) + tokens);
      }
    }
  }
};

static_assert(part<fill>);

}  // namespace kvpolicy::selectors
