// How many drafts a round makes: as many as give the most tokens a second, by what was measured.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "kvpolicy/primitive/attend.hpp"

namespace kvpolicy::llama {

/// Learns from times and acceptance. A round of g drafts costs first + (g - 1) later + verify(g), and gives 1 + p + ... + p^g
/// tokens, where a draft behind taken ones is taken with probability p. A round without drafts is tried now and then, and so
/// are drafts where there were none, the more rarely the longer they did not pay.
class draft_count {
 public:
  /// Another text begins: what was taken of the last one says nothing of it.
  void begin() noexcept {
    draft_count fresh;
    fresh.first_ = first_;
    fresh.later_ = later_;
    fresh.verify_ = verify_;
    fresh.seen_ = seen_;
    *this = fresh;
  }

  /// How many the next round drafts, at most `most`.
  std::int64_t next(std::int64_t most) {
    if (most <= 0) return 0;
    ++since_trial_;
    if (verify_[0] == 0) return 0;
    bool const hopeful = rounds_ == 0 || best_of(most, later_, .999) > 0;  // if all were taken, and cost what the later ones do
    if (rounds_ < first_rounds && hopeful) return std::min<std::int64_t>(first_trial, most);
    std::int64_t best = best_of(most, first_ == 0 ? later_ : first_, std::min(taken_ / tried_, .999));
    if (rounds_ >= first_rounds && tokens_ * verify_[0] < seconds_) best = 0;  // estimates promised more than came
    if (best == last_best_ && since_trial_ < pause_) return best;
    if (best != last_best_) pause_ = least_pause;
    last_best_ = best;
    if (since_trial_ < pause_) return best;
    since_trial_ = 0;
    if (best > 0) return 0;  // is it still slower without?
    pause_ = std::min(pause_ * 2, most_pause);
    return std::min<std::int64_t>(first_trial, most);
  }

  /// The d-th draft of a round took so long, the policy's work on what was verified before the first one included.
  void drafted(std::int64_t d, double seconds) noexcept {
    round_seconds_ = d == 0 ? seconds : round_seconds_ + seconds;
    if (d == 0 && ++rounds_ == 1) return;  // the policy's work on a whole prompt
    learn(d == 0 ? first_ : later_, seconds);
  }
  /// The batch that verified so many drafts.
  void verified(std::size_t drafts, double seconds) noexcept {
    round_seconds_ += seconds;
    counts_ = seen_[drafts];  // an engine takes longer for the first batch of a size
    if (counts_) learn(verify_[drafts], seconds);
    seen_[drafts] = true;
  }
  /// Of so many drafts the caller took the first ones.
  void judged(std::size_t drafts, std::size_t taken) noexcept {
    taken_ = taken_ * forget + static_cast<double>(taken);
    tried_ = tried_ * forget + static_cast<double>(taken + (taken < drafts ? 1 : 0));
    if (!counts_) return;
    tokens_ = tokens_ * forget + static_cast<double>(taken + 1);
    seconds_ = seconds_ * forget + round_seconds_;
  }

 private:
  static constexpr std::int64_t first_trial = 3;  ///< drafts
  static constexpr std::int64_t first_rounds = 2;
  static constexpr std::int64_t least_pause = 64;  ///< rounds
  static constexpr std::int64_t most_pause = 4096;
  static constexpr double gain = 1.03;  ///< by which drafts must be faster than none
  static constexpr double forget = .95;

  static void learn(double& of, double seconds) noexcept { of = of == 0 ? seconds : of + .2 * (seconds - of); }

  /// Between what was measured, and beyond, in a line.
  double verify_seconds(std::int64_t drafts) const noexcept {
    std::size_t low = 0;
    std::size_t high = 0;
    for (std::size_t g = 1; g < verify_.size(); ++g) {
      if (verify_[g] == 0) continue;
      if (high == 0 || static_cast<std::int64_t>(high) < drafts) low = high, high = g;
    }
    if (high == 0) return verify_[0];
    double const slope = (verify_[high] - verify_[low]) / static_cast<double>(high - low);
    return verify_[low] + slope * static_cast<double>(drafts - static_cast<std::int64_t>(low));
  }

  /// `first`: seconds of a round's first draft; `p`: see above.
  std::int64_t best_of(std::int64_t most, double first, double p) const noexcept {
    std::int64_t best = 0;
    double best_rate = gain / verify_[0];
    double tokens = 1;
    for (std::int64_t g = 1; g <= most; ++g) {
      tokens += std::pow(p, static_cast<double>(g));
      double const rate = tokens / (first + static_cast<double>(g - 1) * later_ + verify_seconds(g));
      if (rate > best_rate) best = g, best_rate = rate;
    }
    return best;
  }

  std::int64_t rounds_ = 0;                        ///< with drafts
  double first_ = 0;                               ///< seconds
  double later_ = 0;                               ///< seconds
  std::array<double, most_step_tokens> verify_{};  ///< seconds, by drafts
  std::array<bool, most_step_tokens> seen_{};
  bool counts_ = false;       ///< the last round does, among those of the next two
  double round_seconds_ = 0;  ///< of the last round with drafts
  double tokens_ = 0;         ///< that such rounds gave, and their seconds
  double seconds_ = 0;
  double taken_ = 4;  ///< drafts, and tried ones: before anything is known, 4 of 5
  double tried_ = 5;
  std::int64_t last_best_ = -1;
  std::int64_t since_trial_ = 0;
  std::int64_t pause_ = least_pause;
};

}  // namespace kvpolicy::llama
