// A request: a policy at work on one sequence, and the verbs that an engine calls: prefill, choose, observe.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kvpolicy/detail/call_order.hpp"
#include "kvpolicy/detail/indexed_tokens.hpp"
#include "kvpolicy/detail/keep_all_state.hpp"
#include "kvpolicy/detail/late_choice.hpp"
#include "kvpolicy/detail/retain_state.hpp"
#include "kvpolicy/detail/retrieve_state.hpp"
#include "kvpolicy/detail/signal_checks.hpp"

namespace kvpolicy {

/// Made by start(); owns the rules of its policy, and everything of them that changes: what the retain left, what the retrieve
/// chose of that. Not thread-safe; a copy goes its own way. Nothing allocates but construction, copies, and what is then
/// without room in the steps of a copy, or at prefill where tokens are gone.
///
/// Every verb checks its input before it reads or writes anything: invalid_value for a shape, a layer, a number of tokens or an
/// order that can't be, unsupported for a signal that the policy needs and was not given. A verb that throws, then or later, is
/// not counted: the prompt, or the step, may be begun again at layer 0.
template <class Retain, class Retrieve>
class request {
 public:
  request(Retain const& retain, Retrieve const& retrieve, cache_shape const& shape)
      : retain_requirements_(requirements_of(retain)),
        retrieve_requirements_(requirements_of(retrieve)),
        shape_(shape),
        order_(
            shape.layers,
            std::max(retain_requirements_.granularity, retrieve_requirements_.granularity) == scope::request ? 1 : shape.layers,
            shape.max_tokens),
        retain_(start_retain(retain, shape)),
        retrieve_(start_retrieve(retrieve, shape, retain_.max_ranges())) {
    std::int64_t const window = std::max(retain_requirements_.observation_queries, retrieve_requirements_.observation_queries);
    if (retain_requirements_.after > 0) late_ = {retain_requirements_.after, window, shape};
    if (late_.in_use() && window > 0) retain_requirements_.needs = retain_requirements_.needs | signals::queries;
    if (!retain_requirements_.keeps_all && retrieves()) retained_ = indexed_tokens(retain_requirements_.granularity, shape);
  }

  cache_shape const& shape() const noexcept { return shape_; }
  /// Tokens of the sequence at the last verb, a step's own included.
  std::int64_t tokens() const noexcept { return order_.tokens(); }
  /// Layers that were prefilled with the last prompt, and that have chosen in the last step.
  std::int64_t prefilled() const noexcept { return order_.prefilled(); }
  std::int64_t chosen() const noexcept { return order_.chosen(); }
  /// The checks of order that prefill, choose and observe begin with, for who has more to check before them.
  void check_prompt(layer_id layer, std::int64_t first, std::int64_t tokens) const {
    order_.check_prompt(layer, first, tokens);
  }
  void check_step(layer_id layer, std::int64_t tokens) const { order_.check_step(layer, tokens); }
  void check_outcome() const { order_.check_outcome(); }
  /// What this request needs of the verbs.
  signals needs() const noexcept { return retain_requirements_.needs | retrieve_requirements_.needs; }

  /// What a step reads in this layer; after choose.
  selection kept(layer_id layer) const noexcept {
    if (retrieves() && !late_.waits(layer))
      return {retrieve_requirements_.granularity, retrieve_.lists(layer), shape_.kv_heads};
    return retained(layer);
  }
  /// What is there at all in this layer, read or not; after prefill.
  selection retained(layer_id layer) const noexcept {
    return {retain_requirements_.granularity, retain_.lists(layer), shape_.kv_heads};
  }

  /// Whether the layer's choice waits for more of the answer: all that is there is read.
  bool waits(layer_id layer) const noexcept { return late_.waits(layer); }
  /// Changes whenever the retain drops tokens of this layer.
  std::int64_t revision(layer_id layer) const noexcept { return retain_.revision(layer); }

  /// How many of the last tokens that are retained of this head steps look at whatever is chosen: those of a unit that is not
  /// full, or every one (all_tokens), where keys are looked at one by one or all that is retained is read. The others' rows may
  /// be elsewhere until they are chosen. After prefill.
  std::int64_t always_read(layer_id layer, std::int64_t head) const {
    if (!retrieves() || late_.waits(layer)) return all_tokens;
    return std::max(retain_.always_read(layer, head), retrieve_.always_read(layer, head));
  }

  /// A layer's keys of a prompt, or of a further piece of one, are written: the view's tokens from prompt.first on. For every
  /// layer, in order; each may be followed by its choose() at once. Whatever lay behind `first` is forgotten, so a shortened or
  /// replaced tail is no special case. The retain decides among all rows of the view, or among those that are there; a
  /// policy that waits for the answer's first tokens does so in the choose() of the last of them.
  template <kv_cache_view View, executor_for<View> Exec>
  void prefill(View const& view, layer_id layer, prompt_signals const& prompt, Exec& exec) {
    std::int64_t const tokens = view.tokens();
    order_.check_prompt(layer, prompt.first, tokens);
    check_view(view, layer, needs(), shape_);
    check_signals(prompt, needs(), tokens, shape_);
    if (retain_requirements_.keeps_all && !prompt.resident.empty()) {
      throw unsupported("the policy keeps every token, and rows of some are gone; begin with an empty sequence");
    }
    if (layer.value == 0) {
      truncate(prompt.first);
      order_.begin_prompt(prompt.first, tokens);
    }
    if (late_.in_use()) wait(layer, tokens, prompt);
    else decide(view, layer, prompt, exec);
    order_.prefilled_one();
  }

