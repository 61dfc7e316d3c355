// Selectors top and top_of_layer: choose each list's best units within its budget.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/score_input.hpp"

namespace kvpolicy::selectors {

/// How the scores of a unit's tokens become the unit's score.
enum class merge : std::uint8_t { mean, sum, maximum };
constexpr auto names_of(merge) noexcept { return std::array{"mean", "sum", "maximum"}; }

/// Chooses each list's best units within its budget. Protected tokens are always kept and count.
/// @tparam Finest  scope::head: one list for each KV head; scope::layer: one for the layer, by its heads' merged scores
template <scope Finest>
struct basic_top {
  static constexpr scope coarsest = Finest;

  template <class Score, class Pool, class Segment, class Budget>
  static consteval bool fits() {
    static_assert(writes_scores<Score, Pool, Segment>,
                  "the scorer lacks score(input, out, exec) for this pool's summaries, which selectors::top calls");
    static_assert(allocates<Budget>, "the budget lacks allocate(request, scores, units, exec), which selectors::top calls");
    static_assert(!Segment::ragged, "selectors::top takes units of one size; ragged ones are selectors::fill's");
    return true;
  }

  static constexpr bool reads_keys = false;  ///< whether a choice reads keys, beside those that the scorer reads

  merge by = merge::mean;    ///< merges token scores into a unit's, where units are longer than one token
  merge heads = merge::sum;  ///< merges the scores of a layer's heads, where they share a list: sum or maximum

  /// Buffers of one call.
  struct scratch {
    std::vector<float> scores;          ///< `[score rows, columns]`
    std::vector<std::int32_t> indices;  ///< `[lists, most]` chosen units
    std::vector<std::int32_t> k;        ///< `[lists]` units that each list takes
    std::int64_t columns = 0;           ///< most tokens or units that are scored
    std::int64_t most = 0;              ///< most units of a list
  };

  /// Throws invalid_value if a count budget can't hold the window's tokens.
  template <class Keep>
  void check(Keep const& keep, cache_shape const& shape) const {
    KVPOLICY_EXPECTS(heads != merge::mean, "heads that share a list are merged by sum or maximum; their mean ranks as the sum");
    if (keep.budget.relative()) return;  // a window that exceeds its share is cut
    // The fewest tokens that any list may get.
    std::int64_t const each =
        std::min(keep.budget.most_tokens(shape),
                 keep.budget.of({.shape = shape, .tokens = shape.max_tokens, .prompt = shape.max_tokens}));
    if (covers(keep, shape)) return;
    std::int64_t const budget = each / keep.segment.unit_size() * keep.segment.unit_size();
    std::int64_t const prompt = keeps_prompt(keep.window) ? 0 : shape.max_tokens;  // what comes after a kept prompt counts
    protected_tokens const window = keep.window.at(shape.max_tokens, prompt, budget);
    // What evicts at each step keeps the current token by its score, if the window does not.
    bool const by_score =
        Keep::trigger_type::while_decoding && window.recent_begin == shape.max_tokens && window.sink_end < shape.max_tokens;
    expect_room(budget, window.counted + (by_score ? 1 : 0));
  }

  template <class Keep>
  scratch start(Keep const& keep, cache_shape const& shape) const {
    std::int64_t const size = keep.segment.unit_size();
    std::int64_t const rows_of_scores = Keep::granularity == scope::request ? 1 : shape.kv_heads;
    scratch made;
    made.columns = keep.score.of == scored::tokens ? shape.max_tokens : (shape.max_tokens + size - 1) / size;
    made.most = max_ranges(keep, shape);
    made.scores.resize(static_cast<std::size_t>(rows_of_scores * made.columns));
    made.indices.resize(static_cast<std::size_t>(rows_of_scores * made.most));
    made.k.resize(static_cast<std::size_t>(rows_of_scores));
    return made;
  }

  /// Returns the most units that a list keeps, protected ones included.
  template <class Keep>
  std::int64_t max_ranges(Keep const& keep, cache_shape const& shape) const {
    std::int64_t const size = keep.segment.unit_size();
    return std::min((shape.max_tokens + size - 1) / size, keep.budget.most_tokens(shape) / size + 1);
  }

  /// Merges a head's score into that of the list which the heads share.
  /// @param of_list  receives the merged score
  /// @param of_head  the head's
  void merge_heads(float& of_list, float of_head) const noexcept {
    if (heads == merge::sum) of_list += of_head;
    else if (!(of_head <= of_list)) of_list = of_head;
  }

