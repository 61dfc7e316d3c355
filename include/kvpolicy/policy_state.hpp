// Everything of a policy that changes: summaries, choices, the trigger's memory. Made by start(), used by the other verbs.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy {

template <class View, class Summaries>
struct score_input;

/// State of one request under a composed policy. Owned by the engine; not thread-safe; movable.
template <class Parts>
class policy_state {
  using act_type = std::remove_cvref_t<decltype(std::declval<Parts const&>().act())>;

 public:
  policy_state(Parts const& parts, cache_shape const& shape)
      : summaries(parts.act().pool.start(shape, parts.act().segment)),
        trigger(parts.act().trigger.start()),
        shape_(shape),
        unit_size_(parts.act().segment.unit_size()),
        lists_(Parts::how_fine == scope::head ? shape.kv_heads : 1),
        scratch_(parts.act().select.start(parts.act(), shape, lists_)),
        choices_(static_cast<std::size_t>(Parts::how_fine == scope::request ? 1 : shape.layers)),
        kept_(choices_.size() * static_cast<std::size_t>(lists_)) {
    auto const units = static_cast<std::size_t>(parts.act().select.most_units(parts.act(), shape));
    for (choice& c : choices_) {
      c.units.resize(static_cast<std::size_t>(lists_) * units);
      c.counts.resize(static_cast<std::size_t>(lists_));
    }
    most_units_ = static_cast<std::int64_t>(units);
    for (range_list& list : kept_) list.reserve(units + 4);  // and one range each for sinks, recent, open, later tokens
  }

  cache_shape const& shape() const noexcept { return shape_; }
  /// Tokens of the sequence at the last choose, the current one included.
  std::int64_t tokens() const noexcept { return tokens_; }
  bool decided(layer_id layer) const noexcept { return at(layer).among >= 0; }
  selection kept(layer_id layer) const noexcept { return {Parts::how_fine, lists(layer), shape_.kv_heads}; }

  /// A prompt, or a piece of one, whose tokens [first, tokens) are new. Throws invalid_value where it does not fit.
  void begin_prompt(std::int64_t first, std::int64_t tokens) {
    KVPOLICY_EXPECTS(first >= 0 && first <= tokens && tokens <= shape_.max_tokens,
                     "a prompt of tokens " + std::to_string(first) + ".." + std::to_string(tokens) +
                         "; this state was started for up to " + std::to_string(shape_.max_tokens) + "; start a larger one");
    truncate(first);
    tokens_ = tokens;
    trigger.restart();
  }

  /// Forgets every token from `tokens` on. What was decided among the tokens before stands.
  void truncate(std::int64_t tokens) {
    if (tokens < tokens_) trigger.restart();
    tokens_ = std::min(tokens_, tokens);
    summaries.truncate(tokens);
    for (range_list& list : kept_) kvpolicy::truncate(list, tokens);
    for (choice& c : choices_) c.among = tokens == 0 ? undecided : std::min(c.among, tokens);
  }

  void forget_choice() {
    for (choice& c : choices_) c.among = undecided;
  }

  /// A step on a sequence that now has `tokens` tokens; truncates where tokens were taken away since the last one.
  void begin_step(std::int64_t tokens) {
    KVPOLICY_EXPECTS(tokens >= 1 && tokens <= shape_.max_tokens,
                     "a step on " + std::to_string(tokens) + " tokens; this state was started for 1 to " +
                         std::to_string(shape_.max_tokens) + "; start a larger one");
    if (tokens <= tokens_) truncate(tokens - 1);
    tokens_ = tokens;
  }

  /// Runs the act's scorer and selector among the first `tokens` tokens and composes the layer's lists.
  template <class View, class Exec>
  void decide(act_type const& act, View const& view, layer_id layer, std::int64_t tokens, query_heads const& queries,
              query_window const& window, Exec& exec) {
    score_input<View, decltype(summaries)> input{view, layer, tokens, summaries, queries, window};
    protected_tokens const safe = act.window.at(tokens);
    choice& made = at(layer);
    act.select.select(act, scratch_, input, safe, lists_, exec, [&](std::int64_t list, std::span<std::int32_t const> units) {
      std::ranges::copy(units, made.units.begin() + list * most_units_);
      made.counts[static_cast<std::size_t>(list)] = static_cast<std::int64_t>(units.size());
    });
    made.among = tokens;
    if constexpr (Parts::retains) compose(layer, tokens, safe);
  }

