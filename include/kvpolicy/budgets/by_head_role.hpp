// Budget by_head_role: gives each head a length by its role and stability (HeteroCache, eqs. 7 and 8).
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/detail/share_out.hpp"
#include "kvpolicy/head_profile.hpp"
#include "kvpolicy/head_values.hpp"

namespace kvpolicy::budgets {

/// Gives each head a length by its role and stability (HeteroCache, Shi et al., eqs. 7 and 8).
/// Shifting heads ("volatile" in the paper) and pivots keep every token, as far as `full_share` allows. The other heads share
/// the rest: the less stable a head, the more it gets.
struct by_head_role {
  static constexpr bool reads_scores = false;
  static constexpr std::size_t max_heads = 4096;  ///< most KV heads of all layers

  /// The rule that the lengths are for. retain: tokens that exist at all, so anchors lose the rest. retrieve: tokens that a
  /// step reads, so satellites fetch theirs.
  enum class of_rule : std::uint8_t { retain, retrieve };

  head_values<head_profile> heads{};  ///< `[layers * kv_heads]`, not owned
  of_rule rule = of_rule::retain;     ///< the rule that the lengths are for
  std::int32_t count = 512;           ///< tokens of a head, mean over all heads of all layers; rho is count / prompt
  std::optional<double> ratio{};      ///< fraction removed, 0 to below 1, in place of `count`; 1 - rho
  float floor = .05f;                 ///< least stability that counts: a head below it gets no more
  std::int32_t least = 16;            ///< fewest tokens that any head keeps
  /// Most of the budget that whole heads may take, 0 to 1. The least useful whole heads beyond it are compressed: shifting
  /// heads before pivots, stable ones first. 1: the paper; base() refuses a budget that whole heads alone spend.
  double full_share = .5;
  /// Whose attention the trigger watches. whole: whole pivots only (the paper). all: also pivots and shifting heads that the
  /// budget compresses; such a head follows itself, and fetches when its own attention drifts.
  enum class watched : std::uint8_t { whole, all };
  friend constexpr auto names_of(watched) noexcept { return std::array{"whole", "all"}; }
  watched watch = watched::all;  ///< whose attention the trigger watches

  static constexpr std::int64_t nobody = -1;  ///< leader() of a head that follows no head

  bool relative() const noexcept { return true; }
  std::int64_t most_tokens(cache_shape const& shape) const noexcept { return shape.max_tokens; }
  std::int64_t of(budget_request const& request) const noexcept { return request.tokens; }

  void check(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(!heads.empty(), "heterocache needs a profile of the model's heads; make one with kvpolicy-profile");
    check_heads_of(heads, 1, shape.layers, shape.kv_heads, "a profile");
    KVPOLICY_EXPECTS(heads.size() <= max_heads,
                     "a profile of " + std::to_string(heads.size()) + " heads; it may have " + std::to_string(max_heads));
    for (std::size_t h = 0; h < heads.size(); ++h) {
      if (heads[h].role != head_role::satellite) continue;
      bool const there = heads[h].pivot >= 0 && heads[h].pivot < shape.kv_heads;
      KVPOLICY_EXPECTS(there && heads[pivot_of(h, shape.kv_heads)].role == head_role::pivot,
                       "head " + std::to_string(h) + " of the profile follows KV head " + std::to_string(heads[h].pivot) +
                           " of its layer, which is no pivot, or not one of the model's " + std::to_string(shape.kv_heads) +
                           " KV heads; profile this model");
    }
    KVPOLICY_EXPECTS(count > 0 && least > 0 && floor > 0 && full_share >= 0 && full_share <= 1,
                     "a budget by role: count, least and floor must be above 0, full_share in 0..1");
    KVPOLICY_EXPECTS(!ratio || (*ratio >= 0 && *ratio < 1),
                     "a ratio of " + std::to_string(ratio.value_or(0)) + " removed; it must be at least 0 and below 1");
  }

