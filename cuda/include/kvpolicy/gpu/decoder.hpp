// Decode steps of a batch, chosen on the device: planned on the host and enqueued without waiting, so a graph can capture them.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/base/sequence_view.hpp"
#include "kvpolicy/gpu/step/asked_signals.hpp"
#include "kvpolicy/gpu/step/kept_step.hpp"
#include "kvpolicy/gpu/step/moving_rows.hpp"
#include "kvpolicy/gpu/step/rules.hpp"
#include "kvpolicy/gpu/step/slots.hpp"
#include "kvpolicy/policy.hpp"

namespace kvpolicy::gpu {

/// A policy's state for a batch of sequences, on the device. Not thread-safe. The constructor allocates, and where summaries
/// follow the text prefill() and plan() do; prefill() waits, and plan() copies numbers to the device. choose() enqueues kernels
/// whose arguments are the same at every step: capture a step once, and replay it after each plan().
/// @tparam Policy, D  a decodable policy, and the device
template <policy_like Policy, owning_device D>
class decoder {
  using parts_type = parts_t<Policy>;
  static_assert(fits_on_device<parts_type, D>());
  using rules_type = detail::decode_rules<Policy, D>;

 public:
  /// Makes the state of a batch.
  /// @param policy, shape  the policy, and the shape of each sequence's cache
  /// @param sequences  slots: each may hold any request, one after the other
  /// @param device  the device; must outlive the decoder
  /// @param step_tokens  tokens that a sequence may bring to a step, 1 to most_step_tokens
  /// @param rows  of a batch at most, if sequences' rows move from step to step (plan_rows()); 0: a slot's number is its row
  /// @throws invalid_value as start() does, and for impossible `step_tokens` and `rows`
  /// @throws unsupported as start() does, for a policy that waits for the answer and has no kernels for that, and past the
  ///         kernels' head sizes
  /// @throws device_memory_exceeded if the device has too little memory
  decoder(Policy const& policy, cache_shape const& shape, std::int64_t sequences, D& device, std::int64_t step_tokens = 1,
          std::int64_t rows = 0)
      : decoder(decodable_parts_of<Policy, D>(policy, shape, step_tokens), requirements_of(policy),
                detail::decode_slots(shape, sequences, step_tokens), rows, shape, device) {}

  /// Takes in a layer's keys of a prompt, or of a further piece, once they are written; as request::prefill(). Waits.
  /// @param sequence, tokens  the slot, and its sequence's tokens now
  /// @param view  the batch's caches
  /// @param layer, prompt  the layer, and the prompt; call it for every layer, in order
  /// @param exec  runs the primitives, on the same device
  /// @param row  the sequence's row of `view`; -1: the slot's number, unless rows move
  /// @throws invalid_value for an invalid slot, layer or number of tokens, a gap, or a layer out of order: nothing has changed.
  ///         After what the policy itself refuses (another rotary embedding, say) the slot needs its prompt again
  /// @throws unsupported for a missing signal
  template <batch_view V, class Exec>
  void prefill(std::int64_t sequence, V const& view, std::int64_t tokens, layer_id layer, prompt_signals const& prompt,
               Exec& exec, std::int64_t row = -1) {
    slots_.check_prompt(sequence, layer, prompt.first, tokens);
    row = by_sequence<V> ? sequence : rows_.row_of_prompt(sequence, row);
    sequence_view<V, typename Exec::memory> const one{view, shape_, row, tokens};
    std::int64_t const begun = slots_.prompt_begin(sequence, layer, prompt.first);
    asked_.check_prompt(one, layer, prompt, begun, shape_);
    slots_.begin_prompt(sequence, layer, prompt.first, tokens);
    prompt_signals from = prompt;
    if (prompt.repeats.empty()) from.first = slots_.settled(sequence);  // what stayed of a step of several is new to the policy
    from.observed_from = std::max(prompt.observed_from, begun);         // behind steps, whose queries stay on the device
    prompt_piece<sequence_view<V, typename Exec::memory>> piece{sequence, one, of_sequence(view.keys(layer), row), layer, from};
    rules_.prefill(piece, exec);
    slots_.prefilled(sequence, tokens);
    if (!prompt.repeats.empty() && layer.value + 1 == shape_.layers) slots_.repeated(sequence, prompt.first);
  }

