// Decode steps of a batch, chosen on the device: planned on the host and enqueued without waiting, so a graph can capture them.
#pragma once

#include <algorithm>

#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/base/sequence_view.hpp"
#include "kvpolicy/gpu/step/planned_steps.hpp"

namespace kvpolicy::gpu {

/// A policy's state for a batch of sequences, on the device. Not thread-safe. The constructor allocates, and where summaries
/// follow the text prefill() and plan() do; prefill() waits, and plan() copies numbers to the device. choose() enqueues kernels
/// whose arguments are the same at every step: capture a step once, and replay it after each plan().
/// @tparam Policy, D  a decodable policy, and the device
template <policy_like Policy, owning_device D>
class decoder : public planned_steps<Policy, D> {
  using base = planned_steps<Policy, D>;
  using base::asked_, base::device_, base::kept_, base::plan_, base::rows_, base::rules_, base::sequences_, base::shape_,
      base::slots_;
  using typename base::parts_type, typename base::rules_type;
  static_assert(fits_on_device<parts_type, D>());

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
      : base(decodable_parts_of<Policy, D>(policy, shape, step_tokens), requirements_of(policy),
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
};

}  // namespace kvpolicy::gpu