  /// Says whether a head keeps every token of the prompt.
  /// @param head  layer * kv_heads + KV head
  /// @param tokens  tokens of the prompt
  /// @return true for pivots and shifting heads, the most useful ones first, as far as `full_share` allows
  bool whole(std::size_t head, std::int64_t tokens) const noexcept {
    if (!wants_all(head)) return false;
    std::int64_t before = 0;
    for (std::size_t other = 0; other < heads.size(); ++other) before += wants_all(other) && more_useful(other, head) ? 1 : 0;
    return before < room(tokens);
  }

  /// Says whether the trigger watches a head's attention: other heads follow it, or it follows itself.
  /// @param head  layer * kv_heads + KV head
  /// @param tokens  tokens of the prompt
  /// @return true for a watched head
  bool watches(std::size_t head, std::int64_t tokens) const noexcept {
    return wants_all(head) && (whole(head, tokens) ? heads[head].role == head_role::pivot : watch == watched::all);
  }

  /// Returns the head whose attention decides which tokens a head reads.
  /// @param head  layer * kv_heads + KV head
  /// @param tokens  tokens of the prompt
  /// @param heads_of_layer  KV heads of a layer
  /// @return a KV head of the same layer; `nobody` if the head is whole, or keeps its tokens from the prompt's end
  std::int64_t leader(std::size_t head, std::int64_t tokens, std::int64_t heads_of_layer) const noexcept {
    if (heads[head].role == head_role::satellite) {
      return watches(pivot_of(head, heads_of_layer), tokens) ? heads[head].pivot : nobody;
    }
    return watches(head, tokens) && !whole(head, tokens) ? static_cast<std::int64_t>(head) % heads_of_layer : nobody;
  }
  /// Says whether a head has a leader().
  /// @param head  layer * kv_heads + KV head
  /// @param tokens  tokens of the prompt
  /// @param heads_of_layer  KV heads of a layer
  /// @return false where leader() is `nobody`
  bool follows(std::size_t head, std::int64_t tokens, std::int64_t heads_of_layer) const noexcept {
    return leader(head, tokens, heads_of_layer) != nobody;
  }

  /// Returns a satellite's pivot.
  /// @param head  the satellite, layer * kv_heads + KV head
  /// @param heads_of_layer  KV heads of a layer
  /// @return layer * kv_heads + KV head
  std::size_t pivot_of(std::size_t head, std::int64_t heads_of_layer) const noexcept {
    auto const layer = head / static_cast<std::size_t>(heads_of_layer);
    return layer * static_cast<std::size_t>(heads_of_layer) + static_cast<std::size_t>(heads[head].pivot);
  }

  /// Returns L_base, the mean length of a compressed head.
  /// @param tokens  tokens of the prompt
  /// @return tokens; all of the prompt's if every head is whole
  /// @throws invalid_value if whole heads spend the whole budget
  std::int64_t base(std::int64_t tokens) const {
    std::array<std::uint16_t, max_heads> order;
    std::int64_t const full = std::ssize(whole_heads(tokens, order));
    auto const compressed = static_cast<std::int64_t>(heads.size()) - full;
    if (compressed == 0) return tokens;
    std::int64_t const left = total(tokens, full);
    KVPOLICY_EXPECTS(left > 0, "a budget of " + std::to_string(mean_tokens(tokens)) + " tokens a head is spent by the " +
                                   std::to_string(full) + " of " + std::to_string(heads.size()) + " heads that keep all " +
                                   std::to_string(tokens) + "; raise it, lower full_share, or profile with other thresholds");
    return left / compressed;
  }

  /// Writes l_i, the length of every head in tokens.
  /// A whole head has the prompt's tokens. The other lengths sum to floor(N_comp L_base) exactly, unless `least` or the
  /// prompt's length forces another sum.
  /// @param tokens  tokens of the prompt
  /// @param out  `[layers * kv_heads]`, receives the lengths
  /// @throws invalid_value if whole heads spend the whole budget
  void lengths(std::int64_t tokens, std::span<std::int64_t> out) const {
    static_cast<void>(base(tokens));
    std::ranges::fill(out, -1);
    std::array<std::uint16_t, max_heads> order;
    std::span const whole_ones = whole_heads(tokens, order);
    for (std::size_t const h : whole_ones) out[h] = tokens;
    std::int64_t const full = std::ssize(whole_ones);
    std::int64_t const low = std::min<std::int64_t>(least, tokens);
    std::array<float, max_heads> lost;
    share_out(
        {total(tokens, full), low, tokens}, [this](std::size_t h) { return weight(h); }, out.first(heads.size()), lost);
  }

