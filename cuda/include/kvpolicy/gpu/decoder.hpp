// Decode steps of a batch, chosen on the device: planned on the host and enqueued without waiting, so a graph can capture them.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/base/sequence_view.hpp"
#include "kvpolicy/gpu/decodable.hpp"
#include "kvpolicy/gpu/retain/late_queries.hpp"
#include "kvpolicy/gpu/step/asked_signals.hpp"
#include "kvpolicy/gpu/step/kept_step.hpp"
#include "kvpolicy/gpu/step/slots.hpp"
#include "kvpolicy/gpu/step/step_plan.hpp"
#include "kvpolicy/policy.hpp"

namespace kvpolicy::gpu {

/// A policy's state for a batch of sequences, on the device. Not thread-safe. The constructor allocates,
/// and where summaries follow the text prefill() and plan() do; prefill() waits, and plan() copies numbers to the device.
/// choose() enqueues kernels whose arguments are the same at every step: capture a step once, and replay it after each plan().
/// @tparam Policy, D  a decodable policy, and the device
template <policy_like Policy, owning_device D>
class decoder {
  using parts_type = parts_t<Policy>;
  static_assert(fits_on_device<parts_type, D>());
  using retain_state = detail::decode_retain<decltype(parts_type::retain), D>;
  using retrieve_state = detail::decode_retrieve<decltype(parts_type::retrieve), D>;
  /// Its lists follow from lengths alone, at every step.
  static constexpr bool by_lengths = never_chooses<retain_state> && never_chooses<retrieve_state>;
  /// Some steps make a choice that no captured one can: of a rule that waited, or of a retain every so many steps.
  static constexpr bool decides_late = gpu::decides_late<Policy, D>;
  static constexpr bool renews = retain_renews<Policy, D>;

 public:
  /// Makes the state of a batch.
  /// @param policy, shape  the policy, and the shape of each sequence's cache
  /// @param sequences  slots: each may hold any request, one after the other
  /// @param device  the device; must outlive the decoder
  /// @param step_tokens  tokens that a sequence may bring to a step, 1 to most_step_tokens
  /// @throws invalid_value as start() does, and for impossible `step_tokens`
  /// @throws unsupported as start() does, for a policy that waits for the answer and has no kernels for that, and past the
  ///         kernels' head sizes
  /// @throws device_memory_exceeded if the device has too little memory
  decoder(Policy const& policy, cache_shape const& shape, std::int64_t sequences, D& device, std::int64_t step_tokens = 1)
      : decoder(decodable_parts_of<Policy, D>(policy, shape, step_tokens), requirements_of(policy),
                detail::decode_slots(shape, sequences, step_tokens), shape, sequences, device) {}

  /// Takes in a layer's keys of a prompt, or of a further piece, once they are written; as request::prefill(). Waits.
  /// @param sequence, tokens  the slot, and its sequence's tokens now
  /// @param view  the batch's caches
  /// @param layer, prompt  the layer, and the prompt; call it for every layer, in order
  /// @param exec  runs the primitives, on the same device
  /// @throws invalid_value for an invalid slot, layer or number of tokens, a gap, or a layer out of order: nothing has changed.
  ///         After what the policy itself refuses (another rotary embedding, say) the slot needs its prompt again
  /// @throws unsupported for a missing signal
  template <batch_view V, class Exec>
  void prefill(std::int64_t sequence, V const& view, std::int64_t tokens, layer_id layer, prompt_signals const& prompt,
               Exec& exec) {
    slots_.check_prompt(sequence, layer, prompt.first, tokens);
    sequence_view<V, typename Exec::memory> const one{view, shape_, sequence, tokens};
    std::int64_t const begun = slots_.prompt_begin(sequence, layer, prompt.first);
    asked_.check_prompt(one, layer, prompt, begun, shape_);
    slots_.begin_prompt(sequence, layer, prompt.first, tokens);
    prompt_signals from = prompt;
    if (prompt.repeats.empty()) from.first = slots_.settled(sequence);  // what stayed of a step of several is new to the policy
    from.observed_from = std::max(prompt.observed_from, begun);         // behind steps, whose queries stay on the device
    prompt_piece<sequence_view<V, typename Exec::memory>> piece{sequence, one, view.keys(layer), layer, from};
    if (late_) wait(piece, exec);
    else decide_parts(piece, exec, [&] { retrieve_.prefill(piece, exec); });
    slots_.prefilled(sequence, tokens);
    if (!prompt.repeats.empty() && layer.value + 1 == shape_.layers) slots_.repeated(sequence, prompt.first);
  }

