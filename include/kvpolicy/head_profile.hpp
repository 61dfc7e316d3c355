// Profiles of a model's KV heads: roles, stability, and their calibration (HeteroCache, Shi et al., secs. 3 and 4.1).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/error.hpp"
#include "kvpolicy/primitive/overlap.hpp"

namespace kvpolicy {

/// The role of a KV head.
/// An anchor attends to the same tokens throughout. A shifting head's attention moves (the paper: "volatile"). A pivot
/// represents a cluster of similar heads; the others of that cluster are its satellites.
enum class head_role : std::uint8_t { anchor, shifting, pivot, satellite };

/// Names a role as the paper does.
/// @param role  the role
/// @return "anchor", "volatile", "pivot" or "satellite"
constexpr char const* name_of(head_role role) noexcept {
  return role == head_role::anchor     ? "anchor"
         : role == head_role::shifting ? "volatile"
         : role == head_role::pivot    ? "pivot"
                                       : "satellite";
}

/// The profile of one KV head.
struct head_profile {
  head_role role = head_role::anchor;
  std::int32_t pivot = -1;  ///< a satellite's pivot, a KV head of the same layer; -1 for other roles
  float stability = 1;      ///< S_stable, in 0..1

  bool operator==(head_profile const&) const = default;
};

/// Which heads are similar to others, and so pivots or satellites.
/// neighbours: those with a neighbour that no pivot has yet (Appendix C.2). scores: those whose S_sim is at least tau_sim
/// (eqs. 3 and 4); one that overlaps enough with no head of its own is a pivot without satellites, and kept whole.
enum class similar_heads : std::uint8_t { neighbours, scores };
constexpr auto names_of(similar_heads) noexcept { return std::array{"neighbours", "scores"}; }

/// The thresholds that separate roles, in 0..1.
struct role_thresholds {
  float stable = .5f;                            ///< tau_stable; .4 for Qwen2.5
  float similar = .5f;                           ///< tau_sim
  similar_heads by = similar_heads::neighbours;  ///< what tau_sim is compared with
};

/// Assigns roles to the heads of one layer.
/// Greedy star clustering comes first. Two heads are neighbours if they overlap by at least tau_sim, and if both are similar
/// heads. The unassigned head with the most unassigned neighbours is the next pivot (ties go to the lower head), and those
/// neighbours become its satellites. The heads that are left are anchors if their stability is at least tau_stable, else
/// shifting.
/// @param stability  `[heads]`
/// @param overlaps  `[heads, heads]`, of each pair
/// @param tau  the thresholds
/// @param similarity  `[heads]` S_sim, for similar_heads::scores
/// @return `[heads]` profiles
/// @throws invalid_value if there is not one overlap for each pair, or not one S_sim for each head where it is compared
inline std::vector<head_profile> assign_roles(std::span<float const> stability, std::span<float const> overlaps,
                                              role_thresholds const& tau = {}, std::span<float const> similarity = {}) {
  std::size_t const heads = stability.size();
  KVPOLICY_EXPECTS(overlaps.size() == heads * heads, std::to_string(overlaps.size()) + " overlaps for " +
                                                         std::to_string(heads) +
                                                         " heads; there must be one for each pair of them");
  bool const scored = tau.by == similar_heads::scores;
  KVPOLICY_EXPECTS(!scored || similarity.size() == heads,
                   std::to_string(similarity.size()) + " scores of similarity for " + std::to_string(heads) + " heads");
  std::vector<head_profile> result(heads);
  std::vector<char> free(heads, 1);
  auto const alike = [&](std::size_t h) { return !scored || similarity[h] >= tau.similar; };
  auto const near = [&](std::size_t a, std::size_t b) {
    return a != b && free[b] != 0 && alike(a) && alike(b) && overlaps[a * heads + b] >= tau.similar;
  };
  while (true) {
    std::size_t best = heads;
    std::ptrdiff_t most = scored ? -1 : 0;
    for (std::size_t h = 0; h < heads; ++h) {
      if (free[h] == 0 || !alike(h)) continue;
      std::ptrdiff_t neighbours = 0;
      for (std::size_t other = 0; other < heads; ++other) neighbours += near(h, other) ? 1 : 0;
      if (neighbours > most) {
        most = neighbours;
        best = h;
      }
    }
    if (best == heads) break;
    result[best].role = head_role::pivot;
    for (std::size_t h = 0; h < heads; ++h) {
      if (!near(best, h)) continue;
      result[h] = {.role = head_role::satellite, .pivot = static_cast<std::int32_t>(best)};
      free[h] = 0;
    }
    free[best] = 0;
  }
  for (std::size_t h = 0; h < heads; ++h) {
    result[h].stability = stability[h];
    if (free[h] != 0) result[h].role = stability[h] >= tau.stable ? head_role::anchor : head_role::shifting;
  }
  return result;
}

/// Collects the sets of tokens that heads attend to, layer by layer, and makes a profile of them.
/// A head's stability is the median, over steps, of the overlap of its set with its set at the prompt's end (eq. 2). A pair's
/// similarity is the median, over steps, of the overlap of the two heads' sets at the same step. A head's S_sim is the median,
/// over steps, of its largest overlap with another head (eq. 3). All three are means over prompts.
class head_calibration {
 public:
  /// Begins without prompts.
  /// @param layers  the model's layers
  /// @param heads  KV heads of a layer
  head_calibration(std::int64_t layers, std::int64_t heads)
      : layers_(static_cast<std::size_t>(layers)),
        heads_(static_cast<std::size_t>(heads)),
        stability_(layers_ * heads_),
        similarity_(layers_ * heads_),
        overlap_(layers_ * heads_ * heads_),
        prompt_(layers_ * heads_),
        own_(layers_ * heads_),
        largest_(layers_ * heads_),
        pairs_(layers_ * heads_ * heads_) {}

