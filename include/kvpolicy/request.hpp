// A request: a policy at work on one sequence, and the verbs that an engine calls: prefill, choose, observe.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kvpolicy/detail/call_order.hpp"
#include "kvpolicy/detail/rule_pair.hpp"
#include "kvpolicy/detail/unsettled_tokens.hpp"
#include "kvpolicy/detail/verb_checks.hpp"

namespace kvpolicy {

/// A policy at work on one sequence, made by start(). Not thread-safe. A copy is independent of its source.
/// Its memory grows with the sequence, by half as much again. Within the room that it has, or that reserve() made, verbs do not
/// allocate, but for the first steps of a copy, and a prefill after tokens were dropped.
/// Every verb checks its input before it reads or writes anything. A verb that throws, in these checks or later, does not
/// count: the prompt or the step may begin again at layer 0.
template <class Retain, class Retrieve>
class request {
 public:
  /// Starts both rules without checking them. Call start(), which checks first.
  /// @param retain, retrieve  which tokens stay, and which of them a step reads
  /// @param shape  the sequence's cache
  request(Retain const& retain, Retrieve const& retrieve, cache_shape const& shape)
      : shape_(shape), rules_(retain, retrieve, shape), order_(shape.layers, rules_.step_layers(), shape.max_tokens) {}

  cache_shape const& shape() const noexcept { return shape_; }
  /// Tokens of the sequence at the last verb, a step's own tokens included; what was cut since is among them.
  std::int64_t tokens() const noexcept { return order_.tokens(); }
  /// What was called last, and the checks of what may come next.
  call_order const& order() const noexcept { return order_; }
  signals needs() const noexcept { return rules_.needs(); }

  /// Makes room for a sequence, so that no verb allocates until it is longer.
  /// @param tokens  tokens of the sequence; above max_tokens: that many
  void reserve(std::int64_t tokens) {
    tokens = std::min(tokens, shape_.max_tokens);
    if (tokens <= room_) return;
    rules_.reserve(tokens);
    room_ = tokens;
  }

  /// Returns what the current step reads.
  /// @param layer  a layer that has chosen in this step
  /// @return the lists, valid until the next verb
  /// @throws invalid_value for a layer that has not
  selection kept(layer_id layer) const {
    order_.check_chosen(layer);
    selection const all = shown(rules_.kept(layer), unsettled_.kept(layer));
    return {all.granularity(), all.lists(), shape_.kv_heads, order_.brought()};
  }
  /// Returns which tokens exist, whether a step reads them or not.
  /// @param layer  a layer that was prefilled
  /// @return the lists, valid until the next verb
  /// @throws invalid_value for a layer that there is not
  selection retained(layer_id layer) const {
    order_.check_decided(layer);
    return shown(rules_.retained(layer), unsettled_.retained(layer));
  }

  /// Returns what the next step reads of the tokens so far, for a rule with `next_step`: its rows can be fetched meanwhile.
  /// @param layer  a layer that has chosen in this step; throws as kept()
  /// @return the lists, valid until the next verb; of other rules kept()
  selection ahead(layer_id layer) const { return order_.check_chosen(layer), rules_.ahead(layer); }

  /// Returns whether a layer's choice still waits for tokens of the answer. Until then steps read every retained token.
  bool waits(layer_id layer) const { return rules_.waits(order_.checked(layer)); }
  /// Returns a number that changes whenever the retain drops tokens of a layer.
  std::int64_t revision(layer_id layer) const { return rules_.retain().revision(order_.checked(layer)); }

  /// Returns how many of a head's last retained tokens every step looks at, whatever it chooses: those of a unit that may not
  /// be full, or all_tokens, if steps score keys one by one. The rows of the others may be elsewhere until a step chooses them.
  std::int64_t always_read(layer_id layer, std::int64_t head) const { return rules_.always_read(layer, head); }

  /// Says whether a cut undoes a choice that waited for tokens of the answer. An engine that has kept every row may then call
  /// prefill() with no new tokens, so that the new choice is made among all of them, and not among those that were retained.
  /// @param tokens  tokens that the cut would leave
  /// @return whether a layer's choice was made by later tokens
  bool undoes_choice(std::int64_t tokens) const noexcept { return rules_.undoes_choice(tokens); }
  /// Says that the engine removed tokens from the end. A choice that waited for tokens which are gone now waits again.
  /// prefill() needs no such call, as it says by `first` where it begins; nor do the last step's drafts that did not stay.
  /// @param tokens  tokens that are left; as many as are known, or more, change nothing
  /// @throws invalid_value if `tokens` is negative
  void cut(std::int64_t tokens) { order_.cut(tokens); }

