// What is retained once the engine has repeated the prompt (KVzip), of every sequence of a batch.
#pragma once

#include <vector>

#include "kvpolicy/detail/repeated_state.hpp"
#include "kvpolicy/gpu/retain/kept_tokens.hpp"
#include "kvpolicy/gpu/step/host_prompts.hpp"

namespace kvpolicy::gpu::detail {

/// Every token, until a repetition ends: from then on what was chosen, and every token since.
template <class Rule, owning_device D>
  requires chooses_by_repetition<Rule>
class decode_retain<Rule, D> {
 public:
  static constexpr bool stays = false;  // what a retrieve would index changes when the last layer has heard the repetition

  explicit decode_retain(decode_context<Rule, D> const& context)
      : context_(context),
        prompts_({context.rule, keep_all{}}, context.shape, context.sequences),
        kept_(*context.device, context.shape, context.sequences, context.shape.kv_heads) {}

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    if (piece.layer.value == 0) prompts_.catch_up(piece, exec);
    auto& state = prompts_.prefill(piece, exec);
    if (piece.layer.value + 1 < context_.shape.layers) return;
    for (std::int64_t l = 0; l < context_.shape.layers; ++l) put(state, {l}, piece.sequence);
  }

  void plan(std::int64_t, std::int64_t, std::int64_t) const noexcept {}
  void upload() const { kept_.upload(); }
  static constexpr std::int64_t retained_lists() noexcept { return 0; }
  static constexpr bool idle() noexcept { return true; }
  void choose(decode_step const&) const noexcept {}

  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id head, std::int64_t tokens) const noexcept {
    return kept_.count(layer, sequence, head, tokens);
  }
  token_lists lists(layer_id layer, per_sequence const& lengths) const noexcept { return kept_.of(layer, lengths, 0); }

 private:
  /// The lists of the host's state, without the repetition's own tokens, which the engine removes.
  template <class State>
  void put(State& state, layer_id layer, std::int64_t sequence) {
    std::int64_t const tokens = prompts_.tokens(sequence);
    std::vector<range_list> lists(state.retain().lists(layer).begin(), state.retain().lists(layer).end());
    bool whole = true;
    for (range_list& list : lists) {
      truncate(list, tokens);
      whole = whole && token_count(list) == tokens;
    }
    if (whole) kept_.put_all(layer, sequence);
    else kept_.put(layer, sequence, lists, tokens);
  }

  decode_context<Rule, D> context_;
  host_prompts<policy<Rule, keep_all>> prompts_;
  kept_tokens<D> kept_;
};

}  // namespace kvpolicy::gpu::detail
