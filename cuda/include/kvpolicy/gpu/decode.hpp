// Decode steps of a batch, chosen on the device: planned on the host and enqueued without waiting, so a graph can capture them.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kvpolicy/detail/call_order.hpp"
#include "kvpolicy/gpu/decode/decodable.hpp"
#include "kvpolicy/gpu/launch/attend.hpp"
#include "kvpolicy/gpu/sequence_view.hpp"
#include "kvpolicy/policy.hpp"

namespace kvpolicy::gpu {

/// For plan(): the slot's sequence has no token at this step, and goes on at a later one.
inline constexpr std::int32_t paused = -1;

/// A policy's state for a batch of sequences, on the device. The engine owns it. Not thread-safe.
/// The constructor allocates, prefill() waits, and plan() copies numbers to the device. choose() enqueues kernels whose
/// arguments are the same at every step: capture a step once, and replay it after each plan().
/// @tparam Policy  one that is decodable
/// @tparam D  the device
template <policy_like Policy, owning_device D>
class decoder {
  using parts_type = parts_t<Policy>;
  static_assert(fits_on_device<parts_type, D>());
  using retain_state = decode_retain<decltype(parts_type::retain), D>;
  using retrieve_state = decode_retrieve<decltype(parts_type::retrieve), D>;

 public:
  /// Makes the state of a batch. Allocates all device memory that it will use.
  /// @param policy  the policy
  /// @param shape  the shape of each sequence's cache
  /// @param sequences  slots: each may hold any request, one after the other
  /// @param device  the device; must outlive the decoder
  /// @throws invalid_value as start() does
  /// @throws unsupported as start() does; for a policy that waits for tokens of the answer; past the kernels' head sizes and
  ///        groups
  /// @throws device_memory_exceeded if the device has too little memory
  decoder(Policy const& policy, cache_shape const& shape, std::int64_t sequences, D& device)
      : decoder((kvpolicy::check(policy, shape), refuse_waiting(policy), parts_of(policy)), shape, sequences, device,
                checked{}) {
    expect_row("a decode step", shape.head_dim, shape.group());
  }

  /// Takes in a layer's keys of a prompt, or of a further piece, once they are written; as request::prefill(). Waits.
  /// @param sequence  the slot
  /// @param view  the batch's caches
  /// @param tokens  tokens of the sequence now
  /// @param layer  the layer; call it for every layer, in order
  /// @param prompt  the prompt
  /// @param exec  runs the primitives, on the same device
  /// @throws invalid_value for an invalid slot, layer or number of tokens, a gap, or a layer out of order: nothing has changed.
  ///         For what the policy itself refuses (another rotary embedding, say) the slot has no step until its prompt was given
  ///         again
  /// @throws unsupported for a missing signal
  template <batch_view V, class Exec>
  void prefill(std::int64_t sequence, V const& view, std::int64_t tokens, layer_id layer, prompt_signals const& prompt,
               Exec& exec) {
    KVPOLICY_EXPECTS(sequence >= 0 && sequence < sequences_,
                     "sequence " + std::to_string(sequence) + " of a decoder for " + std::to_string(sequences_));
    auto const s = static_cast<std::size_t>(sequence);
    orders_[s].check_prompt(layer, prompt.first, tokens);
    if (layer.value == 0) orders_[s].begin_prompt(prompt.first, tokens);
    sequence_view<V, typename Exec::memory> const one{view, shape_, sequence, tokens};
    prompt_piece<sequence_view<V, typename Exec::memory>> piece{sequence, one, view.keys(layer), layer, prompt};
    retain_.prefill(piece, exec);
    if constexpr (!std::same_as<decltype(parts_type::retrieve), keep_all>) {
      piece.retained = retain_.kept(sequence, layer);
      piece.lists = retain_.kept_lists(sequence, layer, tokens);
    }
    retrieve_.prefill(piece, exec);
    orders_[s].prefilled_one();
    prompts_[s] = tokens;
  }

