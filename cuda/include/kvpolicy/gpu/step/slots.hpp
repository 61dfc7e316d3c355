// A decoder's slots on the host: which tokens the sequence in each of them has.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/detail/call_order.hpp"
#include "kvpolicy/primitive/attend.hpp"

namespace kvpolicy::gpu {

/// For decoder::plan(): the slot's sequence has no token at this step, and continues at a later one.
inline constexpr std::int32_t paused = -1;

}  // namespace kvpolicy::gpu

namespace kvpolicy::gpu::detail {

/// Follows prompts and steps of each slot.
class decode_slots {
 public:
  /// @param shape  of each sequence's cache
  /// @param sequences  slots
  /// @param step_tokens  that a sequence brings to a step at most
  /// @throws invalid_value without a slot, and unless a step may bring 1 to most_step_tokens
  decode_slots(cache_shape const& shape, std::int64_t sequences, std::int64_t step_tokens)
      : shape_(shape), step_tokens_(step_tokens), all_(count_of(sequences), empty(shape)) {
    KVPOLICY_EXPECTS(step_tokens >= 1 && step_tokens <= most_step_tokens,
                     "a decoder for steps of up to " + std::to_string(step_tokens) + " tokens; it can be 1 to " +
                         std::to_string(most_step_tokens));
  }

  std::int64_t step_tokens() const noexcept { return step_tokens_; }
  std::int64_t count() const noexcept { return std::ssize(all_); }
  /// Whether a sequence is in the slot. Throws invalid_value while layers of its prompt are missing: a plan would forget it.
  bool live_between_prompts(std::int64_t slot) const {
    std::int64_t const layers = at(slot).order.prefilled();
    KVPOLICY_EXPECTS(layers == 0 || layers >= shape_.layers,
                     "a plan while sequence " + std::to_string(slot) + " has " + std::to_string(layers) + " of " +
                         std::to_string(shape_.layers) + " layers of its prompt; prefill the others first, or end() it");
    return there(at(slot)) > 0;
  }
  /// Throws invalid_value for a slot that there is not.
  void empty(std::int64_t slot) {
    check_slot(slot);
    all_[static_cast<std::size_t>(slot)] = empty(shape_);
  }
  /// Throws invalid_value for a layer that there is not.
  void check_layer(layer_id layer) const { kvpolicy::check_layer(layer, shape_.layers); }
  /// Tokens of a slot's prompt.
  std::int64_t prompt(std::int64_t slot) const noexcept { return at(slot).prompt; }
  /// Tokens that the policy has seen: the prompt, and each step's first one with what stayed of the step before.
  std::int64_t settled(std::int64_t slot) const noexcept { return at(slot).settled; }

  /// A layer of a prompt, or of a piece, may come. Throws invalid_value.
  void check_prompt(std::int64_t slot, layer_id layer, std::int64_t first, std::int64_t tokens) const {
    check_slot(slot);
    at(slot).order.check_prompt(layer, first, tokens);
  }
  /// First token of the prompt of which this is a piece.
  std::int64_t prompt_begin(std::int64_t slot, layer_id layer, std::int64_t first) const noexcept {
    return at(slot).order.prompt_begin(layer, first);
  }
  /// It comes.
  void begin_prompt(std::int64_t slot, layer_id layer, std::int64_t first, std::int64_t tokens) noexcept {
    one& mine = all_[static_cast<std::size_t>(slot)];
    if (layer.value != 0) return;
    mine.order.begin_prompt(first, tokens);
    mine.settled = std::min(mine.settled, first);
  }
  void prefilled(std::int64_t slot, std::int64_t tokens) noexcept {
    one& mine = all_[static_cast<std::size_t>(slot)];
    mine.order.prefilled_one();
    mine.prompt = tokens;
    if (mine.order.prefilled() == shape_.layers) mine.settled = tokens;
  }

  /// What came behind so many tokens repeated them, and is removed.
  void repeated(std::int64_t slot, std::int64_t tokens) noexcept {
    one& mine = all_[static_cast<std::size_t>(slot)];
    mine.prompt = tokens;
    end(mine, tokens);
  }

  /// A choice that waited was made: what is there now is its prompt.
  void decided(std::int64_t slot) noexcept { all_[static_cast<std::size_t>(slot)].prompt = at(slot).settled; }