  /// Before attention of one token, which is the view's last: its key must be there for `layer`, and for no other layer. For
  /// every layer, in order; a choice for the whole request is made at layer 0, from the tokens before this one, and further
  /// layers may be left out. If the view has not more tokens than at the last call, its tail was removed: that is followed.
  /// Without a prompt, a sequence begins with a step on one token. The selection holds until the next verb.
  template <kv_cache_view View, executor_for<View> Exec>
  selection choose(View const& view, layer_id layer, step_signals const& step, Exec& exec) {
    std::int64_t const tokens = view.tokens();
    order_.check_step(layer, tokens);
    check_view(view, layer, needs(), shape_);
    check_signals(step, needs(), shape_);
    if (layer.value == 0) {
      if (tokens <= order_.tokens()) truncate(tokens - 1);
      order_.begin_step(tokens);
    }
    retain_.choose(view, layer, {}, step, exec);
    if (late_.waits(layer)) {
      retrieve_.wait(layer, tokens, {.first = tokens - 1, .token_ids = {&step.token_id, 1}});
      late_.add(layer, step.queries, tokens);
    }
    if (late_.due(layer, tokens)) decide_late(view, layer, exec);
    if (retrieves() && !late_.waits(layer)) retrieve_.choose(view, layer, follow_retain(layer, tokens), step, exec);
    order_.chosen_one();
    return kept(layer);
  }

  /// After a step: what came of it, for triggers.
  template <executor Exec>
  void observe(step_outcome const& outcome, Exec& exec) {
    order_.check_outcome();
    check_signals(outcome, needs());
    retain_.observe(order_.tokens(), outcome, exec);
    retrieve_.observe(order_.tokens(), outcome, exec);
    order_.observed();
  }

  /// What the rules did since the request was started.
  void visit_statistics(statistic_visitor const& visit) const {
    retain_.visit_statistics(visit);
    retrieve_.visit_statistics(visit);
  }

  /// What it remembers, for state_writer and state_reader: a request of the same policy and shape that reads it goes on as
  /// this one. Throws unsupported for a policy with a part of one's own that does not say what of it lasts; a request that
  /// threw while it was read is of no use.
  template <class Archive>
  void archive(Archive& a) {
    a(order_, retained_, late_);
    retain_.archive(a);
    retrieve_.archive(a);
  }

  /// The rules at work, for those who go on from where the prompt left them (the decoder on a GPU).
  auto& retain() noexcept { return retain_; }
  auto const& retain() const noexcept { return retain_; }
  auto& retrieve() noexcept { return retrieve_; }

 private:
  bool retrieves() const noexcept { return !retrieve_requirements_.keeps_all; }

  template <class View, class Exec>
  void decide(View const& view, layer_id layer, prompt_signals const& prompt, Exec& exec) {
    retain_.prefill(view, layer, {}, prompt, exec);
    retrieve_.prefill(view, layer, follow_retain(layer, view.tokens()), prompt, exec);
  }
  /// Until the answer has as many tokens as the policy waits for, all that is there stays, and is read.
  void wait(layer_id layer, std::int64_t tokens, prompt_signals const& prompt) {
    retain_.wait(layer, tokens, prompt);
    retrieve_.wait(layer, tokens, prompt);
    late_.begin(layer, prompt, tokens);
  }
  template <class View, class Exec>
  void decide_late(View const& view, layer_id layer, Exec& exec) {
    prompt_signals const prompt = late_.prompt(layer, view.tokens());
    try {
      decide(view, layer, prompt, exec);
    } catch (...) {
      retain_.wait(layer, view.tokens(), prompt);  // all that is there, for a step that is begun again
      throw;
    }
    late_.end(layer);
  }

  /// Forgets every token from `tokens` on. What was decided among the tokens before stands.
  void truncate(std::int64_t tokens) {
    late_.truncate(tokens);
    retain_.truncate(tokens);
    retrieve_.truncate(tokens);
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      if (retained_.all()) retrieve_.cut({l}, {0, shape_.kv_heads}, tokens);
      else retained_.truncate({l}, tokens, [&](head_range heads, std::int64_t left) { retrieve_.cut({l}, heads, left); });
    }
  }

  /// What the retain left of a layer's first `tokens` tokens, by index.
  retained_tokens follow_retain(layer_id layer, std::int64_t tokens) {
    if (retained_.all()) return {};
    return retained_.follow(layer, retain_.lists(layer), retain_.revision(layer), tokens,
                            [&](layer_id of, head_range heads, std::int64_t same) { retrieve_.cut(of, heads, same); });
  }

  requirements retain_requirements_;
  requirements retrieve_requirements_;
  cache_shape shape_;
  call_order order_;
  decltype(start_retain(std::declval<Retain const&>(), cache_shape{})) retain_;
  decltype(start_retrieve(std::declval<Retrieve const&>(), cache_shape{}, std::int64_t{})) retrieve_;
  indexed_tokens retained_;  ///< where there are both rules
  late_choice late_;         ///< where the policy waits for the answer's first tokens
};

}  // namespace kvpolicy