  /// Plans a step: each sequence that is not paused gets one more token. Call it before each step, outside a captured graph.
  /// @param tokens  `[sequences]`: each sequence's tokens, with the one that is decoded now; 0 for an empty slot; `paused` if
  ///        the sequence has no token at this step. Empty and paused slots read nothing, and their output is 0
  /// @throws invalid_value, before anything has changed, if a sequence did not grow by one token since its prompt or last step,
  ///        if an empty slot is paused, or if `tokens` has another length
  void plan(std::span<std::int32_t const> tokens) {
    KVPOLICY_EXPECTS(std::ssize(tokens) == sequences_, "a plan for " + std::to_string(tokens.size()) +
                                                           " sequences; this decoder has " + std::to_string(sequences_));
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      std::int64_t const before = there(s);
      bool const next = tokens[s] == before + 1 && tokens[s] <= shape_.max_tokens;
      KVPOLICY_EXPECTS(tokens[s] == 0 || (before > 0 && (next || tokens[s] == paused)),
                       "sequence " + std::to_string(s) + " has " + std::to_string(tokens[s]) + " tokens after " +
                           std::to_string(before) + "; a step adds one, up to " + std::to_string(shape_.max_tokens) +
                           "; prefill what else came, give -1 (paused) for a sequence that waits, or 0 for an empty slot");
    }
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      auto const sequence = static_cast<std::int64_t>(s);
      std::int64_t const now = std::max(tokens[s], 0);
      if (now > 0) orders_[s].begin_step(now), orders_[s].chosen_one();
      if (tokens[s] == 0) orders_[s] = nobody(), prompts_[s] = 0;
      lengths_.set(0, sequence, now);
      retain_.plan(sequence, prompts_[s], now);
      retrieve_.plan(sequence, prompts_[s], now, [&](layer_id layer, head_id head) {
        if constexpr (counts_lists<retain_state>) return retain_.listed(layer, sequence, head, now);
        else return now;
      });
    }
    lengths_.upload(*device_);
    retain_.upload();
    retrieve_.upload();
  }

  /// Returns the tokens of each sequence at this step, on the device, for the engine's own kernels.
  per_sequence lengths() const noexcept { return lengths_.of(0); }

  /// Returns how many tokens a KV head reads at the planned step, before choose() runs.
  /// An engine needs it if it plans its attention on the host. Only policies whose counts follow from lengths and prompts have
  /// this function; for others (a choice that logits trigger, sentences, evictions) only the device knows the count.
  /// @param layer,sequence,head  which list
  /// @return tokens
  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id head) const requires known_counts<Policy, D> {
    std::int64_t const tokens = lengths_.get(0, sequence);
    if (tokens == 0) return 0;
    if constexpr (std::same_as<decltype(parts_type::retrieve), keep_all>) {
      return retain_.listed(layer, sequence, head, tokens);
    } else {
      return retrieve_.listed(layer, sequence, head, tokens);
    }
  }

  /// Returns whether the lists of the planned step follow from its lengths alone, so that standing() may take choose()'s place:
  /// always for policies that choose only when a prompt ends, or never, and between HeteroCache's looks. An engine may capture
  /// such a step in a graph of its own; choose() remains right. False where only the device knows.
  bool idle() const noexcept {
    if constexpr (requires { retain_.idle(), retrieve_.idle(); }) return retain_.idle() && retrieve_.idle();
    else return false;
  }

  /// Returns a layer's lists at an idle step. Enqueues nothing.
  /// @param layer  the layer
  /// @return the lists, as choose() would
  token_lists standing(layer_id layer) const {
    per_sequence const lengths = lengths_.of(0);
    return retrieve_.lists(layer, retain_.lists(layer, lengths));
  }

  /// Enqueues the choice of a layer, before its attention. Each sequence's current key must be written.
  /// @param view  the batch's caches
  /// @param layer  the layer
  /// @param queries  `[sequences, q_heads, head_dim]`
  /// @param scale  multiplies q.k
  /// @param ids  `[sequences]` ids of the current tokens, if the policy needs them
  /// @return the lists, on the device; valid until the next step
  /// @throws invalid_value without ids that the policy needs
  template <batch_view V>
  token_lists choose(V const& view, layer_id layer, vector_rows const& queries, float scale,
                     buffer<std::int32_t const> ids = {}) {
    KVPOLICY_EXPECTS(ids.data != nullptr || !contains(parts_type::needs, signals::token_ids),
                     "the policy needs the current tokens' ids, and was given none");
    decode_step step{layer, view.keys(layer), queries, scale, lengths_.of(0), ids};
    retain_.choose(step);
    step.retained = retain_.lists(layer, step.lengths);
    retrieve_.choose(step);
    return retrieve_.lists(layer, step.retained);
  }

  /// Enqueues what triggers do after a step. Does nothing for a policy that needs no logits.
  /// @param logits  next-token logits `[sequences, vocabulary]`
  /// @param vocabulary  logits of a sequence
  void observe(vector_rows const& logits, std::int64_t vocabulary) {
    if constexpr (contains(parts_type::needs, signals::logits)) {
      retrieve_.observe(logits, vocabulary, lengths_.of(0));
    }
  }

  /// Enqueues every sequence's attention over the lists of choose().
  /// @param view  the batch's caches
  /// @param layer  the layer
  /// @param lists  from choose()
  /// @param queries  `[sequences, q_heads, head_dim]`
  /// @param scale  multiplies q.k
  /// @param out  `[sequences, q_heads, head_dim]`
  template <batch_view V>
  void attend(V const& view, layer_id layer, token_lists const& lists, vector_rows const& queries, float scale,
              vector_rows const& out) {
    decode_attention a{};
    a.queries = queries;
    a.scale = scale;
    a.group = static_cast<std::int32_t>(shape_.group());
    a.keys = view.keys(layer);
    a.values = view.values(layer);
    a.lists = lists;
    a.sequences = sequences_;
    a.most_tokens = shape_.max_tokens;
    a.out = out;
    launch_attend(*device_, a);
  }

 private:
  struct checked {};
  static void refuse_waiting(Policy const& policy) {
    std::int64_t const after = requirements_of(policy).after;
    if (after == 0) return;
    throw unsupported("the decoder on a GPU chooses in prefill(), and the policy waits for " + std::to_string(after) +
                      " tokens of the answer; set its after to 0, and call prefill() when the answer has that many");
  }
  decoder(parts_type const& parts, cache_shape const& shape, std::int64_t sequences, D& device, checked)
      : shape_(shape),
        sequences_(sequences),
        device_(&device),
        lengths_(device, 1, sequences),
        orders_(static_cast<std::size_t>(sequences), nobody()),
        prompts_(orders_.size()),
        retain_({parts.retain, shape, sequences, &device}),
        retrieve_({parts.retrieve, shape, sequences, &device, lists_of(retain_)}) {}

  static std::int64_t lists_of(retain_state const& retain) {
    if constexpr (requires { retain.retained_lists(); }) return retain.retained_lists();
    else return 0;  // no retrieve goes with it
  }

  call_order nobody() const noexcept { return {shape_.layers, 1, shape_.max_tokens}; }
  /// Tokens that a step may follow; 0 while a layer of the prompt is missing.
  std::int64_t there(std::size_t slot) const noexcept {
    return orders_[slot].prefilled() < shape_.layers ? 0 : orders_[slot].tokens();
  }

  cache_shape shape_;
  std::int64_t sequences_;
  D* device_;
  step_numbers<D> lengths_;
  std::vector<call_order> orders_;  ///< of each slot
  std::vector<std::int64_t> prompts_;
  retain_state retain_;
  retrieve_state retrieve_;
};

}  // namespace kvpolicy::gpu
