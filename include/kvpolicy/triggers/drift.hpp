// Trigger drift: satellites choose again when their pivot's attention has drifted (HeteroCache, eqs. 9 and 10).
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/budgets/by_head_role.hpp"
#include "kvpolicy/primitive/attended_set.hpp"
#include "kvpolicy/primitive/overlap.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy::triggers {

/// Makes the followers of a head choose again when that head's attention has drifted (HeteroCache, eqs. 9 and 10).
/// Every `every` steps each watched head looks at its last `window` queries. For each query it takes the best L_base prompt
/// tokens by smoothed attention, and their overlap with the baseline set. If the median overlap is below tau, the last set
/// becomes the baseline, and the heads that follow this head are due.
struct drift {
  static constexpr signals needs = signals::keys | signals::queries | signals::observation_queries;
  static constexpr bool while_decoding = true;
  static constexpr std::int32_t longest_window = 15;  ///< most queries of a look

  budgets::by_head_role roles{};           ///< says which heads are watched, and who follows them
  float tau = .5f;                         ///< tau_drift, overlap as a share of L_base
  std::int32_t window = 5;                 ///< W, queries of a look; odd, at most longest_window
  std::int32_t every = 5;                  ///< steps from one look to the next, at least W; the paper: W
  std::int32_t smooth = 5;                 ///< tokens that attention is averaged over, odd
  group_merge merged = group_merge::mean;  ///< merges the query heads of a KV head
  bool chance_corrected = false;  ///< (o - K/L) / (1 - K/L) in place of the overlap o; K of L tokens overlap by K/L by chance

  static constexpr signals wants() noexcept { return needs; }

  /// Queries and baselines of the watched heads.
  struct state {
    std::int64_t kv_heads = 0;                        ///< of a layer
    std::int64_t group_size = 0;                      ///< floats of a KV head's query group
    std::int64_t now = 0;                             ///< steps since the prompt
    std::int64_t looks = 0;                           ///< looks of watched heads, in all
    std::int64_t drifts = 0;                          ///< looks that found a drift, in all
    std::int64_t fetches = 0;                         ///< heads that became due, in all
    std::int64_t window = 0;                          ///< queries of a look
    std::vector<char> may_watch;                      ///< `[layers, kv_heads]` pivots and shifting heads
    std::vector<float> queries;                       ///< `[layers, kv_heads, window, group, head_dim]`
    std::vector<std::int32_t> seen;                   ///< `[layers, kv_heads]` steps since the last look
    std::vector<std::vector<std::int32_t>> baseline;  ///< `[layers, kv_heads]` ascending tokens; empty: not watched
    std::vector<std::int64_t> fired;                  ///< `[layers, kv_heads]` step at which a head became due; -1: none
    attended_set_scratch buffers;

    template <class Archive>
    void archive(Archive& a) {
      a(now, looks, drifts, fetches, queries, seen, baseline, fired);
    }
    void reserve(std::int64_t tokens) {
      queries.resize(seen.size() * static_cast<std::size_t>(window * group_size));
      buffers.reserve(tokens);
      for (std::size_t i = 0; i < baseline.size(); ++i) {
        if (may_watch[i] != 0) baseline[i].reserve(static_cast<std::size_t>(tokens));
      }
    }
    /// Returns the index of a KV head in the vectors.
    std::size_t at(layer_id layer, std::int64_t head) const noexcept {
      return static_cast<std::size_t>(layer.value * kv_heads + head);
    }
    void restart() noexcept {
      std::ranges::fill(seen, 0);
      std::ranges::fill(fired, -1);
    }
  };
  state start(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(window >= 1 && window <= longest_window && window % 2 == 1, "a drift window of " + std::to_string(window) +
                                                                                     " queries; it must be odd and at most " +
                                                                                     std::to_string(longest_window));
    KVPOLICY_EXPECTS(every >= window, "every is " + std::to_string(every) + " steps and window " + std::to_string(window) +
                                          " queries; every must be at least window");
    KVPOLICY_EXPECTS(smooth >= 1 && smooth % 2 == 1,
                     "smooth is " + std::to_string(smooth) + " tokens; it must be odd, and at least 1");
    auto const rows = static_cast<std::size_t>(shape.layers * shape.kv_heads);
    state made;
    made.kv_heads = shape.kv_heads;
    made.group_size = shape.group() * shape.head_dim;
    made.window = window;
    made.seen.resize(rows);
    made.baseline.resize(rows);
    made.may_watch.resize(rows);
    for (std::size_t i = 0; i < rows && i < roles.heads.size(); ++i) {
      made.may_watch[i] = roles.heads[i].role == head_role::pivot || roles.heads[i].role == head_role::shifting ? 1 : 0;
    }
    made.fired.resize(rows, -1);
    return made;
  }

  bool due(state const& s, layer_id layer, head_id head, std::int64_t since) const noexcept {
    std::int64_t const fired = s.fired[s.at(layer, head.value)];
    return fired >= 0 && fired > s.now - since;
  }