  /// Takes in a layer's new rows of a prompt, or of a further piece of one, and decides what to retain.
  /// Call it for every layer, in order, once the layer's keys are written. The layer's choose() may follow at once. The request
  /// forgets everything from `prompt.first` on. The retain decides among all rows of the view, or among `prompt.resident`. A
  /// policy that waits for the answer's first tokens decides in the choose() of the last of them.
  /// @param view  the cache, with every token so far
  /// @param layer  the layer
  /// @param prompt  the first new token, and the signals that the policy needs
  /// @param exec  the executor
  /// @throws invalid_value if the layer, the tokens, the shape or a signal is impossible
  /// @throws unsupported if a needed signal is missing, or if the policy needs rows that are gone
  template <kv_cache_view View, executor_for<View> Exec>
  void prefill(View const& view, layer_id layer, prompt_signals const& prompt, Exec& exec) {
    std::int64_t const tokens = view.tokens();
    order_.check_prompt(layer, prompt.first, tokens);
    checks_.outcomes(layer, needs(), rules_.unit(), order_.observed(), 1 + unsettled_.within(prompt.first));
    checks_.rows(view, layer, needs(), shape_);
    checks_.all_rows(view, layer, needs(), prompt);
    check_signals(prompt, needs(), rules_.observation_queries(), order_.prompt_begin(layer, prompt.first), tokens, shape_);
    check_rotated_first(view, layer, needs(), prompt.rope, shape_);
    if (rules_.keeps_all() && !prompt.resident.empty()) {
      throw unsupported("the policy keeps every token, but rows of some were dropped; begin with an empty sequence");
    }
    if (layer.value == 0) {
      make_room(tokens);
      settle(view, prompt.first, exec);
      rules_.truncate(prompt.first);
      order_.begin_prompt(prompt.first, tokens);
      unsettled_.none(tokens);
    }
    rules_.prefill(view, layer, prompt, exec);
    order_.prefilled_one();
    if (!prompt.repeats.empty() && layer.value + 1 == shape_.layers) order_.cut(prompt.first);  // the engine removes them
  }

  /// Chooses what one token's attention reads in a layer. The token is the view's last.
  /// Call it for every layer, in order, before attention. The token's key must be written in `layer`; later layers may lack it.
  /// A policy that makes one choice for the whole request makes it at layer 0, from the tokens before this one; further layers
  /// may then be left out. Without a prompt, a sequence begins with a step on one token.
  /// @param view  the cache, the current token included
  /// @param layer  the layer
  /// @param step  the signals that the policy needs
  /// @param exec  the executor
  /// @return the tokens to read, valid until the next verb
  /// @throws invalid_value if the layer, the tokens, the shape or a signal is impossible
  /// @throws unsupported if a needed signal is missing, or if a choice that waited needs rows that are gone
  template <kv_cache_view View, executor_for<View> Exec>
  selection choose(View const& view, layer_id layer, step_signals const& step, Exec& exec) {
    check_step(view, layer, 1, step);
    if (layer.value == 0) begin_step(view, {}, exec);
    rules_.choose(view, layer, step, exec);
    order_.chosen_one();
    return kept(layer);
  }

  /// Chooses what several tokens' attention reads in a layer: the token that was sampled and drafts of those behind it, the
  /// view's last. What the first of them chooses is read by all, and so are all of them, each up to its own row.
  /// The next verb shows how many of these tokens stayed, by where it begins; at least the first must. The request continues as
  /// if those that stayed had been chosen for one by one; statistics of choices that nobody read may lack.
  /// @param view, layer  the cache, these tokens included, and the layer
  /// @param step  the number of tokens, and the signals that the policy needs
  /// @param exec  the executor
  /// @return the tokens to read, valid until the next verb
  /// @throws invalid_value, unsupported  as for one token, and for more than most_step_tokens
  template <shortened_view View, std::same_as<step_window> Step, executor_for<View> Exec>
  selection choose(View const& view, layer_id layer, Step const& step, Exec& exec) {
    check_tokens(step);
    check_step(view, layer, step.tokens, step);
    if (layer.value == 0) begin_step(view, step, exec);
    rules_.choose(view.first(view.tokens() - step.tokens + 1), layer, step.first(), exec);
    if (unsettled_.any()) unsettled_.show(layer, step.queries, rules_, shape_);
    order_.chosen_one();
    return kept(layer);
  }

