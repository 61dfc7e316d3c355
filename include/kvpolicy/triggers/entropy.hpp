// Trigger entropy: the choice is made again when the model is unsure (CHESS, sec. 3.3); and calibrate(), for its thresholds.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::triggers {

/// The uncertainty of one generated page.
struct page_uncertainty {
  float entropy = 0;     ///< mean of the tokens' entropies, nats
  float varentropy = 0;  ///< variance of the tokens' entropies within the page, nats squared
};

/// Collects the entropies of tokens into pages. A page closes when the sequence's length reaches a multiple of the page size.
class page_statistics {
 public:
  /// Adds the entropy of one step.
  /// @param entropy  of the next token's distribution, nats
  /// @param tokens  tokens of the sequence when `entropy` was observed
  /// @param page  tokens of a page
  /// @return true if a page closed; last() then describes this page
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
  /// Returns the last closed page's uncertainty.
  page_uncertainty last() const noexcept { return last_; }

 private:
  std::int64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;
  page_uncertainty last_;
};

/// Makes the choice again after an unsure page (CHESS, sec. 3.3).
/// A page is unsure if its mean entropy or its varentropy exceeds the threshold or is NaN; with `both`, if both do. The choice
/// before it must have stood for `rest` steps. Where infinite
/// thresholds keep it from ever firing, the trigger wants no logits.
struct entropy {
  static constexpr signals needs = signals::logits;
  static constexpr bool while_decoding = true;

  float mean = 2.0f;       ///< threshold of a page's mean entropy, nats; calibrate() finds a model's own
  float variance = 2.0f;   ///< threshold of the entropies' variance within a page, nats squared
  std::int32_t page = 32;  ///< tokens of a page
  std::int32_t rest = 0;   ///< fewest steps between two choices
  bool both = false;       ///< both measures have to exceed their thresholds (the shaded region of the paper's Fig. 4)

  constexpr signals wants() const noexcept {
    bool const never = mean == std::numeric_limits<float>::infinity();
    bool const neither = variance == std::numeric_limits<float>::infinity();
    return (both ? never || neither : never && neither) ? signals::none : needs;
  }

  /// One closed page, for statistics.
  struct closed_page {
    std::int64_t end = 0;   ///< tokens of the sequence when the page closed
    page_uncertainty of{};  ///< the page's uncertainty
  };
  /// The open page and the closed ones.
  struct state {
    page_statistics pages;            ///< the open page
    bool fired = false;               ///< the last step closed an unsure page
    std::vector<closed_page> closed;  ///< the last `most` closed pages
    std::size_t most = 0;             ///< pages that the cache can hold

    void restart() noexcept { pages = {}; }
    template <class Archive>
    void archive(Archive& a) {
      a(pages, fired, closed);
    }
  };
  state start(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(page >= 1, "pages of " + std::to_string(page) + " tokens; they need at least 1");
    KVPOLICY_EXPECTS(mean == mean && variance == variance && rest >= 0,
                     "thresholds of " + std::to_string(mean) + " nats and " + std::to_string(variance) + " squared, with " +
                         std::to_string(rest) + " steps of rest; thresholds are numbers, and rest is not negative");
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
    bool const unsure = !(last.entropy <= mean);
    bool const uneven = !(last.varentropy <= variance);
    s.fired = both ? unsure && uneven : unsure || uneven;
    while (!s.closed.empty() && s.closed.back().end >= tokens) s.closed.pop_back();  // pages of tokens that the engine removed
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

/// Finds thresholds that a share of a calibration run's pages stay within, for each measure by itself.
/// The thresholds are quantiles, with linear interpolation between order statistics.
/// @param pages  the generated pages of the calibration run
/// @param page  tokens of a page
/// @param quantile  share of the pages, 0 to 1; the paper takes .99
/// @return the trigger with these thresholds
/// @throws invalid_value if there are no pages, or `quantile` is not in 0..1
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