  /// Throws invalid_value unless the slot has the tokens, and its prompt remains.
  void cut(std::int64_t slot, std::int64_t tokens) {
    check_slot(slot);
    one& mine = all_[static_cast<std::size_t>(slot)];
    KVPOLICY_EXPECTS(there(mine) > 0 && tokens >= mine.prompt && tokens <= there(mine),
                     "sequence " + std::to_string(slot) + " cut to " + std::to_string(tokens) + " of " +
                         std::to_string(there(mine)) + " tokens; its prompt of " + std::to_string(mine.prompt) +
                         " remains: prefill a shorter one");
    end(mine, tokens);
  }

  /// Throws invalid_value for a plan that no step can follow.
  void check(std::span<std::int32_t const> tokens, std::span<std::int32_t const> brought) const {
    auto const of_all = [&](std::span<std::int32_t const> numbers) {
      KVPOLICY_EXPECTS(numbers.size() == all_.size(), "a plan for " + std::to_string(numbers.size()) +
                                                          " sequences; this decoder has " + std::to_string(all_.size()));
    };
    of_all(tokens);
    if (!brought.empty()) of_all(brought);
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      std::int64_t const now = tokens[s];
      std::int64_t const own = brought.empty() || now <= 0 ? 1 : brought[s];
      std::int64_t const before = there(all_[s]);
      bool const next = own >= 1 && own <= step_tokens_ && now - own >= std::max<std::int64_t>(all_[s].settled, 1) &&
                        now - own <= before && now <= shape_.max_tokens;
      KVPOLICY_EXPECTS(now == 0 || (before > 0 && (next || now == paused)), refusal(s, now, own, before));
    }
  }
  /// A step that was checked. Returns the tokens that were settled before it.
  std::int64_t step(std::int64_t slot, std::int64_t tokens, std::int64_t brought) noexcept {
    one& mine = all_[static_cast<std::size_t>(slot)];
    std::int64_t const before = mine.settled;
    if (tokens == 0) mine = empty(shape_);
    if (tokens <= 0) return before;
    mine.order.begin_step(tokens, brought);
    mine.order.chosen_one();
    mine.settled = tokens - brought + 1;
    return before;
  }

 private:
  static std::size_t count_of(std::int64_t sequences) {
    KVPOLICY_EXPECTS(sequences >= 1, "a decoder of " + std::to_string(sequences) + " slots; give it 1 at least");
    return static_cast<std::size_t>(sequences);
  }
  struct one {
    call_order order;
    std::int64_t prompt = 0;
    std::int64_t settled = 0;
  };
  /// The slot's sequence ends behind so many tokens.
  void end(one& mine, std::int64_t tokens) const noexcept {
    mine.order.begin_prompt(tokens, tokens);
    for (std::int64_t l = 0; l < shape_.layers; ++l) mine.order.prefilled_one();
    mine.settled = tokens;
  }
  void check_slot(std::int64_t slot) const {
    KVPOLICY_EXPECTS(slot >= 0 && slot < std::ssize(all_),
                     "sequence " + std::to_string(slot) + " of a decoder for " + std::to_string(all_.size()));
  }
  /// Tokens that a step may follow; 0 while a layer of the prompt is missing.
  std::int64_t there(one const& of) const noexcept { return of.order.prefilled() < shape_.layers ? 0 : of.order.tokens(); }
  static one empty(cache_shape const& shape) noexcept { return {{shape.layers, 1, shape.max_tokens}}; }
  one const& at(std::int64_t slot) const noexcept { return all_[static_cast<std::size_t>(slot)]; }

  std::string refusal(std::size_t slot, std::int64_t now, std::int64_t own, std::int64_t there) const {
    std::string const of_last = all_[slot].settled < there ? ", of which the last step's first token stays, and so " +
                                                                 std::to_string(all_[slot].settled) + " at least"
                                                           : "";
    return "sequence " + std::to_string(slot) + " has " + std::to_string(now) + " tokens, " + std::to_string(own) +
           " of them new, after " + std::to_string(there) + of_last + "; a step adds 1 to " + std::to_string(step_tokens_) +
           ", up to " + std::to_string(shape_.max_tokens) +
           "; prefill what else came, give -1 (paused) for a sequence that waits, or 0 for an empty slot";
  }

  cache_shape shape_;
  std::int64_t step_tokens_;
  std::vector<one> all_;
};

}  // namespace kvpolicy::gpu::detail
