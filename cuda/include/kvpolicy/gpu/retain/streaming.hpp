// The first tokens and the last ones, of every sequence of a batch: of all heads, or of those that stream.
#pragma once

#include <algorithm>
#include <concepts>
#include <vector>

#include "kvpolicy/budgets/by_head.hpp"
#include "kvpolicy/detail/eviction.hpp"
#include "kvpolicy/gpu/step/context.hpp"
#include "kvpolicy/scorers/recency.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"

namespace kvpolicy::gpu::detail {

/// Every head alike (StreamingLLM), or each as its budget says (DuoAttention).
template <class Rule>
inline constexpr bool streams_by_head = std::same_as<typename Rule::budget_type, budgets::by_head>;
template <class Rule>
concept keeps_recent = std::same_as<typename Rule::select_type, selectors::top> &&
    std::same_as<typename Rule::trigger_type, triggers::every_step> &&
    (streams_by_head<Rule> ? std::same_as<typename Rule::score_type, scorers::recency_of_heads>
                           : std::same_as<typename Rule::score_type, scorers::recency>&& budgets_on_device<Rule>);

/// What has left a window does not come back. A list for all layers, or one a head of each layer.
template <class Rule, owning_device D>
  requires keeps_recent<Rule>
class decode_retain<Rule, D> {
  static constexpr bool by_head = streams_by_head<Rule>;
  enum number { tail, sinks, rows };  ///< of each layer

 public:
  static constexpr bool stays = false;
  static constexpr std::int64_t retained_lists() noexcept { return 0; }

  explicit decode_retain(decode_context<Rule, D> const& context)
      : context_(context),
        lists_(by_head ? context.shape.kv_heads : 1),
        numbers_(context.numbers(rows * layers(), context.sequences * lists_)),
        kept_(static_cast<std::size_t>(context.sequences * layers() * lists_)),
        ids_(counted(*context.device, context.shape.max_tokens)) {
    if constexpr (by_head) {
      for (std::size_t head = 0; head < context.rule.budget.retrieval.size(); ++head)
        ranks_.push_back(context.rule.budget.rank(head));
    }
  }

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec&) {
    if (piece.layer.value != 0) return;
    // A prompt's end decides among all tokens, as for any retain.
    for (std::int64_t i = 0; i < layers() * lists_; ++i) window_of(piece.sequence, i) = {};
    slide(piece.sequence, piece.view.tokens(), piece.view.tokens());
  }
  void plan(std::int64_t sequence, std::int64_t prompt, std::int64_t tokens) {
    slide(sequence, prompt, tokens);
    for (std::int64_t l = 0; l < layers(); ++l) {
      for (std::int64_t h = 0; h < lists_; ++h) {
        window const& mine = window_of(sequence, l * lists_ + h);
        numbers_.set(l * rows + tail, sequence * lists_ + h, mine.begin);
        numbers_.set(l * rows + sinks, sequence * lists_ + h, std::min(mine.sinks, mine.begin));
      }
    }
  }
  void upload() const { numbers_.upload(*context_.device); }
  static constexpr bool idle() noexcept { return true; }
  void choose(decode_step const&) const noexcept {}

  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id head, std::int64_t tokens) const noexcept {
    std::int64_t const list = sequence * lists_ + (by_head ? head.value : 0);
    return numbers_.get(first_row(layer) + sinks, list) + tokens - numbers_.get(first_row(layer) + tail, list);
  }

  token_lists lists(layer_id layer, per_sequence const& lengths) const noexcept {
    return {.units = ids_.get(),
            .named = numbers_.of(first_row(layer) + sinks).values,
            .tail = numbers_.of(first_row(layer) + tail),
            .tokens = lengths,
            .lists = static_cast<std::int32_t>(lists_),
            .tails = static_cast<std::int32_t>(lists_),
            .about = by_head ? 0 : context_.rule.budget.most_tokens(context_.shape)};
  }

 private:
  struct window {
    std::int64_t sinks = INT32_MAX;  ///< first tokens that are still there
    std::int64_t begin = 0;          ///< of the last ones
  };

  std::int64_t layers() const noexcept { return by_head ? context_.shape.layers : 1; }
  std::int64_t first_row(layer_id layer) const noexcept { return by_head ? layer.value * rows : 0; }
  window& window_of(std::int64_t sequence, std::int64_t list) noexcept {
    return kept_[static_cast<std::size_t>(sequence * layers() * lists_ + list)];
  }

  void slide(std::int64_t sequence, std::int64_t prompt, std::int64_t tokens) {
    cache_shape const& shape = context_.shape;
    std::int64_t streaming = 1;  // lists, those of the lowest ranks
    std::int64_t one = 0;
    if constexpr (by_head) {
      streaming = context_.rule.budget.streaming_heads(tokens);
      one = std::ranges::find(ranks_, 0) - ranks_.begin();
    }
    if (streaming == 0) return;
    head_range const heads = by_head ? head_range{one % lists_, 1} : head_range{0, shape.kv_heads};
    auto const [safe, kept] = protection(context_.rule, shape, {one / lists_}, heads, tokens, prompt);
    std::int64_t const most = kept + safe.beside;
    if (tokens <= most) return;
    for (std::int64_t i = 0; i < layers() * lists_; ++i) {
      if (by_head && ranks_[static_cast<std::size_t>(i)] >= streaming) continue;
      window& mine = window_of(sequence, i);
      mine.sinks = std::min({mine.sinks, safe.sink_end, most});
      mine.begin = std::max(mine.begin, tokens - (most - mine.sinks));
    }
  }

  decode_context<Rule, D> context_;
  std::int64_t lists_;  ///< of a layer, of a sequence
  step_numbers<D> numbers_;
  std::vector<window> kept_;         ///< `[sequences, layers, lists]`
  std::vector<std::int64_t> ranks_;  ///< `[layers, kv_heads]`: how many heads stream before this one does
  array_of<D, std::int32_t> ids_;    ///< 0, 1, 2, ...
};

}  // namespace kvpolicy::gpu::detail
