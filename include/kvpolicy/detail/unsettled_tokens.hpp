// The later tokens of a step that brought several: what their own steps will need, if the engine keeps them.
#pragma once

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kvpolicy/detail/observed_queries.hpp"
#include "kvpolicy/primitive/attend.hpp"

namespace kvpolicy {

/// The tokens behind a step's first one. The rules see them when the next verb shows how many of them stay. Until then their
/// lists are shown here: what the rules chose for the first token, and these tokens behind it.
class unsettled_tokens {
 public:
  bool any() const noexcept { return count_ > 0; }
  std::int64_t count() const noexcept { return count_; }
  /// How many of them lie in the first `tokens`.
  std::int64_t within(std::int64_t tokens) const noexcept { return std::clamp<std::int64_t>(tokens - first_, 0, count_); }
  /// How many tokens the rules have seen, and the ids of those behind them, if the step had ids.
  std::int64_t first() const noexcept { return first_; }
  std::span<std::int32_t const> ids() const noexcept { return {ids_.data() + settled_, static_cast<std::size_t>(count_)}; }

  /// The first tokens are settled, and there are no others.
  void none(std::int64_t first) noexcept {
    first_ = first;
    count_ = 0;
  }
  /// A step's tokens follow the first ones; its first token is settled with them.
  void begin(std::int64_t first, step_window const& step) {
    first_ = first + 1;
    count_ = step.tokens - 1;
    settled_ = observed_ = 0;
    tried_ = false;
    ids_.fill(-1);
    std::ranges::copy(step.token_ids.subspan(std::min<std::size_t>(1, step.token_ids.size())), ids_.begin());
    for (std::vector<range_list>& lists : kept_) lists.clear();
    for (std::vector<range_list>& lists : retained_) lists.clear();
  }
  /// Shows, in a layer, what the rules chose and retain for the step's first token; keeps the others' queries, if the rules
  /// need queries.
  template <class Rules>
  void show(layer_id layer, query_window const& of_step, Rules const& rules, cache_shape const& shape) {
    if (contains(rules.needs(), signals::queries)) add(layer, of_step, shape);
    show_in(kept_, layer, rules.kept(layer).lists(), shape);
    show_in(retained_, layer, rules.retained(layer).lists(), shape);
  }
  /// What was shown of a layer; empty where nothing was.
  std::span<range_list const> kept(layer_id layer) const noexcept { return shown(kept_, layer); }
  std::span<range_list const> retained(layer_id layer) const noexcept { return shown(retained_, layer); }

  /// The outcome of the next of them that has none. Outcomes of those that do not stay are not given.
  void observe(float entropy) noexcept {
    if (observed_ < entropies_.size()) entropies_[observed_++] = entropy;
  }

  /// Settles the first `stay` of them: the rules learn from each as if it had come alone, and of its outcome if that was
  /// observed. A token whose choice threw before is forgotten first.
  template <class Rules, class View, class Exec>
  void settle(std::int64_t stay, Rules& rules, std::int64_t layers, View const& view, Exec& exec) {
    if (!rules.by_steps()) {
      if (stay > 0) rules.skip(first_, ids().first(static_cast<std::size_t>(stay)));
      return pass(stay);
    }
    for (; stay > 0; --stay) {
      if (std::exchange(tried_, true)) rules.truncate(first_);
      std::int64_t const tokens = first_ + 1;
      for (layer_id l{0}; l.value < layers; ++l.value) rules.choose(view.first(tokens), l, signals_of(l), exec);
      if (settled_ < observed_) rules.observe(tokens, {.logits = {}, .entropy = entropies_[settled_]}, exec);
      pass(1);
    }
  }

  /// What is shown of the step that was saved is not read back: the next verb follows.
  template <class Archive>
  void archive(Archive& a, cache_shape const& shape) {
    bool with_queries = any() && !queries_.empty();
    a(first_, count_, settled_, observed_, ids_, entropies_, with_queries);
    if constexpr (Archive::reads) {
      auto const most = static_cast<std::size_t>(most_step_tokens - 1);
      bool const fits = first_ >= 0 && first_ <= shape.max_tokens && count_ >= 0 && settled_ <= most &&
                        static_cast<std::size_t>(count_) <= most - settled_ && observed_ <= most;
      if (!fits) Archive::refuse();
      kept_.clear();
      retained_.clear();
      queries_ = with_queries ? observed_queries(shape.layers, most_step_tokens, shape) : observed_queries();
      queries_.reserve();
    }
    if (with_queries) a(queries_);
  }

 private:
  using lists_of_layers = std::vector<std::vector<range_list>>;

  static std::size_t at(layer_id layer) noexcept { return static_cast<std::size_t>(layer.value); }
  void add(layer_id layer, query_window const& of_step, cache_shape const& shape) {
    if (queries_.empty()) {
      queries_ = observed_queries(shape.layers, most_step_tokens, shape);
      queries_.reserve();
    }
    queries_.begin(at(layer), of_step.last(count_), first_ + count_);
  }
  /// Takes some of them away from the front.
  void pass(std::int64_t tokens) noexcept {
    tried_ = false;
    settled_ += static_cast<std::size_t>(tokens);
    first_ += tokens;
    count_ -= tokens;
  }
  /// The front one's signals in a layer.
  step_signals signals_of(layer_id layer) {
    step_signals made{.queries = {}, .token_id = ids_[settled_]};
    if (!queries_.empty()) made.queries = queries_.last(at(layer), most_step_tokens).token(static_cast<std::int64_t>(settled_));
    return made;
  }
  void show_in(lists_of_layers& all, layer_id layer, std::span<range_list const> lists, cache_shape const& shape) const {
    all.resize(static_cast<std::size_t>(shape.layers));
    all[at(layer)].assign(lists.begin(), lists.end());
    for (range_list& list : all[at(layer)]) append(list, first_, first_ + count_, reason::open);
  }
  std::span<range_list const> shown(lists_of_layers const& all, layer_id layer) const noexcept {
    if (!any() || at(layer) >= all.size()) return {};
    return all[at(layer)];
  }

  std::int64_t first_ = 0;
  std::int64_t count_ = 0;
  std::size_t settled_ = 0;
  std::size_t observed_ = 0;
  bool tried_ = false;
  std::array<std::int32_t, most_step_tokens> ids_{};
  std::array<float, most_step_tokens> entropies_{};
  observed_queries queries_;
  lists_of_layers kept_;
  lists_of_layers retained_;
};

}  // namespace kvpolicy
