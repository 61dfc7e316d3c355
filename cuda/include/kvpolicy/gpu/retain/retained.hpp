// What retains left, of every sequence of a batch, where no kernel runs at a step.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kvpolicy/gpu/retain/late_queries.hpp"
#include "kvpolicy/gpu/step/host_prompts.hpp"
#include "kvpolicy/triggers/prefill.hpp"

namespace kvpolicy::gpu::detail {

/// Chosen at the prompt's end, or some tokens later: the tokens that were kept then, and every one since.
template <class Rule, owning_device D>
  requires(std::same_as<typename Rule::trigger_type, triggers::prefill> && !chooses_by_repetition<Rule>)
class decode_retain<Rule, D> {
  static constexpr bool of_request = Rule::granularity == scope::request;

 public:
  static constexpr bool stays = true;
  static constexpr bool can_wait = !of_request && contains(Rule::needs, signals::observation_queries);

  explicit decode_retain(decode_context<Rule, D> const& context)
      : context_(context),
        prompts_({at_once(context.rule), keep_all{}}, context.shape, context.sequences),
        tails_(*context.device, context.shape.layers, context.sequences),
        lists_(*context.device, context.shape.layers, context.sequences,
               Rule::granularity == scope::head ? context.shape.kv_heads : 1, context.shape.max_tokens),
        counts_(static_cast<std::size_t>(context.shape.layers * lists_.rows())) {
    if (context.rule.trigger.after > 0)
      late_.emplace(*context.device, context.shape, context.sequences, context.rule.trigger.after,
                    requirements_of(context.rule).observation_queries);
  }

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    if (!late_) return decide_now(piece, exec);
    late_->begin(piece.sequence, piece.layer, piece.prompt, piece.view.tokens());
    std::vector<range_list> const none(static_cast<std::size_t>(lists_.lists()));  // every token is read
    tails_.set(piece.layer.value, piece.sequence, 0);
    lists_.upload(piece.layer, piece.sequence, none, *context_.device);
    for (std::size_t l = 0; l < none.size(); ++l) counts_[place(piece.layer, piece.sequence, l)] = 0;
  }
  /// Makes a layer's choices that are due at the planned step. `view_of(sequence)` is the sequence's view.
  template <class ViewOf, class Exec>
  void decide(decode_step const& step, ViewOf view_of, Exec& exec) {
    if (!late_) return;
    late_->add(step);
    for (std::int64_t s = 0; s < context_.sequences; ++s) {
      if (!late_->due(s)) continue;
      auto const view = view_of(s);
      prompt_signals from{};
      from.queries = late_->last(s, step.layer, step.scale);
      from.observed_from = view.tokens() - from.queries.tokens;
      decide_now(prompt_piece<std::decay_t<decltype(view)>>{s, view, step.keys, step.layer, from}, exec);
      if (step.layer.value + 1 == context_.shape.layers) late_->end(s);
    }
  }

  void plan(std::int64_t sequence, std::int64_t, std::int64_t tokens) {
    if (late_) late_->plan(sequence, tokens);
  }
  void upload() const {
    tails_.upload(*context_.device);
    if (late_) late_->upload();
  }
  bool decides() const noexcept { return late_ && late_->any_due(); }
  bool waits() const noexcept { return late_ && late_->waits(); }
  void expect_decided() const {
    if (late_) late_->expect_decided();
  }
  void expect_undone(std::int64_t sequence, std::int64_t prompt, std::int64_t tokens) const {
    if (late_) late_->expect_undone(sequence, prompt, tokens);
  }
  std::span<range_list const> kept(std::int64_t sequence, layer_id layer) const noexcept {
    return prompts_[sequence].retain().lists(layer);
  }
  token_lists kept_lists(std::int64_t sequence, layer_id layer, std::int64_t tokens) const noexcept {
    if (context_.rule.layers.dense(layer)) return all_of({{}, tokens});
    return lists_.of_sequence(layer, sequence, tokens);
  }
  std::int64_t retained_lists() const noexcept { return lists_.lists(); }
  static constexpr bool idle() noexcept { return true; }
  void choose(decode_step const& step) {
    if (late_) late_->add(step);
  }

  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id head, std::int64_t tokens) const {
    if (context_.rule.layers.dense(layer)) return tokens;
    std::int64_t const since = tokens - tails_.get(deciding(layer).value, sequence);
    return counts_[place(deciding(layer), sequence, lists_.lists() == 1 ? 0 : static_cast<std::size_t>(head.value))] + since;
  }

  token_lists lists(layer_id layer, per_sequence const& lengths) const noexcept {
    // Every token since the prompt comes on top: a thousand are reckoned with.
    std::int64_t const about = context_.rule.layers.dense(layer) ? 0 : context_.rule.budget.most_tokens(context_.shape) + 1024;
    return lists_.of(deciding(layer), tails_.of(deciding(layer).value), lengths, about);
  }

 private:
  /// Decides by the four verbs' own parts, on the host, with the device's primitives.
  template <class View, class Exec>
  void decide_now(prompt_piece<View> const& piece, Exec& exec) {
    auto& state = prompts_.prefill(piece, exec);
    bool const dense = context_.rule.layers.dense(piece.layer);
    tails_.set(piece.layer.value, piece.sequence, dense ? 0 : piece.view.tokens());
    std::span<range_list const> lists = state.retain().lists(piece.layer);
    std::vector<range_list> const none(lists.size());
    if (dense) lists = none;
    lists_.upload(piece.layer, piece.sequence, lists, *context_.device);
    for (std::size_t l = 0; l < lists.size(); ++l) counts_[place(piece.layer, piece.sequence, l)] = token_count(lists[l]);
  }
  static Rule at_once(Rule rule) noexcept {
    rule.trigger.after = 0;
    return rule;
  }
  static layer_id deciding(layer_id layer) noexcept { return of_request ? layer_id{0} : layer; }
  std::size_t place(layer_id layer, std::int64_t sequence, std::size_t list) const noexcept {
    return static_cast<std::size_t>(layer.value * lists_.rows() + sequence * lists_.lists()) + list;
  }

  decode_context<Rule, D> context_;
  host_prompts<policy<Rule, keep_all>> prompts_;
  step_numbers<D> tails_;
  list_store<D> lists_;
  std::vector<std::int64_t> counts_;  ///< `[layers, sequences, lists]` tokens of the prompt
  std::optional<late_queries<D>> late_;
};

}  // namespace kvpolicy::gpu::detail
