#include "movement.hpp"

#include <algorithm>

namespace kvpolicy {

void movement::start(std::int64_t prompt) {
  prompt_ = prompt;
  layers_.clear();
}

void movement::add(layer_id layer, selection const& kept) {
  auto const l = static_cast<std::size_t>(layer.value);
  if (layers_.size() <= l) layers_.resize(l + 1);
  layers_[l].resize(kept.lists().size());
  for (std::size_t i = 0; i < layers_[l].size(); ++i) {
    list& one = layers_[l][i];
    range_list now;
    for (token_range const& range : kept.lists()[i]) {
      if (range.why == reason::scored) append(now, range.begin, std::min<std::int64_t>(range.end, prompt_), range.why);
    }
    one.ever.resize(static_cast<std::size_t>(prompt_));
    for (token_range const& range : now) std::fill(one.ever.begin() + range.begin, one.ever.begin() + range.end, char{1});
    one.read += token_count(now);
    if (one.steps == 0) one.first = now;
    else one.changes += now == one.last ? 0 : 1;
    one.changed = one.changed || now != one.first;
    one.last = std::move(now);
    ++one.steps;
  }
}

nlohmann::ordered_json movement::result() const {
  std::int64_t lists = 0;
  std::int64_t changed = 0;
  std::int64_t changes = 0;
  double read = 0;
  double ever = 0;
  for (auto const& layer : layers_) {
    for (list const& one : layer) {
      ++lists;
      changed += one.changed ? 1 : 0;
      changes += one.changes;
      read += static_cast<double>(one.read) / static_cast<double>(one.steps);
      ever += static_cast<double>(std::ranges::count(one.ever, char{1}));
    }
  }
  auto const mean = [&](double sum) { return lists > 0 ? sum / static_cast<double>(lists) : 0; };
  return {{"lists", lists},
          {"lists_changed", changed},
          {"changes", changes},
          {"scored_tokens_a_step", mean(read)},
          {"scored_tokens_ever", mean(ever)}};
}

}  // namespace kvpolicy
