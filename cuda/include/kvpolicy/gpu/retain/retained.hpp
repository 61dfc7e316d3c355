// What retains left, of every sequence of a batch, where no kernel runs at a step.
#pragma once

#include <span>

#include "kvpolicy/detail/repeated_state.hpp"
#include "kvpolicy/gpu/retain/kept_tokens.hpp"
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
        kept_(*context.device, context.shape, context.sequences,
              Rule::granularity == scope::head ? context.shape.kv_heads : 1) {}

  /// Decides by the four verbs' own parts, on the host, with the device's primitives.
  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    auto& state = prompts_.prefill(piece, exec);
    if (context_.rule.layers.dense(piece.layer)) kept_.put_all(piece.layer, piece.sequence);
    else kept_.put(piece.layer, piece.sequence, state.retain().lists(piece.layer), piece.view.tokens());
  }
  template <class View, class Exec>
  void wait(prompt_piece<View> const& piece, Exec&) {
    kept_.put_all(piece.layer, piece.sequence);
  }

  void plan(std::int64_t, std::int64_t, std::int64_t) const noexcept {}
  void upload() const { kept_.upload(); }
  std::span<range_list const> kept(std::int64_t sequence, layer_id layer) const noexcept {
    return prompts_[sequence].retain().lists(layer);
  }
  token_lists kept_lists(std::int64_t sequence, layer_id layer, std::int64_t tokens) const noexcept {
    if (context_.rule.layers.dense(layer)) return all_of({{}, tokens});
    return kept_.of_sequence(layer, sequence, tokens);
  }
  std::int64_t retained_lists() const noexcept { return kept_.size(); }
  static constexpr bool idle() noexcept { return true; }
  void choose(decode_step const&) const noexcept {}

  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id head, std::int64_t tokens) const {
    if (context_.rule.layers.dense(layer)) return tokens;
    return kept_.count(deciding(layer), sequence, head, tokens);
  }

  token_lists lists(layer_id layer, per_sequence const& lengths) const noexcept {
    // Every token since the prompt comes on top: a thousand are reckoned with.
    std::int64_t const about = context_.rule.layers.dense(layer) ? 0 : context_.rule.budget.most_tokens(context_.shape) + 1024;
    return kept_.of(deciding(layer), lengths, about);
  }

 private:
  static Rule at_once(Rule rule) noexcept {
    rule.trigger.after = 0;
    return rule;
  }
  static layer_id deciding(layer_id layer) noexcept { return of_request ? layer_id{0} : layer; }

  decode_context<Rule, D> context_;
  host_prompts<policy<Rule, keep_all>> prompts_;
  kept_tokens<D> kept_;
};

}  // namespace kvpolicy::gpu::detail