  /// Visits how many heads are whole, follow a head (itself included), or keep their tokens from the prompt's end.
  template <class Visit>
  void visit_statistics(cache_shape const& shape, std::int64_t prompt, Visit const& visit) const {
    double counted[3]{};
    for (std::size_t h = 0; h < heads.size(); ++h) ++counted[whole(h, prompt) ? 0 : follows(h, prompt, shape.kv_heads) ? 1 : 2];
    visit(statistic::count, "whole_heads", counted[0]);
    visit(statistic::count, "following_heads", counted[1]);
    visit(statistic::count, "fixed_heads", counted[2]);
  }

  template <executor Exec>
  void allocate(budget_request const& request, table<float const>, std::span<std::int32_t> units, Exec&) const {
    std::array<std::int64_t, max_heads> length;
    lengths(request.prompt, std::span(length).first(heads.size()));
    std::int64_t const kv_heads = request.shape.kv_heads;
    for (std::size_t i = 0; i < units.size(); ++i) {
      auto const head = static_cast<std::size_t>(request.layer.value * kv_heads + request.heads.first) + i;
      bool const fetches = follows(head, request.prompt, kv_heads);
      bool const cut = fetches == (rule == of_rule::retrieve) && !whole(head, request.prompt);
      std::int64_t const kept = cut ? length[head] : request.tokens;
      units[i] = static_cast<std::int32_t>(std::max<std::int64_t>(0, kept - request.forced) / request.unit_size);
    }
  }

 private:
  std::int64_t mean_tokens(std::int64_t tokens) const noexcept {
    if (!ratio) return std::min<std::int64_t>(count, tokens);
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(tokens) * (1 - *ratio)));
  }
  /// Returns the tokens that compressed heads share: floor(N_comp L_base) = floor(rho N L - N_full L).
  std::int64_t total(std::int64_t tokens, std::int64_t full) const noexcept {
    auto const all = static_cast<std::int64_t>(heads.size());
    std::int64_t const budget =
        ratio ? static_cast<std::int64_t>(static_cast<double>(all * tokens) * (1 - *ratio)) : mean_tokens(tokens) * all;
    return budget - full * tokens;
  }
  /// Returns how many heads may be whole.
  std::int64_t room(std::int64_t tokens) const noexcept {
    if (full_share >= 1) return std::ssize(heads);
    double const budget = static_cast<double>(mean_tokens(tokens)) * static_cast<double>(heads.size());
    return static_cast<std::int64_t>(full_share * budget / static_cast<double>(std::max<std::int64_t>(tokens, 1)));
  }
  /// Lists the heads for which whole() is true, in `order`. O(heads log heads).
  std::span<std::uint16_t const> whole_heads(std::int64_t tokens, std::span<std::uint16_t> order) const noexcept {
    std::size_t wants = 0;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      if (wants_all(h)) order[wants++] = static_cast<std::uint16_t>(h);
    }
    std::span const wanted = order.first(wants);
    if (room(tokens) >= std::ssize(wanted)) return wanted;
    std::ranges::sort(wanted, [&](std::size_t a, std::size_t b) { return more_useful(a, b); });
    return wanted.first(static_cast<std::size_t>(room(tokens)));
  }
  bool wants_all(std::size_t head) const noexcept {
    return heads[head].role == head_role::shifting || heads[head].role == head_role::pivot;
  }
  bool more_useful(std::size_t a, std::size_t b) const noexcept {
    if (a == b) return false;
    bool const pivot_a = heads[a].role == head_role::pivot;
    bool const pivot_b = heads[b].role == head_role::pivot;
    if (pivot_a != pivot_b) return pivot_a;
    if (heads[a].stability != heads[b].stability) return heads[a].stability < heads[b].stability;
    return a < b;
  }
  double weight(std::size_t head) const noexcept { return 1.0 / static_cast<double>(std::max(heads[head].stability, floor)); }
};

static_assert(budgeter<by_head_role>);

}  // namespace kvpolicy::budgets