  /// Takes back a sequence's last tokens, which an engine drafted step by step. Policies that learn from steps lack it: let a
  /// step bring several tokens.
  /// @param sequence,tokens  the slot, and how many it has left
  /// @throws invalid_value for an empty slot, for fewer tokens than its prompt, and for more than it has
  void cut(std::int64_t sequence, std::int64_t tokens) requires(by_lengths&& retain_state::stays) {
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
  /// @throws device_memory_exceeded, before anything has changed, if summaries of the new tokens have no room
  void plan(std::span<std::int32_t const> tokens, std::span<std::int32_t const> brought = {}) {
    slots_.check(tokens, brought);
    if (late_) late_->expect_decided();
    if constexpr (renews) retain_.expect_decided();
    asked_.plan();
    if constexpr (requires { retrieve_.hold(0, 0); }) {
      for (std::size_t s = 0; s < tokens.size(); ++s)
        if (tokens[s] != paused) retrieve_.hold(static_cast<std::int64_t>(s), tokens[s]);
    }
    plan_.begin();
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      auto const sequence = static_cast<std::int64_t>(s);
      std::int64_t const now = std::max(tokens[s], 0);
      std::int64_t const own = now == 0 ? 0 : brought.empty() ? 1 : brought[s];
      std::int64_t const settled = slots_.step(sequence, tokens[s], own);
      std::int64_t const prompt = slots_.prompt(sequence);
      plan_.set(sequence, settled, now, own, [&](std::int64_t length) {
        if (late_) late_->plan(sequence, length);
        plan_parts({sequence, prompt, length, late_ ? late_->waits(sequence) : length > 0 && length < prompt + after_});
      });
    }
    plan_.upload(*device_);
    if (late_) late_->upload();
    retain_.upload();
    retrieve_.upload();
  }

  /// Returns whether settle() has something to do before this step.
  bool unsettled() const noexcept { return plan_.unsettled() && !by_lengths; }

  /// Enqueues the steps of the last one's later tokens that stayed: the policy learns from each as if it had come alone. Call
  /// it after plan() and before choose(), if unsettled(). It may be captured, too.
  /// @param view,scale  as choose(); the final keys of these tokens are written in every layer
  template <batch_view V>
  void settle(V const& view, float scale) {
    if constexpr (!by_lengths) {
      check_scale(scale, "the queries");
      plan_.each_settled([&](std::int64_t nth) {
        for (std::int64_t l = 0; l < shape_.layers; ++l) {
          decode_step step{{l}, view.keys({l}), {}, scale, plan_.lengths(), {}};
          kept_.show(nth, step);
          choose_turn(step);
          renew_turn(step);
        }
        if constexpr (contains(parts_type::needs, signals::logits)) retrieve_.observe(nth, plan_.lengths());
      });
    }
  }

  /// The tokens of each sequence at this step, and how many of them it brought, on the device, for the engine's own kernels.
  per_sequence lengths() const noexcept { return plan_.tokens(); }
  per_sequence brought() const noexcept { return plan_.brought(); }

  /// Returns how many tokens a KV head reads at the planned step, for an engine that plans its attention on the host: of
  /// policies whose counts follow from lengths and prompts. Of others only the device knows.
  /// @param layer,sequence,head  which list
  /// @return tokens
  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id head) const requires known_counts<Policy, D> {
    std::int64_t const tokens = plan_.length(sequence);
    if (tokens == 0) return 0;
    std::int64_t const later = plan_.brought(sequence) - 1;
    if constexpr (std::same_as<decltype(parts_type::retrieve), keep_all>)
      return retain_.listed(layer, sequence, head, tokens) + later;
    else return retrieve_.listed(layer, sequence, head, tokens) + later;
  }

  /// Returns whether standing() may take choose()'s place at the planned step: for policies that never choose, or once, and
  /// have, and between HeteroCache's looks. choose() remains right.
  bool idle() const noexcept {
    if (late_ && late_->waits()) return false;
    if constexpr (renews) return !retain_.waits();
    else if constexpr (by_lengths) return true;
    else if constexpr (requires { retain_.idle(), retrieve_.idle(); })
      return plan_.alone() && !plan_.unsettled() && retain_.idle() && retrieve_.idle();
    else return false;
  }