  /// Sets each watched head's baseline, at the prompt's end: the tokens that the prompt's last query attends to.
  /// @throws unsupported if the prompt's last query was not observed
  template <class Input, executor Exec>
  void begin(state& s, Input const& input, std::int64_t prompt, Exec& exec) const {
    s.now = 0;
    s.reserve(input.prompt_tokens);
    for (std::int64_t h = input.heads.first; h < input.heads.first + input.heads.count; ++h) {
      std::size_t const at = s.at(input.layer, h);
      s.fired[at] = -1;
      s.seen[at] = 0;
      s.baseline[at].clear();
      if (!roles.watches(at, input.prompt_tokens)) continue;
      query_window const& all = input.prompt->queries;
      if (all.tokens < 1) {
        throw unsupported(
            "drift is measured from the prompt's last query, and none was observed: prefill with the policy attached");
      }
      std::int64_t const group = all.heads / s.kv_heads;
      query_window const last = all.last(1);
      auto const set =
          look(s, input, {last.at(0, h * group), group, last.head_stride, last.scale}, h, prompt, roles.base(prompt), exec);
      s.baseline[at].assign(set.begin(), set.end());
    }
  }

  /// Keeps the queries of watched heads for the next look, and looks every `every` steps.
  template <class Input, executor Exec>
  void watch(state& s, Input const& input, std::int64_t prompt, Exec& exec) const {
    s.now = input.view.tokens() - prompt;
    std::int64_t const group = input.queries.heads / input.heads.count;
    std::int64_t const dim = s.group_size / group;
    for (std::int64_t i = 0; i < input.heads.count; ++i) {
      std::int64_t const h = input.heads.first + i;
      std::size_t const at = s.at(input.layer, h);
      if (s.baseline[at].empty()) continue;  // not watched
      if (std::int32_t const place = s.seen[at] - (every - window); place >= 0) {
        float* const kept = s.queries.data() + (static_cast<std::int64_t>(at) * window + place) * s.group_size;
        for (std::int64_t q = 0; q < group; ++q) std::copy_n(input.queries.head(i * group + q), dim, kept + q * dim);
      }
      if (++s.seen[at] < every) continue;
      s.seen[at] = 0;
      ++s.looks;
      std::array<double, longest_window> overlaps;
      std::int64_t const base = std::ssize(s.baseline[at]);
      std::span<std::int32_t const> set;
      for (std::int32_t w = 0; w < window; ++w) {
        float const* const query = s.queries.data() + (static_cast<std::int64_t>(at) * window + w) * s.group_size;
        set = look(s, input, {query, group, dim, input.queries.scale}, h, prompt, base, exec);
        double o = static_cast<double>(overlap(set, s.baseline[at])) / static_cast<double>(base);
        double const chance = static_cast<double>(base) / static_cast<double>(prompt);
        if (chance_corrected && chance < 1) o = (o - chance) / (1 - chance);
        auto const end = overlaps.begin() + w;
        auto const place = std::upper_bound(overlaps.begin(), end, o);
        std::move_backward(place, end, end + 1);
        *place = o;
      }
      if (overlaps[static_cast<std::size_t>(window / 2)] >= tau) continue;
      s.baseline[at].assign(set.begin(), set.end());
      ++s.drifts;
      for (std::int64_t other = 0; other < s.kv_heads; ++other) {
        std::size_t const follower = s.at(input.layer, other);
        if (roles.leader(follower, input.prompt_tokens, s.kv_heads) != h) continue;
        s.fired[follower] = s.now;
        ++s.fetches;
      }
    }
  }

  /// Says whether steps read the keys of a head: a watched head's, at each look.
  /// @param head  layer * kv_heads + KV head
  /// @param prompt_tokens  tokens of the prompt
  /// @return false where a tier may hold the head's keys for good
  bool reads_keys(std::size_t head, std::int64_t prompt_tokens) const {
    return head < roles.heads.size() && roles.watches(head, prompt_tokens);
  }

  template <class Visit>
  void visit_statistics(state const& s, Visit const& visit) const {
    visit(statistic::count, "looks", static_cast<double>(s.looks));
    visit(statistic::count, "drifts", static_cast<double>(s.drifts));
    visit(statistic::count, "fetches", static_cast<double>(s.fetches));
  }

 private:
  /// Returns the best L_base prompt tokens of one query group, ascending.
  template <class Input, class Exec>
  std::span<std::int32_t const> look(state& s, Input const& input, query_heads const& queries, std::int64_t head,
                                     std::int64_t prompt, std::int64_t base, Exec& exec) const {
    return attended_set(queries, input.view.keys(input.layer).of({head, 1}), prompt, base, smooth, merged, s.buffers, exec);
  }
};

static_assert(trigger_part<drift>);

}  // namespace kvpolicy::triggers