  /// Lists from the layer's chosen units and what is protected now.
  void compose(layer_id layer, std::int64_t tokens, protected_tokens const& safe) {
    choice const& made = at(layer);
    std::span const out = lists(layer);
    for (std::int64_t l = 0; l < lists_; ++l) {
      range_list& list = out[static_cast<std::size_t>(l)];
      list.clear();
      append(list, 0, safe.sink_end, reason::sink);
      std::int32_t const* const units = made.units.data() + l * most_units_;
      for (std::int64_t i = 0; i < made.counts[static_cast<std::size_t>(l)]; ++i) {
        std::int64_t const begin = units[i] * unit_size_;
        append(list, begin, std::min(begin + unit_size_, safe.recent_begin), reason::scored);
      }
      append(list, safe.recent_begin, safe.open_begin, reason::recent);
      append(list, safe.open_begin, tokens, reason::open);
    }
  }

  /// Adds the tokens that came since the layer's lists were made.
  void extend(layer_id layer, std::int64_t tokens) {
    for (range_list& list : lists(layer)) append(list, at(layer).among, tokens, reason::open);
  }

  decltype(std::declval<act_type const&>().pool.start(cache_shape{}, std::declval<act_type const&>().segment)) summaries;
  decltype(std::declval<act_type const&>().trigger.start()) trigger;

 private:
  /// Chosen units of one layer (or of the request): `[lists, most_units]`, counts of each list.
  struct choice {
    std::vector<std::int32_t> units;
    std::vector<std::int64_t> counts;
    std::int64_t among = undecided;  ///< how many tokens the choice was made among
  };
  static constexpr std::int64_t undecided = -1;

  static std::size_t slot(layer_id layer) noexcept {
    return Parts::how_fine == scope::request ? 0 : static_cast<std::size_t>(layer.value);
  }
  choice& at(layer_id layer) noexcept { return choices_[slot(layer)]; }
  choice const& at(layer_id layer) const noexcept { return choices_[slot(layer)]; }
  std::span<range_list> lists(layer_id layer) noexcept {
    return std::span(kept_).subspan(slot(layer) * static_cast<std::size_t>(lists_), static_cast<std::size_t>(lists_));
  }
  std::span<range_list const> lists(layer_id layer) const noexcept {
    return std::span(kept_).subspan(slot(layer) * static_cast<std::size_t>(lists_), static_cast<std::size_t>(lists_));
  }

  cache_shape shape_;
  std::int64_t unit_size_;
  std::int64_t lists_;
  std::int64_t most_units_ = 0;
  std::int64_t tokens_ = 0;
  decltype(std::declval<act_type const&>().select.start(std::declval<act_type const&>(), cache_shape{}, 1)) scratch_;
  std::vector<choice> choices_;
  std::vector<range_list> kept_;
};

/// State of the policy that keeps everything: the sequence's length, and one list.
template <class Parts>
  requires(Parts::keeps_all)
class policy_state<Parts> {
 public:
  policy_state(Parts const&, cache_shape const& shape) : shape_(shape) { kept_.reserve(1); }

  cache_shape const& shape() const noexcept { return shape_; }
  std::int64_t tokens() const noexcept { return tokens_; }
  void truncate(std::int64_t tokens) noexcept { tokens_ = std::min(tokens_, tokens); }
  void begin_step(std::int64_t tokens) noexcept { tokens_ = tokens; }

  selection everything(std::int64_t tokens) {
    kept_.clear();
    append(kept_, 0, tokens, reason::open);
    return {scope::request, std::span<range_list const>(&kept_, 1), shape_.kv_heads};
  }

 private:
  cache_shape shape_;
  std::int64_t tokens_ = 0;
  range_list kept_;
};

}  // namespace kvpolicy
