// What a model's KV heads are like: HeteroCache's calibration, roles and their text-free form (Shi et al., secs. 3 and 4.1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/error.hpp"
#include "kvpolicy/primitive/overlap.hpp"

namespace kvpolicy {

/// anchor: attends to the same tokens throughout; shifting: its attention moves ("volatile" in the paper); pivot: stands for a
/// cluster of like heads; satellite: one of those.
enum class head_role : std::uint8_t { anchor, shifting, pivot, satellite };

constexpr char const* name_of(head_role role) noexcept {
  return role == head_role::anchor     ? "anchor"
         : role == head_role::shifting ? "volatile"
         : role == head_role::pivot    ? "pivot"
                                       : "satellite";
}

struct head_profile {
  head_role role = head_role::anchor;
  std::int32_t pivot = -1;  ///< a satellite's pivot, a KV head of the same layer; -1 for all others
  float stability = 1;      ///< S_stable, in 0..1

  bool operator==(head_profile const&) const = default;
};

/// Thresholds of a profile.
struct role_thresholds {
  float stable = .5f;   ///< tau_stable; .4 for Qwen2.5
  float similar = .5f;  ///< tau_sim
};

/// Roles of one layer's heads from their stability, `[heads]`, and their overlaps with each other, `[heads, heads]`: greedy
/// star clustering over the pairs that overlap by at least tau_sim (the unassigned head with most unassigned neighbours is the
/// next pivot, ties to the lower head; its neighbours become its satellites), then anchors and shifting heads by tau_stable.
inline std::vector<head_profile> assign_roles(std::span<float const> stability, std::span<float const> overlaps,
                                              role_thresholds const& tau = {}) {
  std::size_t const heads = stability.size();
  KVPOLICY_EXPECTS(overlaps.size() == heads * heads, std::to_string(overlaps.size()) + " overlaps of " + std::to_string(heads) +
                                                         " heads; there must be one for each pair");
  std::vector<head_profile> result(heads);
  std::vector<char> free(heads, 1);
  auto const near = [&](std::size_t a, std::size_t b) {
    return a != b && free[b] != 0 && overlaps[a * heads + b] >= tau.similar;
  };
  while (true) {
    std::size_t best = heads;
    std::ptrdiff_t most = 0;
    for (std::size_t h = 0; h < heads; ++h) {
      if (free[h] == 0) continue;
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

/// Collects, layer by layer, the sets of tokens that heads attend to, and makes a profile of them: stability is the median over
/// steps of a head's overlap with its set at the prompt's end (eq. 2), similarity that of each pair's overlap at the same step;
/// both the mean over prompts.
class head_calibration {
 public:
  head_calibration(std::int64_t layers, std::int64_t heads)
      : layers_(static_cast<std::size_t>(layers)),
        heads_(static_cast<std::size_t>(heads)),
        stability_(layers_ * heads_),
        similarity_(layers_ * heads_ * heads_),
        prompt_(layers_ * heads_),
        own_(layers_ * heads_),
        pairs_(layers_ * heads_ * heads_) {}

  /// The sets at the prompt's end begin a prompt: `[layers * heads]`, each ascending.
  void begin(std::vector<std::vector<std::int32_t>> sets) {
    KVPOLICY_EXPECTS(sets.size() == prompt_.size(),
                     std::to_string(sets.size()) + " sets for " + std::to_string(prompt_.size()) + " heads");
    prompt_ = std::move(sets);
    for (auto& values : own_) values.clear();
    for (auto& values : pairs_) values.clear();
  }

  /// One layer's sets at a step: `[heads]`, each ascending.
  void add(std::int64_t layer, std::span<std::vector<std::int32_t> const> sets) {
    std::size_t const first = static_cast<std::size_t>(layer) * heads_;
    for (std::size_t h = 0; h < heads_; ++h) {
      own_[first + h].push_back(coefficient(sets[h], prompt_[first + h]));
      for (std::size_t other = 0; other < heads_; ++other) {
        pairs_[(first + h) * heads_ + other].push_back(coefficient(sets[h], sets[other]));
      }
    }
  }

  /// The prompt's steps are over.
  void end() {
    for (std::size_t i = 0; i < own_.size(); ++i) stability_[i] += median(own_[i]);
    for (std::size_t i = 0; i < pairs_.size(); ++i) similarity_[i] += median(pairs_[i]);
    ++prompts_;
  }

  /// `[layers * heads]`. Throws invalid_value before the first prompt's end.
  std::vector<head_profile> profile(role_thresholds const& tau = {}) const {
    KVPOLICY_EXPECTS(prompts_ > 0, "a profile needs at least one calibrated prompt");
    std::vector<head_profile> result;
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      std::vector<float> stability;
      std::vector<float> overlaps;
      for (std::size_t h = 0; h < heads_; ++h) stability.push_back(mean(stability_[layer * heads_ + h]));
      for (std::size_t i = 0; i < heads_ * heads_; ++i) overlaps.push_back(mean(similarity_[layer * heads_ * heads_ + i]));
      std::vector<head_profile> const roles = assign_roles(stability, overlaps, tau);
      result.insert(result.end(), roles.begin(), roles.end());
    }
    return result;
  }

  /// |a and b| / min(|a|, |b|) (eq. 1); 0 where either is empty.
  static double coefficient(std::span<std::int32_t const> a, std::span<std::int32_t const> b) noexcept {
    std::size_t const smaller = std::min(a.size(), b.size());
    return smaller == 0 ? 0 : static_cast<double>(overlap(a, b)) / static_cast<double>(smaller);
  }

  /// The middle value, or the mean of the two in the middle; 0 of none.
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
  std::vector<std::vector<std::int32_t>> prompt_;
  std::vector<std::vector<double>> own_;
  std::vector<std::vector<double>> pairs_;
  std::int64_t prompts_ = 0;
};

}  // namespace kvpolicy