  /// Takes back a sequence's last tokens, which an engine drafted step by step. Policies that learn from steps lack it: let a
  /// step bring several tokens.
  /// @param sequence,tokens  the slot, and how many it has left
  /// @throws invalid_value for an empty slot, for fewer tokens than its prompt, and for more than it has
  void cut(std::int64_t sequence, std::int64_t tokens) requires(rules_type::by_lengths&& rules_type::stays) {
    slots_.cut(sequence, tokens);
  }

  /// Plans a step: each sequence that is not paused gets new tokens. Call it before each step, outside a captured graph.
  /// @param tokens  `[sequences]`: each sequence's tokens, with those that are decoded now; 0 for an empty slot; `paused` if
  ///        the sequence has no token at this step. Empty and paused slots read nothing, and their output is 0
  /// @param brought  `[sequences]`: how many of them are decoded now, 1 to `step_tokens`; none: one of each. The tokens before
  ///        them say how many of the last step's stayed: at least its first one does
  /// @throws invalid_value, before anything has changed, if a sequence has other tokens than those of its prompt or last step
  ///        and the new ones, if an empty slot is paused, if `tokens` or `brought` has another length, or if a policy that
  ///        reads logits has gone a whole unit of steps without observe()
  /// @throws device_memory_exceeded if summaries of the new tokens have no room: slots with 0 tokens are empty then, nothing
  ///         else has changed
  void plan(std::span<std::int32_t const> tokens, std::span<std::int32_t const> brought = {}) {
    KVPOLICY_EXPECTS(!rows_.move(), "plan() of a decoder whose sequences' rows move; plan_rows() says which row each has");
    plan_slots(tokens, brought);
  }

  /// As plan(), of a batch whose rows are not the slots: each row names the slot of its sequence. Slots that no row names
  /// pause, or are empty. Queries, ids, outputs, logits and the view's page tables are by row; lists are by slot. Output of
  /// rows that have no slot is not written.
  /// @param slots  `[rows of this step]`: each row's slot
  /// @param tokens,brought  the same, as plan(); 0 empties a slot, and so does end()
  /// @throws invalid_value, before anything has changed, as plan(); for more rows than the constructor was given, for a slot
  ///         that there is not, for two rows with the same, and while a slot is in the middle of its prompt's layers
  /// @throws device_memory_exceeded as plan()
  void plan_rows(std::span<std::int32_t const> slots, std::span<std::int32_t const> tokens,
                 std::span<std::int32_t const> brought = {}) {
    rows_.check(slots);
    KVPOLICY_EXPECTS(tokens.size() == slots.size() && (brought.empty() || brought.size() == slots.size()),
                     std::to_string(slots.size()) + " rows with tokens of " + std::to_string(tokens.size()) + " and " +
                         std::to_string(brought.size()) + " brought; give one of each for every row");
    by_slot_.assign(2 * static_cast<std::size_t>(sequences_), 1);
    std::span const lengths(by_slot_.data(), static_cast<std::size_t>(sequences_));
    std::span const new_ones = std::span(by_slot_).last(lengths.size());
    for (std::int64_t s = 0; s < sequences_; ++s)
      lengths[static_cast<std::size_t>(s)] = slots_.live_between_prompts(s) ? paused : 0;
    for (std::size_t r = 0; r < slots.size(); ++r) {
      lengths[static_cast<std::size_t>(slots[r])] = tokens[r];
      if (!brought.empty()) new_ones[static_cast<std::size_t>(slots[r])] = brought[r];
    }
    plan_slots(lengths, new_ones, slots);
  }