  /// Returns whether the planned step makes a choice that waited for tokens of the answer, or that is due every so many steps.
  /// Such a step is not captured: each layer calls decide() before choose().
  bool decides() const noexcept {
    if constexpr (renews) return retain_.decides();
    else return late_ && late_->any_due();
  }
  /// Makes a layer's choices that are due, of every sequence; enqueues and waits, as prefill().
  /// @param view,layer,queries,scale  as choose()
  /// @param exec  as prefill()
  template <batch_view V, class Exec>
  void decide(V const& view, layer_id layer, vector_rows const& queries, float scale, Exec& exec) {
    check_scale(scale, "the queries");
    slots_.check_layer(layer);
    decode_step const step{layer, view.keys(layer), queries, scale, plan_.lengths(), {}};
    auto const view_of = [&](std::int64_t s) {
      return sequence_view<V, typename Exec::memory>{view, shape_, s, plan_.length(s)};
    };
    if constexpr (renews) retain_.decide(step, view_of, exec);
    if constexpr (decides_late) {
      if (late_) late_->add(step);
      for (std::int64_t s = 0; late_ && s < sequences_; ++s) {
        if (!late_->due(s)) continue;
        sequence_view<V, typename Exec::memory> const one = view_of(s);
        prompt_signals from{};
        from.queries = late_->last(s, layer, scale);
        from.observed_from = one.tokens() - from.queries.tokens;
        prompt_piece<sequence_view<V, typename Exec::memory>> piece{s, one, step.keys, layer, from};
        piece.later = 1;
        decide_parts(piece, exec, [&] {
          if constexpr (requires { retrieve_.decide(piece, exec); }) retrieve_.decide(piece, exec);
          else retrieve_.prefill(piece, exec);
        });
        plan_parts({s, one.tokens(), one.tokens(), false});
        if (layer.value + 1 < shape_.layers) continue;
        late_->end(s);
        slots_.decided(s);
      }
    }
    retain_.upload();
    retrieve_.upload();
  }

  /// Returns a layer's lists as choose() would, at an idle step; and after renew(), what the next step reads of the tokens so
  /// far. Enqueues nothing.
  /// @param layer  the layer
  /// @return the lists
  token_lists standing(layer_id layer) const {
    slots_.check_layer(layer);
    return plan_.with_later(retrieve_.lists(layer, retain_.lists(layer, plan_.lengths())));
  }

  /// Returns what a layer retains at the planned step: what choose() lists is among it. For retains that decide when a prompt
  /// ends, or by lengths. Enqueues nothing.
  /// @param layer  the layer
  /// @return the lists
  token_lists retained(layer_id layer) const requires counts_lists<retain_state> {
    slots_.check_layer(layer);
    return plan_.with_later(retain_.lists(layer, plan_.lengths()));
  }
  /// Returns how many tokens of a head these lists have.
  /// @param layer,sequence,head  the head
  /// @return tokens
  std::int64_t retained_count(layer_id layer, std::int64_t sequence, head_id head) const requires counts_lists<retain_state> {
    std::int64_t const tokens = plan_.length(sequence);
    return tokens == 0 ? 0 : retain_.listed(layer, sequence, head, tokens) + plan_.brought(sequence) - 1;
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
    check_scale(scale, "the queries");
    slots_.check_layer(layer);
    asked_.chosen();
    decode_step step{layer, view.keys(layer), queries, scale, plan_.lengths(), ids};
    kept_.keep(step, plan_.brought());
    kept_.show(0, step);
    choose_turn(step);
    return plan_.with_later(retrieve_.lists(layer, step.retained));
  }

  /// Enqueues the choice that serves the next step, for a policy with `next_step`: after a layer's attention, at every step
  /// that is not idle. Enqueues nothing for others.
  /// @param view,layer,queries,scale  as choose(); or a view of the rows that the policy looks at
  template <batch_view V>
  void renew(V const& view, layer_id layer, vector_rows const& queries, float scale) {
    check_scale(scale, "the queries");
    slots_.check_layer(layer);
    asked_.renewed();
    decode_step step{layer, view.keys(layer), queries, scale, plan_.lengths(), {}};
    kept_.show(0, step);
    renew_turn(step);
  }

  /// Returns how many of a head's tokens the planned step reads rows of at most: by its lists, and at a look.
  /// @param layer,sequence,head  the head
  /// @return tokens
  std::int64_t most_listed(layer_id layer, std::int64_t sequence, head_id head) const {
    std::int64_t const tokens = plan_.length(sequence);
    if (tokens == 0) return 0;
    std::int64_t const later = plan_.brought(sequence) - 1;
    if constexpr (requires { retrieve_.most_listed(layer, sequence, head, tokens); })
      return std::min(tokens, retrieve_.most_listed(layer, sequence, head, tokens)) + later;
    else if constexpr (known_counts<Policy, D>) return listed(layer, sequence, head);
    else return tokens + later;
  }

