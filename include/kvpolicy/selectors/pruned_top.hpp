// Selector pruned_top: of each list's best units, the fewest tokens that hold a share of the attention (Twilight).
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/primitive/list_attention.hpp"
#include "kvpolicy/primitive/top_k.hpp"
#include "kvpolicy/selectors/top.hpp"

namespace kvpolicy::selectors {

/// Chooses each list's best units within its budget, and of their tokens the fewest that hold a share of the attention
/// (Twilight, Lin et al. 2025, arXiv 2502.02770). A head with spread attention reads more than a head that looks at one place.
/// The weights are real: a softmax of q.k over the units that were chosen and the protected tokens. Protected tokens are read
/// in any case, and their weights count. Each query head of a KV head names its own tokens; the KV head reads all of them.
struct pruned_top {
  static constexpr scope coarsest = scope::head;
  static constexpr bool reads_keys = true;

  template <class Score, class Pool, class Segment, class Budget>
  static consteval bool fits() {
    static_assert(contains(Score::needs, signals::queries),
                  "selectors::pruned_top weighs tokens by the step's query, and this scorer asks for none");
    static_assert(
        !contains(Score::needs, signals::observation_queries),
        "selectors::pruned_top weighs tokens by a step's query, and with this scorer it would choose at a prompt's end");
    return top::fits<Score, Pool, Segment, Budget>();
  }

  double mass = .85;  ///< p: least share of the attention that is read, above 0, at most 1

  /// Buffers of one call.
  struct scratch {
    top::scratch units;
    std::vector<range_list> among;     ///< `[lists]` the chosen units and the protected tokens
    std::vector<float> weights;        ///< `[lists, columns]` in the order of `among`
    std::vector<std::uint64_t> order;  ///< `[columns]` a list's scored tokens: a heap by weight, then by smaller index
    std::vector<char> read;            ///< `[lists, columns]` whether a query head of the list reads the token
    std::int64_t columns = 0;          ///< most tokens of a list
  };

  template <class Keep>
  void check(Keep const& keep, cache_shape const& shape) const {
    KVPOLICY_EXPECTS(mass > 0 && mass <= 1,
                     "a mass of " + std::to_string(mass) + " of the attention; it must be above 0, at most 1");
    top{}.check(keep, shape);
  }
  /// A list may break into single tokens.
  template <class Keep>
  std::int64_t max_ranges(Keep const& keep, cache_shape const& shape) const {
    return std::min(shape.max_tokens, keep.budget.most_tokens(shape) + keep.segment.unit_size());
  }
  template <class Keep>
  scratch start(Keep const& keep, cache_shape const& shape) const {
    scratch made;
    made.units = top{}.start(keep, shape);
    made.columns = shape.max_tokens;  // a window may protect any number
    auto const lists = static_cast<std::size_t>(shape.kv_heads);
    auto const columns = static_cast<std::size_t>(made.columns);
    made.among.resize(lists);
    for (range_list& list : made.among) list.reserve(static_cast<std::size_t>(top{}.max_ranges(keep, shape)) + 2);
    made.weights.resize(lists * columns);
    made.order.resize(columns);
    made.read.resize(lists * columns);
    return made;
  }

  /// Calls emit(list, begin, end) for each list's chosen tokens, ascending.
  template <class Keep, class Input, executor Exec, class Emit>
  void select(Keep const& keep, scratch& s, Input& input, protected_tokens const& safe, Exec& exec, Emit emit) const {
    auto const lists = static_cast<std::size_t>(input.heads.count);
    std::span const among = std::span(s.among).first(lists);
    for (range_list& list : among) {
      list.clear();
      append(list, 0, safe.sink_end, reason::sink);
    }
    top{}.select(keep, s.units, input, safe, exec, [&](std::int64_t list, std::int64_t begin, std::int64_t end) {
      append(among[static_cast<std::size_t>(list)], std::max(begin, safe.sink_end), std::min(end, safe.recent_begin),
             reason::scored);
    });
    for (range_list& list : among) append(list, safe.recent_begin, input.tokens, reason::recent);
    std::int64_t longest = 0;
    for (range_list const& list : among) longest = std::max(longest, token_count(list));
    table<float> const weights{s.weights.data(), input.heads.count, longest, s.columns};
    std::ranges::fill(s.read, 0);
    std::int64_t const group = input.queries.heads / input.heads.count;
    for (std::int64_t g = 0; g < group; ++g) {
      query_heads const& all = input.queries;
      query_heads const one_of_each{all.head(g), input.heads.count, all.head_stride * group, all.scale};
      list_attention(one_of_each, input.keys(), std::span<range_list const>(among), weights, exec);
      for (std::size_t l = 0; l < lists; ++l) {
        auto const count = static_cast<std::size_t>(token_count(among[l]));
        prune(among[l], {weights.row(static_cast<std::int64_t>(l)), count}, s.order,
              std::span(s.read).subspan(l * static_cast<std::size_t>(s.columns), count));
      }
    }
    for (std::size_t l = 0; l < lists; ++l) {
      std::size_t i = l * static_cast<std::size_t>(s.columns);
      for (token_range const& range : among[l]) {
        for (std::int64_t t = range.begin; t < range.end; ++t, ++i) {
          if (range.why == reason::scored && s.read[i] != 0) emit(static_cast<std::int64_t>(l), t, t + 1);
        }
      }
    }
  }

 private:
  /// Marks the scored tokens of a list that a query head reads: by falling weight, ties to the smaller index, until the marked
  /// ones and the protected ones hold `mass` of the sum. NaN weighs nothing.
  void prune(range_list const& list, std::span<float const> weights, std::span<std::uint64_t> order,
             std::span<char> read) const {
    double all = 0;
    double held = 0;
    std::size_t scored = 0;
    std::size_t i = 0;
    for (token_range const& range : list) {
      for (std::int64_t t = range.begin; t < range.end; ++t, ++i) {
        double const weight = weights[i] > 0 ? static_cast<double>(weights[i]) : 0;
        all += weight;
        if (range.why != reason::scored) held += weight;
        else order[scored++] = std::uint64_t{sortable_key(weights[i])} << 32 | static_cast<std::uint32_t>(~i);
      }
    }
    // Few tokens hold the mass, so a heap yields them sooner than a sort.
    std::span heap = order.first(scored);
    std::ranges::make_heap(heap);
    for (; !heap.empty() && held < mass * all; heap = heap.first(heap.size() - 1)) {
      std::ranges::pop_heap(heap);
      std::uint32_t const place = ~static_cast<std::uint32_t>(heap.back());
      held += weights[place] > 0 ? static_cast<double>(weights[place]) : 0;
      read[place] = 1;
    }
  }
};

static_assert(part<pruned_top>);

}  // namespace kvpolicy::selectors