  /// Begins a prompt.
  /// @param sets  `[layers * heads]` sets of tokens at the prompt's end, each ascending
  /// @throws invalid_value if there is not one set for each head of each layer
  void begin(std::vector<std::vector<std::int32_t>> sets) {
    KVPOLICY_EXPECTS(sets.size() == prompt_.size(),
                     std::to_string(sets.size()) + " sets for " + std::to_string(prompt_.size()) + " heads");
    prompt_ = std::move(sets);
    for (auto* all : {&own_, &largest_, &pairs_}) {
      for (auto& values : *all) values.clear();
    }
  }

  /// Adds one layer's sets at a step.
  /// @param layer  the layer
  /// @param sets  `[heads]` sets of tokens, each ascending
  void add(std::int64_t layer, std::span<std::vector<std::int32_t> const> sets) {
    std::size_t const first = static_cast<std::size_t>(layer) * heads_;
    for (std::size_t h = 0; h < heads_; ++h) {
      own_[first + h].push_back(coefficient(sets[h], prompt_[first + h]));
      double largest = 0;
      for (std::size_t other = 0; other < heads_; ++other) {
        pairs_[(first + h) * heads_ + other].push_back(coefficient(sets[h], sets[other]));
        if (other != h) largest = std::max(largest, pairs_[(first + h) * heads_ + other].back());
      }
      largest_[first + h].push_back(largest);
    }
  }

  /// Ends the prompt. From now on it counts in profile().
  void end() {
    for (std::size_t i = 0; i < own_.size(); ++i) stability_[i] += median(own_[i]);
    for (std::size_t i = 0; i < largest_.size(); ++i) similarity_[i] += median(largest_[i]);
    for (std::size_t i = 0; i < pairs_.size(); ++i) overlap_[i] += median(pairs_[i]);
    ++prompts_;
  }

  /// Makes the profile of the prompts so far.
  /// @param tau  thresholds of the roles
  /// @return `[layers * heads]` profiles
  /// @throws invalid_value before the first prompt's end()
  std::vector<head_profile> profile(role_thresholds const& tau = {}) const {
    KVPOLICY_EXPECTS(prompts_ > 0, "a profile needs at least one calibrated prompt");
    std::vector<head_profile> result;
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      auto const means = [&](std::vector<double> const& sums, std::size_t count) {
        std::vector<float> made;
        for (std::size_t i = 0; i < count; ++i) made.push_back(mean(sums[layer * count + i]));
        return made;
      };
      std::vector<head_profile> const roles =
          assign_roles(means(stability_, heads_), means(overlap_, heads_ * heads_), tau, means(similarity_, heads_));
      result.insert(result.end(), roles.begin(), roles.end());
    }
    return result;
  }

  /// Measures the overlap of two sets.
  /// @param a  ascending
  /// @param b  ascending
  /// @return |a and b| / min(|a|, |b|) (eq. 1); 0 if either set is empty
  static double coefficient(std::span<std::int32_t const> a, std::span<std::int32_t const> b) noexcept {
    std::size_t const smaller = std::min(a.size(), b.size());
    return smaller == 0 ? 0 : static_cast<double>(overlap(a, b)) / static_cast<double>(smaller);
  }

  /// Computes a median.
  /// @param values  in any order
  /// @return the middle value, or the mean of the two in the middle; 0 if there are no values
  static double median(std::span<double const> values) {
    if (values.empty()) return 0;
    std::vector<double> sorted(values.begin(), values.end());
    std::ranges::sort(sorted);
    std::size_t const half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }

 private:
  float mean(double sum) const noexcept { return static_cast<float>(sum / static_cast<double>(prompts_)); }

  std::size_t layers_;
  std::size_t heads_;
  std::vector<double> stability_;
  std::vector<double> similarity_;
  std::vector<double> overlap_;
  std::vector<std::vector<std::int32_t>> prompt_;
  std::vector<std::vector<double>> own_;
  std::vector<std::vector<double>> largest_;
  std::vector<std::vector<double>> pairs_;
  std::int64_t prompts_ = 0;
};

}  // namespace kvpolicy
