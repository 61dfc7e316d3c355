// Trigger: the model became unsure (CHESS, sec. 3.3), and the calibration of its thresholds.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::triggers {

/// Over each generated page: the mean of the per-token entropies, and their variance within the page.
struct page_uncertainty {
  float entropy = 0;
  float varentropy = 0;
};

/// Collects per-token entropies into pages. A page closes when the sequence reaches a multiple of its size.
class page_statistics {
 public:
  /// The sequence had `tokens` tokens when `entropy` was observed. True when that closed a page; `last()` is then new.
  bool add(float entropy, std::int64_t tokens, std::int64_t page) noexcept {
    ++count_;
    double const delta = static_cast<double>(entropy) - mean_;
    mean_ += delta / static_cast<double>(count_);
    squares_ += delta * (static_cast<double>(entropy) - mean_);
    if (tokens % page != 0) return false;
    last_ = {static_cast<float>(mean_), static_cast<float>(squares_ / static_cast<double>(count_))};
    count_ = 0;
    mean_ = squares_ = 0;
    return true;
  }
  page_uncertainty last() const noexcept { return last_; }

 private:
  std::int64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;
  page_uncertainty last_;
};

/// The choice is made anew after a page whose mean entropy or varentropy passes its threshold (or is NaN), if it has stood for
/// `rest` steps.
struct entropy {
  static constexpr signals needs = signals::logits;
  static constexpr bool while_decoding = true;

  float mean = 2.0f;       ///< nats; calibrate() finds a model's own
  float variance = 2.0f;   ///< nats squared
  std::int32_t page = 32;  ///< tokens
  std::int32_t rest = 0;   ///< steps

  constexpr signals wants() const noexcept {
    bool const never = mean == std::numeric_limits<float>::infinity() && variance == std::numeric_limits<float>::infinity();
    return never ? signals::none : needs;
  }

  struct closed_page {
    std::int64_t end = 0;  ///< tokens of the sequence then
    page_uncertainty of{};
  };
  struct state {
    page_statistics pages;
    bool fired = false;
    std::vector<closed_page> closed;  ///< the last ones
    std::size_t most = 0;             ///< of them: as many as the cache holds

    void restart() noexcept { pages = {}; }
    template <class Archive>
    void archive(Archive& a) {
      a(pages, fired, closed);
    }
  };
  state start(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(page >= 1, "pages of " + std::to_string(page) + " tokens; they need at least 1");
    state made;
    made.most = static_cast<std::size_t>(shape.max_tokens / page + 1);
    made.closed.reserve(made.most);
    return made;
  }
  bool due(state const& s, layer_id, head_id, std::int64_t since) const noexcept { return s.fired && since >= rest; }

  template <class Outcome, executor Exec>
  void observe(state& s, std::int64_t tokens, Outcome const& outcome, Exec& exec) const {
    if (outcome.logits.empty() && !outcome.entropy) return;
    float const nats = outcome.entropy ? *outcome.entropy : kvpolicy::entropy(outcome.logits, exec).entropy;
    s.fired = false;
    if (!s.pages.add(nats, tokens, page)) return;
    page_uncertainty const last = s.pages.last();
    s.fired = !(last.entropy <= mean && last.varentropy <= variance);
    while (!s.closed.empty() && s.closed.back().end >= tokens) s.closed.pop_back();  // of a tail that was removed
    if (s.closed.size() == s.most) s.closed.erase(s.closed.begin());
    s.closed.push_back({tokens, last});
  }

  template <class Visit>
  void visit_statistics(state const& s, Visit const& visit) const {
    for (closed_page const& page_of : s.closed) {
      visit(statistic::series, "page_end", static_cast<double>(page_of.end));
      visit(statistic::series, "page_entropy", static_cast<double>(page_of.of.entropy));
      visit(statistic::series, "page_variance", static_cast<double>(page_of.of.varentropy));
    }
  }
};

/// The thresholds that `quantile` of a calibration run's pages stay within (the paper takes the 99th percentile): linear
/// interpolation between order statistics, each measure by itself. Throws invalid_value for no pages.
inline entropy calibrate(std::span<page_uncertainty const> pages, std::int32_t page = 32, double quantile = .99) {
  KVPOLICY_EXPECTS(!pages.empty(), "calibration needs at least one generated page, it was given none");
  KVPOLICY_EXPECTS(quantile >= 0 && quantile <= 1, "a quantile of " + std::to_string(quantile) + "; it must be in 0..1");
  auto const at = [&](float page_uncertainty::*measure) {
    std::vector<float> values;
    for (page_uncertainty const& p : pages) values.push_back(p.*measure);
    std::ranges::sort(values);
    double const place = quantile * static_cast<double>(values.size() - 1);
    auto const low = static_cast<std::size_t>(place);
    std::size_t const high = std::min(low + 1, values.size() - 1);
    return static_cast<float>(values[low] + (place - std::floor(place)) * (values[high] - values[low]));
  };
  return {.mean = at(&page_uncertainty::entropy), .variance = at(&page_uncertainty::varentropy), .page = page};
}

static_assert(trigger_part<entropy>);

}  // namespace kvpolicy::triggers
