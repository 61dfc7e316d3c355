// Which tokens a batch's step brings, planned on the host, and which lists that leaves on the device.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kvpolicy/gpu/step/asked_signals.hpp"
#include "kvpolicy/gpu/step/kept_step.hpp"
#include "kvpolicy/gpu/step/moving_rows.hpp"
#include "kvpolicy/gpu/step/rules.hpp"
#include "kvpolicy/gpu/step/slots.hpp"
#include "kvpolicy/policy.hpp"

namespace kvpolicy::gpu {

/// The part of a decoder that enqueues nothing: it follows slots, rows and lengths, and says what a planned step asks for.
template <policy_like Policy, owning_device D>
class planned_steps {
 protected:
  using parts_type = parts_t<Policy>;
  using rules_type = detail::decode_rules<Policy, D>;

 public:
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
  /// @throws device_memory_exceeded if summaries of the new tokens have no room: slots with 0 tokens are empty then, and
  ///         nothing else has changed
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

  /// Returns how many of a head's tokens the planned step reads rows of at most: by its lists, and at a look.
  /// @param layer,sequence,head  the head
  /// @return tokens
  std::int64_t most_listed(layer_id layer, std::int64_t sequence, head_id head) const {
    std::int64_t const tokens = plan_.length(sequence);
    return tokens == 0 ? 0 : rules_.most_listed(layer, sequence, head, tokens) + plan_.brought(sequence) - 1;
  }

 protected:
  planned_steps(parts_type const& parts, requirements const& of, detail::decode_slots slots, std::int64_t rows,
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
  planned_steps(planned_steps&&) = default;
  planned_steps& operator=(planned_steps&&) = default;
  ~planned_steps() = default;

  cache_shape shape_;
  std::int64_t sequences_;
  D* device_;
  detail::asked_signals asked_;
  detail::decode_slots slots_;
  detail::moving_rows<D> rows_;
  detail::step_plan<D> plan_;  ///< the rules point to its turns
  detail::kept_step<D> kept_;
  rules_type rules_;

 private:
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

  std::vector<std::int32_t> by_slot_;  ///< a plan's numbers, of plan_rows()
};

}  // namespace kvpolicy::gpu