  /// Enqueues what triggers do after a step. Does nothing for a policy that needs no logits.
  /// @param logits, vocabulary  next-token logits `[sequences, step_tokens, vocabulary]`
  void observe(vector_rows const& logits, std::int64_t vocabulary) {
    if constexpr (contains(parts_type::needs, signals::logits)) {
      retrieve_.read(logits, vocabulary, plan_.brought());
      retrieve_.observe(0, plan_.lengths());
      asked_.observed();
    }
  }

  /// Enqueues every sequence's attention over the lists of choose(). The output of tokens that were not brought is 0.
  /// @param view,layer,queries,scale  as choose()
  /// @param lists  from choose()
  /// @param out  `[sequences, step_tokens, q_heads, head_dim]`
  template <batch_view V>
  void attend(V const& view, layer_id layer, token_lists const& lists, vector_rows const& queries, float scale,
              vector_rows const& out) {
    check_scale(scale, "the queries");
    slots_.check_layer(layer);
    detail::launch_attend(*device_, {.queries = queries,
                                     .scale = scale,
                                     .group = static_cast<std::int32_t>(shape_.group()),
                                     .step = static_cast<std::int32_t>(plan_.step_tokens()),
                                     .brought = plan_.brought(),
                                     .keys = view.keys(layer),
                                     .values = view.values(layer),
                                     .lists = lists,
                                     .sequences = sequences_,
                                     .most_tokens = shape_.max_tokens,
                                     .out = out});
  }

 private:
  decoder(parts_type const& parts, requirements const& of, detail::decode_slots slots, cache_shape const& shape,
          std::int64_t sequences, D& device)
      : shape_(shape),
        sequences_(sequences),
        device_(&device),
        after_(of.after),
        asked_(of, shape.layers),
        slots_(std::move(slots)),
        plan_(device, sequences, slots_.step_tokens()),
        kept_(device, shape, sequences, plan_.step_tokens(), by_lengths ? signals::none : parts_type::needs),
        retain_({parts.retain, shape, sequences, &device, &plan_.turns()}),
        retrieve_({parts.retrieve, shape, sequences, &device, &plan_.turns(), retain_.retained_lists(), after_ > 0}) {
    if (decides_late && after_ > 0) late_.emplace(device, shape, sequences, after_, of.observation_queries);
  }

  /// A prompt is there, and its choice waits.
  template <class View, class Exec>
  void wait(prompt_piece<View> const& piece, Exec& exec) {
    if constexpr (decides_late) {
      late_->begin(piece.sequence, piece.layer, piece.prompt, piece.view.tokens());
      retain_.wait(piece, exec);
      retrieve_.wait(piece, exec);
    }
  }
  /// Both rules choose: the retain, and then among what it left the retrieve, by `retrieve()`.
  template <class View, class Exec, class Retrieve>
  void decide_parts(prompt_piece<View>& piece, Exec& exec, Retrieve retrieve) {
    retain_.prefill(piece, exec);
    if constexpr (!std::same_as<decltype(parts_type::retrieve), keep_all>) {
      piece.retained = retain_.kept(piece.sequence, piece.layer);
      piece.lists = retain_.kept_lists(piece.sequence, piece.layer, piece.view.tokens());
    }
    retrieve();
  }
  void plan_parts(planned_turn const& turn) {
    retain_.plan(turn.sequence, turn.prompt, turn.tokens);
    retrieve_.plan(turn, [&](layer_id layer, head_id head) {
      if constexpr (counts_lists<retain_state>) return retain_.listed(layer, turn.sequence, head, turn.tokens);
      else return turn.tokens;
    });
  }

  void choose_turn(decode_step& step) {
    if (late_) late_->add(step);
    retain_.choose(step);
    step.retained = retain_.lists(step.layer, step.lengths);
    retrieve_.choose(step);
  }
  void renew_turn(decode_step& step) {
    if constexpr (requires { retrieve_.renew(step); }) retrieve_.renew(step);
  }

  cache_shape shape_;
  std::int64_t sequences_;
  D* device_;
  std::int64_t after_;  ///< tokens of the answer that choices wait for
  detail::asked_signals asked_;
  detail::decode_slots slots_;
  detail::step_plan<D> plan_;  ///< the parts point to its turns
  detail::kept_step<D> kept_;
  retain_state retain_;
  retrieve_state retrieve_;
  std::optional<detail::late_queries<D>> late_;  ///< of choices that wait and are made in a step of their own
};

}  // namespace kvpolicy::gpu