  /// Empties a slot: its sequence has ended. The next plan gives its memory to others.
  /// @param sequence  the slot
  /// @throws invalid_value for a slot that there is not
  void end(std::int64_t sequence) { slots_.empty(sequence); }

  /// Returns whether settle() has something to do before this step.
  bool unsettled() const noexcept { return plan_.unsettled() && !rules_type::by_lengths; }

  /// Enqueues the steps of the last one's later tokens that stayed: the policy learns from each as if it had come alone. Call
  /// it after plan() and before choose(), if unsettled(). It may be captured, too.
  /// @param view,scale  as choose(); the final keys of these tokens are written in every layer
  template <batch_view V>
  void settle(V const& view, float scale) {
    if constexpr (!rules_type::by_lengths) {
      check_scale(scale, "the queries");
      plan_.each_settled([&](std::int64_t nth) {
        for (std::int64_t l = 0; l < shape_.layers; ++l) {
          decode_step step{{l}, placed<V>(view.keys({l})), {}, scale, plan_.lengths(), {}};
          kept_.show(nth, step);
          rules_.choose(step);
          rules_.renew(step);
        }
        rules_.observe(nth, plan_.lengths());
      });
    }
  }

  /// The tokens of each sequence at this step, and how many of them it brought, on the device, for the engine's own kernels.
  per_sequence lengths() const noexcept { return plan_.tokens(); }
  per_sequence brought() const noexcept { return plan_.brought(); }
  /// The row of each sequence, on the device, for an engine's kernels over the lists; of a decoder whose rows don't move, none.
  row_map rows() const noexcept { return rows_.map(); }

  /// Returns how many tokens a KV head reads at the planned step, for an engine that plans its attention on the host: of
  /// policies whose counts follow from lengths and prompts. Of others only the device knows.
  /// @param layer,sequence,head  which list
  /// @return tokens
  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id head) const requires known_counts<Policy, D> {
    std::int64_t const tokens = plan_.length(sequence);
    return tokens == 0 ? 0 : rules_.listed(layer, sequence, head, tokens) + plan_.brought(sequence) - 1;
  }

  /// Returns whether standing() may take choose()'s place at the planned step: for policies that never choose, or once, and
  /// have, and between HeteroCache's looks. choose() remains right.
  bool idle() const noexcept { return rules_.idle(plan_.alone() && !plan_.unsettled()); }

  /// Returns whether the planned step makes a choice that waited for tokens of the answer, or that is due every so many steps.
  /// Such a step is not captured: each layer calls decide() before choose().
  bool decides() const noexcept { return rules_.decides(); }
  /// Makes a layer's choices that are due, of every sequence; enqueues and waits, as prefill().
  /// @param view,layer,queries,scale  as choose()
  /// @param exec  as prefill()
  template <batch_view V, class Exec>
  void decide(V const& view, layer_id layer, vector_rows const& queries, float scale, Exec& exec) {
    decode_step const step = step_of(view, layer, queries, scale);
    auto const view_of = [&](std::int64_t s) {
      return sequence_view<V, typename Exec::memory>{view, shape_, by_sequence<V> ? s : rows_.row(s), plan_.length(s)};
    };
    rules_.decide(step, view_of, exec, [&](std::int64_t s) { slots_.decided(s); });
  }

  /// Returns a layer's lists as choose() would, at an idle step; and after renew(), what the next step reads of the tokens so
  /// far. Enqueues nothing.
  /// @param layer  the layer
  /// @return the lists
  token_lists standing(layer_id layer) const {
    slots_.check_layer(layer);
    return plan_.with_later(rules_.lists(layer, rules_.retained(layer, plan_.lengths())));
  }

