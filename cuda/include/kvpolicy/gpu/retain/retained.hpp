// What retains left, of every sequence of a batch, where no kernel runs at a step.
#pragma once

#include <span>
#include <vector>

#include "kvpolicy/detail/repeated_state.hpp"
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
        counts_(static_cast<std::size_t>(context.shape.layers * lists_.rows())) {}

  /// Decides by the four verbs' own parts, on the host, with the device's primitives.
  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    auto& state = prompts_.prefill(piece, exec);
    bool const dense = context_.rule.layers.dense(piece.layer);
    std::span<range_list const> const lists = state.retain().lists(piece.layer);
    if (dense) read_all(piece.layer, piece.sequence);
    else put(lists, piece.layer, piece.sequence, piece.view.tokens());
  }
  template <class View, class Exec>
  void wait(prompt_piece<View> const& piece, Exec&) {
    read_all(piece.layer, piece.sequence);
  }

  void plan(std::int64_t, std::int64_t, std::int64_t) const noexcept {}
  void upload() const { tails_.upload(*context_.device); }
  std::span<range_list const> kept(std::int64_t sequence, layer_id layer) const noexcept {
    return prompts_[sequence].retain().lists(layer);
  }
  token_lists kept_lists(std::int64_t sequence, layer_id layer, std::int64_t tokens) const noexcept {
    if (context_.rule.layers.dense(layer)) return all_of({{}, tokens});
    return lists_.of_sequence(layer, sequence, tokens);
  }
  std::int64_t retained_lists() const noexcept { return lists_.lists(); }
  static constexpr bool idle() noexcept { return true; }
  void choose(decode_step const&) const noexcept {}

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
  void put(std::span<range_list const> lists, layer_id layer, std::int64_t sequence, std::int64_t tail) {
    tails_.set(layer.value, sequence, tail);
    lists_.upload(layer, sequence, lists, *context_.device);
    for (std::size_t l = 0; l < lists.size(); ++l) counts_[place(layer, sequence, l)] = token_count(lists[l]);
  }
  void read_all(layer_id layer, std::int64_t sequence) {
    put(std::vector<range_list>(static_cast<std::size_t>(lists_.lists())), layer, sequence, 0);
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
};

}  // namespace kvpolicy::gpu::detail
