#include "recorder.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvpolicy {

void recorder::start(std::string policy, std::string name, std::int64_t prompt, std::ostream* trace, std::int64_t bins,
                     std::int64_t tokens) {
  policy_ = std::move(policy);
  prompt_ = std::move(name);
  moved_.start(prompt);
  trace_ = trace;
  step_ = -1;
  bin_tokens_ = bins > 0 ? (tokens + bins - 1) / bins : 0;
  shares_.clear();
  on_ = true;
}

void recorder::operator()(layer_id layer, std::int64_t tokens, selection const& kept) {
  if (!on_) return;
  moved_.add(layer, kept);
  if (layer.value == 0) {
    ++step_;
    if (bin_tokens_ > 0) shares_.emplace_back(static_cast<std::size_t>((tokens + bin_tokens_ - 1) / bin_tokens_));
  }
  if (bin_tokens_ > 0) {
    for (std::int64_t h = 0; h < kept.kv_heads(); ++h) {
      for (token_range const& range : kept.of({h})) {
        for (std::int64_t begin = range.begin; begin < range.end;) {
          std::int64_t const bin = begin / bin_tokens_;
          std::int64_t const end = std::min<std::int64_t>(range.end, (bin + 1) * bin_tokens_);
          std::int64_t const whole = std::min(bin_tokens_, tokens - bin * bin_tokens_);
          shares_.back()[static_cast<std::size_t>(bin)] +=
              static_cast<double>(end - begin) / static_cast<double>(whole * kept.kv_heads());
          begin = end;
        }
      }
    }
  }
  if (trace_ == nullptr) return;
  nlohmann::ordered_json line{{"policy", policy_},    {"prompt", prompt_}, {"step", step_},
                              {"layer", layer.value}, {"tokens", tokens},  {"scope", name_of(kept.granularity())}};
  for (range_list const& list : kept.lists()) {
    nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
    for (token_range const& range : list) ranges.push_back({range.begin, range.end, name_of(range.why)});
    line["kept"].push_back(std::move(ranges));
  }
  *trace_ << line.dump() << '\n';
}

nlohmann::json recorder::picture(std::int64_t layers) const {
  nlohmann::json picture = nlohmann::json::array();
  for (auto const& step : shares_) {
    nlohmann::json row = nlohmann::json::array();
    for (double const share : step) row.push_back(std::lround(100 * share / static_cast<double>(layers)));
    picture.push_back(std::move(row));
  }
  return picture;
}

nlohmann::ordered_json recorder::at_work(llama::session const& session) const {
  nlohmann::ordered_json made = moved_.result();
  session.visit_statistics([&](statistic how, char const* what, double value) {
    if (how == statistic::count) made[what] = value;
    else made[what].push_back(value);
  });
  return made;
}

}  // namespace kvpolicy
