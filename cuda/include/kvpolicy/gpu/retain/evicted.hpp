// Tokens evicted at every step by the attention that they got (H2O, TOVA), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <vector>

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/detail/eviction.hpp"
#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/retain/evict.hpp"
#include "kvpolicy/gpu/step/host_prompts.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/scorers/accumulated_attention.hpp"
#include "kvpolicy/scorers/last_attention.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::gpu::detail {

template <class Rule>
concept scores_by_attention = std::same_as<typename Rule::score_type, scorers::accumulated_attention> ||
    std::same_as<typename Rule::score_type, scorers::last_attention>;
template <class Rule>
concept evicts_by_attention =
    scores_by_attention<Rule> && std::same_as<typename Rule::trigger_type, triggers::every_step> && budgets_on_device<Rule>;

/// A step's attention is over what the last one left and the step's own token; its weights decide what is left for the next.
template <class Rule, owning_device D>
  requires evicts_by_attention<Rule>
class decode_retain<Rule, D> {
  static constexpr bool sums = std::same_as<typename Rule::score_type, scorers::accumulated_attention>;
  /// Rows of each layer's numbers.
  enum number { last_tokens, most, sink_end, recent_begin, first_query, tail, rows };

 public:
  static constexpr bool stays = false;
  static constexpr std::int64_t retained_lists() noexcept { return 0; }

  explicit decode_retain(decode_context<Rule, D> const& context)
      : context_(context),
        prompts_({context.rule, keep_all{}}, context.shape, context.sequences),
        stepped_(static_cast<std::size_t>(context.sequences)),
        layers_(alike_in_layers(context.rule.budget) ? 1 : context.shape.layers),
        numbers_(context.numbers(layers_ * rows)),
        lists_(*context.device, context.shape.layers, context.sequences,
               Rule::granularity == scope::head ? context.shape.kv_heads : 1, context.shape.max_tokens),
        weights_(context.template by_layer<float>(context.heads() * context.shape.max_tokens)),
        sums_(context.template by_layer<float>(sums ? context.heads() * context.shape.max_tokens : 0)) {
    KVPOLICY_EXPECTS(context.rule.select.heads == selectors::merge::sum,
                     "a kernel sums the scores of heads that share a list; set the selector's `heads` to sum");
  }

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    auto& state = prompts_.prefill(piece, exec);
    layer_id const layer = piece.layer;
    stepped_[static_cast<std::size_t>(piece.sequence)] = 0;
    if (context_.rule.layers.dense(layer)) return;
    lists_.upload(layer, piece.sequence, state.retain().lists(layer), *context_.device);
    if constexpr (sums) {
      auto& memory = state.retain().memory();
      numbers_.set_all(first_row(layer) + first_query, piece.sequence, memory.first_query);
      std::vector<float> of_head(static_cast<std::size_t>(context_.shape.max_tokens));  // tokens to come begin at nothing
      for (std::int64_t h = 0; h < context_.shape.kv_heads; ++h) {
        std::copy_n(memory.row(layer, h), piece.view.tokens(), of_head.begin());
        std::int64_t const row = piece.sequence * context_.shape.kv_heads + h;
        context_.device->upload(part_of(sums_.of(layer), row * context_.shape.max_tokens, context_.shape.max_tokens),
                                of_head.data(), context_.shape.max_tokens);
      }
    }
  }

  /// What the last step evicts is decided at this one, with the last one's numbers.
  void plan(std::int64_t sequence, std::int64_t prompt, std::int64_t tokens) {
    Rule const& rule = context_.rule;
    cache_shape const& shape = context_.shape;
    std::int64_t& last = stepped_[static_cast<std::size_t>(sequence)];
    for (std::int64_t l = 0; l < layers_; ++l) {
      bool const dense = layers_ > 1 && rule.layers.dense({l});
      auto const set = [&](number row, std::int64_t value) { numbers_.set(l * rows + row, sequence, value); };
      set(tail, tokens == 0 || dense ? 0 : tokens - 1);
      set(last_tokens, tokens == 0 || dense ? 0 : last);
      if (tokens == 0 || last == 0) continue;
      auto const [safe, kept] = protection(rule, shape, {l}, {0, shape.kv_heads}, last, prompt);
      set(most, kept + safe.beside);
      set(sink_end, safe.sink_end);
      set(recent_begin, safe.recent_begin);
    }
    if (tokens > 0) last = tokens;
  }
  void upload() const { numbers_.upload(*context_.device); }

  void choose(decode_step const& step) {
    layer_id const layer = step.layer;
    cache_shape const& shape = context_.shape;
    if (context_.rule.layers.dense(layer) || context_.rule.layers.leader(layer) != layer) return;
    evict_body::arguments a{};
    a.ids = lists_.units(layer);
    a.stride = lists_.stride();
    a.named = lists_.named(layer);
    a.lists = static_cast<std::int32_t>(lists_.lists());
    a.tokens = number_of(layer, last_tokens);
    a.most = number_of(layer, most);
    a.sink_end = number_of(layer, sink_end);
    a.recent_begin = number_of(layer, recent_begin);
    a.first_query = number_of(layer, first_query);
    a.weights = weights_.of(layer);
    a.weight_stride = shape.max_tokens;
    a.heads = static_cast<std::int32_t>(shape.kv_heads);
    if constexpr (sums) {
      a.sums = sums_.of(layer);
      a.mean = context_.rule.score.mean;
    }
    context_.device->template launch<evict_body>({lists_.lists(), context_.sequences, 1}, a);
    list_weights w{};
    w.queries = step.queries;
    w.scale = step.scale;
    w.group = static_cast<std::int32_t>(shape.group());
    w.keys = step.keys;
    w.lists = lists(layer, step.lengths);
    w.sequences = context_.sequences;
    w.most_tokens = std::min(shape.max_tokens, longest() + 1);  // with the step's own token
    w.out = weights_.of(layer);
    w.sequence_stride = shape.kv_heads * shape.max_tokens;
    w.head_stride = shape.max_tokens;
    launch_list_weights(*context_.device, w);
  }

  token_lists lists(layer_id layer, per_sequence const& lengths) const noexcept {
    if (context_.rule.layers.dense(layer)) return all_of(lengths);
    return lists_.of(context_.rule.layers.leader(layer), number_of(layer, tail), lengths, longest());
  }

 private:
  /// Tokens that a step leaves in a list at most.
  std::int64_t longest() const noexcept {
    if (keeps_prompt(context_.rule.window)) return context_.shape.max_tokens;
    return context_.rule.budget.most_tokens(context_.shape);
  }
  std::int64_t first_row(layer_id layer) const noexcept { return layers_ == 1 ? 0 : layer.value * rows; }
  per_sequence number_of(layer_id layer, number row) const noexcept { return numbers_.of(first_row(layer) + row); }

  decode_context<Rule, D> context_;
  host_prompts<policy<Rule, keep_all>> prompts_;
  std::vector<std::int64_t> stepped_;  ///< tokens at the last step since the prompt, or 0
  std::int64_t layers_;                ///< that numbers are kept of: one where all are alike
  step_numbers<D> numbers_;
  list_store<D> lists_;
  layer_array<D, float> weights_;  ///< `[sequences, kv_heads, max_tokens]` of the last step
  layer_array<D, float> sums_;     ///< the same by token, where weights are accumulated
};

}  // namespace kvpolicy::gpu::detail