  /// Returns what a layer retains at the planned step: what choose() lists is among it. For retains that decide when a prompt
  /// ends, or by lengths. Enqueues nothing.
  /// @param layer  the layer
  /// @return the lists
  token_lists retained(layer_id layer) const requires(rules_type::counts_retained) {
    slots_.check_layer(layer);
    return plan_.with_later(rules_.retained(layer, plan_.lengths()));
  }
  /// Returns how many tokens of a head these lists have.
  /// @param layer,sequence,head  the head
  /// @return tokens
  std::int64_t retained_count(layer_id layer, std::int64_t sequence, head_id head) const requires(rules_type::counts_retained) {
    std::int64_t const tokens = plan_.length(sequence);
    return tokens == 0 ? 0 : rules_.retained_count(layer, sequence, head, tokens) + plan_.brought(sequence) - 1;
  }

  /// Enqueues the choice of a layer, before its attention. Each sequence's new keys must be written. A sequence's first new
  /// token chooses; all of them read that, and the new ones up to their own.
  /// @param view, layer  the batch's caches, and the layer
  /// @param queries  `[sequences, step_tokens, q_heads, head_dim]`
  /// @param scale  multiplies q.k
  /// @param ids  `[sequences, step_tokens]` ids of the new tokens, if the policy needs them
  /// @return the lists, on the device; valid until the next step
  /// @throws invalid_value without ids that the policy needs, or a scale
  template <batch_view V>
  token_lists choose(V const& view, layer_id layer, vector_rows const& queries, float scale,
                     buffer<std::int32_t const> ids = {}) {
    asked_.check_step(ids);
    decode_step step = step_of(view, layer, queries, scale);
    step.ids = ids;
    step.id_rows = rows_.map();
    asked_.chosen();
    kept_.keep(step, plan_.brought());
    kept_.show(0, step);
    rules_.choose(step);
    return plan_.with_later(rules_.lists(layer, step.retained));
  }

  /// Enqueues the choice that serves the next step, for a policy with `next_step`: after a layer's attention, at every step
  /// that is not idle. Enqueues nothing for others.
  /// @param view,layer,queries,scale  as choose(); or a view of the rows that the policy looks at
  template <batch_view V>
  void renew(V const& view, layer_id layer, vector_rows const& queries, float scale) {
    decode_step step = step_of(view, layer, queries, scale);
    asked_.renewed();
    kept_.show(0, step);
    rules_.renew(step);
  }

  /// Returns how many of a head's tokens the planned step reads rows of at most: by its lists, and at a look.
  /// @param layer,sequence,head  the head
  /// @return tokens
  std::int64_t most_listed(layer_id layer, std::int64_t sequence, head_id head) const {
    std::int64_t const tokens = plan_.length(sequence);
    return tokens == 0 ? 0 : rules_.most_listed(layer, sequence, head, tokens) + plan_.brought(sequence) - 1;
  }

  /// Enqueues what triggers do after a step. Does nothing for a policy that needs no logits.
  /// @param logits, vocabulary  next-token logits `[sequences, step_tokens, vocabulary]`
  void observe(vector_rows const& logits, std::int64_t vocabulary) {
    if constexpr (contains(parts_type::needs, signals::logits)) {
      rules_.read(placed(logits), vocabulary, plan_.brought());
      rules_.observe(0, plan_.lengths());
      asked_.observed();
    }
  }

  /// Enqueues every sequence's attention over the lists of choose(). The output of tokens that were not brought is 0.
  /// @param view,layer,queries,scale  as choose()
  /// @param lists  from choose()
  /// @param out  `[sequences, step_tokens, q_heads, head_dim]`
  /// @param terms  what the model adds, its arrays on the device; no window
  /// @throws unsupported for a window: a layer with one is the engine's own to attend
  template <batch_view V>
  void attend(V const& view, layer_id layer, token_lists const& lists, vector_rows const& queries, float scale,
              vector_rows const& out, attention_terms const& terms = {}) {
    check_scale(scale, "the queries");
    if (terms.window != 0)
      throw unsupported("a window of " + std::to_string(terms.window) +
                        " tokens; lists name what is read, so attend layers with windows by your own kernel");
    slots_.check_layer(layer);
    detail::launch_attend(*device_, {.queries = placed(queries),
                                     .scale = scale,
                                     .group = static_cast<std::int32_t>(shape_.group()),
                                     .step = static_cast<std::int32_t>(plan_.step_tokens()),
                                     .brought = plan_.brought(),
                                     .keys = placed<V>(view.keys(layer)),
                                     .values = placed<V>(view.values(layer)),
                                     .lists = lists,
                                     .sequences = sequences_,
                                     .most_tokens = shape_.max_tokens,
                                     .out = placed(out),
                                     .terms = {terms.soft_cap,
                                               {terms.slopes, terms.slopes == nullptr ? 0 : shape_.q_heads},
                                               {terms.sinks, terms.sinks == nullptr ? 0 : shape_.q_heads}}});
  }