  /// Passes a step's outcome to the triggers. After a step of several tokens, call it once for each that stays, in order.
  /// @param outcome  logits or their entropy, if the policy needs them
  /// @param exec  the executor
  /// @throws invalid_value if the step is incomplete, or was observed before
  /// @throws unsupported if the policy needs logits and `outcome` has neither logits nor entropy
  template <executor Exec>
  void observe(step_outcome const& outcome, Exec& exec) {
    order_.check_outcome();
    check_signals<Exec>(outcome, needs());
    if (order_.observed() == 0) rules_.observe(unsettled_.first(), outcome, exec);
    else if (contains(needs(), signals::logits))
      unsettled_.observe(outcome.entropy ? *outcome.entropy : entropy(outcome.logits, exec).entropy);
    order_.observed_one();
    checks_.step_observed();
  }

  /// Reports what the rules did since the request started.
  /// @param visit  called for each statistic
  void visit_statistics(statistic_visitor const& visit) const { rules_.visit_statistics(visit); }

  /// Writes or reads everything that the request remembers. A request of the same policy and shape that was just started, and
  /// reads it, continues as this one would. A request whose reading threw can't be used any more.
  /// @param a  a state_writer or a state_reader
  /// @throws unsupported if a part's memory lasts and has no archive()
  /// @throws invalid_value if the bytes that `a` reads do not fit
  template <class Archive>
  void archive(Archive& a) {
    std::int64_t room = room_;
    rules_.archive_shape(a);
    a(order_, room);
    if constexpr (Archive::reads) {
      if (room < room_ || room > shape_.max_tokens) Archive::refuse();
      reserve(room);
    }
    unsettled_.archive(a, shape_);
    rules_.archive(a);
  }

  /// The states of the rules, for decoders that continue where the prompt ended (gpu::decoder).
  auto& retain() noexcept { return rules_.retain(); }
  auto const& retain() const noexcept { return rules_.retain(); }
  auto& retrieve() noexcept { return rules_.retrieve(); }

 private:
  template <class View, class Step>
  void check_step(View const& view, layer_id layer, std::int64_t tokens, Step const& step) {
    order_.check_step(layer, view.tokens(), tokens);
    checks_.outcomes(layer, needs(), rules_.unit(), order_.observed(), 1 + unsettled_.within(view.tokens() - tokens));
    checks_.step_rows(view, layer, rules_, shape_);
    check_signals(step, needs(), shape_);
  }
  selection shown(selection const& of_rules, std::span<range_list const> lists) const {
    return lists.empty() ? of_rules : selection(of_rules.granularity(), lists, shape_.kv_heads);
  }
  void make_room(std::int64_t tokens) {
    if (tokens > room_) reserve(tokens + tokens / 2 + 64);
  }

  /// A step's checks have passed, and the view ends with its tokens.
  template <class View, class Exec>
  void begin_step(View const& view, step_window const& step, Exec& exec) {
    std::int64_t const before = view.tokens() - step.tokens;
    make_room(view.tokens());
    settle(view, before, exec);
    if (before < unsettled_.first()) rules_.truncate(before);
    order_.begin_step(view.tokens(), step.tokens);
    checks_.step_begins();
    unsettled_.begin(before, step);
  }

  /// The next verb begins behind the first `tokens`: those of the last step that lie there stay.
  template <class View, class Exec>
  void settle(View const& view, std::int64_t tokens, Exec& exec) {
    std::int64_t const stay = unsettled_.within(tokens);
    if constexpr (shortened_view<View>) unsettled_.settle(stay, rules_, order_.step_layers(), view, exec);
    else if (stay > 0)
      throw unsupported("a view that can't be shortened comes after a step of several tokens; give it first(n)");
  }

  cache_shape shape_;
  rule_pair<Retain, Retrieve> rules_;
  call_order order_;
  unsettled_tokens unsettled_;
  verb_checks checks_;
  std::int64_t room_ = 0;  ///< tokens
};

}  // namespace kvpolicy