  /// The units that a choice is made among.
  struct candidates {
    budget_request request;  ///< complete, the window's fields included
    std::int64_t first = 0;  ///< first candidate unit
    std::int64_t count = 0;  ///< candidate units
    bool any = false;        ///< there are candidates, and the budget has room beside the protected tokens
  };
  /// Finds the units between the protected tokens.
  /// @param keep  the rule
  /// @param request  shape, layer, heads, tokens and prompt of the choice; the window's fields are filled in here
  /// @param safe  the protected tokens
  /// @return the candidates
  template <class Keep>
  candidates candidates_of(Keep const& keep, budget_request request, protected_tokens const& safe) const {
    std::int64_t const size = keep.segment.unit_size();
    request.forced = safe.counted;
    request.recent = safe.recent;
    request.unit_size = size;
    std::int64_t const first = safe.sink_end / size;
    std::int64_t const count = std::max<std::int64_t>(0, (safe.recent_begin + size - 1) / size - first);
    bool const room = safe.counted == 0 || covers(keep, request.shape) || keep.budget.of(request) > safe.counted;
    return {request, first, count, count > 0 && room};
  }
  /// Writes how many candidates each list takes.
  /// @param keep  the rule
  /// @param among  the candidates
  /// @param scores  `[lists, among.count]`; empty for a budget that reads no scores
  /// @param units  `[lists]`, receives the numbers of units
  /// @param exec  runs the budget's primitives
  /// @throws any exception of the budget's allocate()
  template <class Keep, class Exec>
  void allot(Keep const& keep, candidates const& among, table<float const> scores, std::span<std::int32_t> units,
             Exec& exec) const {
    if (covers(keep, among.request.shape)) std::ranges::fill(units, static_cast<std::int32_t>(among.count));
    else keep.budget.allocate(among.request, scores, units, exec);
    std::int64_t const most = std::min(among.count, max_ranges(keep, among.request.shape));
    for (std::int32_t& taken : units) taken = static_cast<std::int32_t>(std::min<std::int64_t>(taken, most));
  }

  /// Calls emit(list, begin, end) for each list's chosen units, ascending. The caller removes protected tokens from the ranges.
  template <class Keep, class Input, executor Exec, class Emit>
  void select(Keep const& keep, scratch& s, Input& input, protected_tokens const& safe, Exec& exec, Emit emit) const {
    std::int64_t const size = keep.segment.unit_size();
    std::int64_t const lists = Keep::granularity == scope::head ? input.heads.count : 1;
    cache_shape const shape = input.view.shape();
    budget_request const request{.shape = shape,
                                 .layer = input.layer,
                                 .heads = input.heads,
                                 .tokens = input.tokens,
                                 .prompt = input.prompt_tokens,
                                 .gone = input.gone};
    candidates const among = candidates_of(keep, request, safe);
    if (!among.any) return;
    table<float> scores{};
    std::span const k = std::span(s.k).first(static_cast<std::size_t>(lists));
    if constexpr (Keep::budget_type::reads_scores) {
      scores = scored_units(keep, s, input, among, safe, exec);
      allot(keep, among, scores, k, exec);
    } else {
      allot(keep, among, {}, k, exec);
      if (std::ranges::any_of(k, [&](std::int32_t units) { return units > 0 && units < among.count; })) {
        scores = scored_units(keep, s, input, among, safe, exec);
      }
    }
    for (std::int32_t& units : k) units = static_cast<std::int32_t>(std::min<std::int64_t>(units, s.most));
    table<std::int32_t> const indices{s.indices.data(), lists, s.most, s.most};
    if (scores.data != nullptr) top_k(table<float const>(scores), k, indices, exec);
    for (std::int64_t list = 0; list < lists; ++list) {
      for (std::int64_t i = 0; i < k[static_cast<std::size_t>(list)]; ++i) {
        std::int64_t const unit = among.first + (scores.data != nullptr ? indices(list, i) : i);
        emit(list, unit * size, (unit + 1) * size);
      }
    }
  }

 private:
  /// Whether the budget holds the longest sequence: then lists keep all of it.
  template <class Keep>
  static bool covers(Keep const& keep, cache_shape const& shape) noexcept {
    if constexpr (requires { keep.budget.covers(shape); }) return keep.budget.covers(shape);
    else return false;
  }
  /// Returns the candidates' scores, `[lists, candidates]`.
  template <class Keep, class Input, executor Exec>
  table<float> scored_units(Keep const& keep, scratch& s, Input& input, candidates const& among, protected_tokens const& safe,
                            Exec& exec) const {
    std::int64_t const size = keep.segment.unit_size();
    std::int64_t const rows = Keep::score_type::granularity == scope::head ? input.heads.count : 1;
    bool const by_token = keep.score.of == scored::tokens;
    table<float> const scores{s.scores.data(), rows, by_token ? safe.recent_begin : among.first + among.count, s.columns};
    keep.score.score(input, scores, exec);
    if (Keep::granularity != Keep::score_type::granularity) {
      for (std::int64_t h = 1; h < rows; ++h) {
        for (std::int64_t c = 0; c < scores.columns; ++c) {
          merge_heads(scores(0, c), scores(h, c));
        }
      }
    }
    std::int64_t const lists = Keep::granularity == scope::head ? rows : 1;
    if (by_token && size > 1) {
      for (std::int64_t l = 0; l < lists; ++l) {
        for (std::int64_t u = among.first; u < among.first + among.count; ++u) {
          scores(l, u) = merged(scores.row(l), std::max(safe.sink_end, u * size), std::min(safe.recent_begin, (u + 1) * size));
        }
      }
    }
    return {scores.data + among.first, lists, among.count, s.columns};
  }

  float merged(float const* scores, std::int64_t begin, std::int64_t end) const noexcept {
    float result = by == merge::maximum ? -std::numeric_limits<float>::infinity() : 0;
    for (std::int64_t t = begin; t < end; ++t) {
      if (by != merge::maximum) result += scores[t];
      else if (!(scores[t] <= result)) result = scores[t];
    }
    return by == merge::mean ? result / static_cast<float>(end - begin) : result;
  }
};

/// Chooses for each KV head.
using top = basic_top<scope::head>;
/// Chooses once for all KV heads of a layer.
using top_of_layer = basic_top<scope::layer>;

static_assert(part<top> && part<top_of_layer>);

}  // namespace kvpolicy::selectors