 private:
  decoder(parts_type const& parts, requirements const& of, detail::decode_slots slots, std::int64_t rows,
          cache_shape const& shape, D& device)
      : shape_(shape),
        sequences_(slots.count()),
        device_(&device),
        asked_(of, shape.layers),
        slots_(std::move(slots)),
        rows_(device, sequences_, rows),
        plan_(device, sequences_, slots_.step_tokens()),
        kept_(device, shape, sequences_, plan_.step_tokens(), rules_type::by_lengths ? signals::none : parts_type::needs),
        rules_(parts, shape, sequences_, device, plan_.turns(), of.after, of.observation_queries) {}

  void plan_slots(std::span<std::int32_t const> tokens, std::span<std::int32_t const> brought,
                  std::span<std::int32_t const> slots_of_rows = {}) {
    slots_.check(tokens, brought);
    rules_.expect_decided();
    // What ended sequences had serves those that grow.
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      if (tokens[s] != 0) continue;
      slots_.empty(static_cast<std::int64_t>(s));
      rules_.hold(static_cast<std::int64_t>(s), 0);
    }
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      if (tokens[s] > 0) rules_.hold(static_cast<std::int64_t>(s), tokens[s]);
    }
    asked_.plan();
    rows_.set(slots_of_rows);
    plan_.begin();
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      auto const sequence = static_cast<std::int64_t>(s);
      std::int64_t const now = std::max(tokens[s], 0);
      std::int64_t const own = now == 0 ? 0 : brought.empty() ? 1 : brought[s];
      std::int64_t const settled = slots_.step(sequence, tokens[s], own);
      std::int64_t const prompt = slots_.prompt(sequence);
      plan_.set(sequence, settled, now, own, [&](std::int64_t length) { rules_.plan(sequence, prompt, length); });
    }
    rows_.upload(*device_);
    plan_.upload(*device_);
    rules_.upload();
  }

  /// A view of slots, whatever their rows.
  template <class V>
  static constexpr bool by_sequence = requires {
    requires V::by_sequence;
  };

  /// An engine's arrays, by row.
  vector_rows placed(vector_rows of) const noexcept {
    of.rows = rows_.map();
    return of;
  }
  template <class V>
  batch_rows placed(batch_rows of) const noexcept {
    if (!by_sequence<V>) of.rows = rows_.map();
    return of;
  }
  template <batch_view V>
  decode_step step_of(V const& view, layer_id layer, vector_rows const& queries, float scale) const {
    check_scale(scale, "the queries");
    slots_.check_layer(layer);
    return {layer, placed<V>(view.keys(layer)), placed(queries), scale, plan_.lengths(), {}};
  }

  cache_shape shape_;
  std::int64_t sequences_;
  D* device_;
  detail::asked_signals asked_;
  detail::decode_slots slots_;
  detail::moving_rows<D> rows_;
  detail::step_plan<D> plan_;  ///< the rules point to its turns
  detail::kept_step<D> kept_;
  rules_type rules_;
  std::vector<std::int32_t> by_slot_;  ///< a plan's numbers, of plan_rows()
};

}  // namespace kvpolicy::gpu
