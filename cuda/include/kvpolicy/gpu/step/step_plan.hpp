// Which tokens the sequences of a batch have at a step, as kernels read them.
#pragma once

#include <memory>

#include "kvpolicy/gpu/step/arrays.hpp"

namespace kvpolicy::gpu::detail {

/// Made by decoder::plan() on the host. A step has a turn for each token that the step before brought beyond its first one, if
/// it stays; the last turn is that of this step's first token.
template <owning_device D>
class step_plan {
 public:
  /// @param device  the device
  /// @param sequences  of the batch
  /// @param step_tokens  that a sequence brings at most
  step_plan(D& device, std::int64_t sequences, std::int64_t step_tokens)
      : turns_(std::make_unique<step_turns>(step_turns{step_tokens, step_tokens - 1})),
        totals_(device, total_rows, sequences),
        lengths_(device, 1, sequences, *turns_) {}

  /// What parts make their numbers for. The address is the same for good.
  step_turns const& turns() const noexcept { return *turns_; }
  std::int64_t step_tokens() const noexcept { return turns_->count; }

  void begin() noexcept { alone_ = true, unsettled_ = false; }
  /// A sequence has so many tokens, of which the last ones are new and the first ones had their turns; 0: none. Calls
  /// `turn(tokens)` for each turn, with the tokens that it is made on, or 0.
  template <class Turn>
  void set(std::int64_t sequence, std::int64_t settled, std::int64_t tokens, std::int64_t brought, Turn turn) {
    totals_.set(all, sequence, tokens);
    totals_.set(new_ones, sequence, brought);
    std::int64_t const last = turns_->count - 1;
    for (turns_->now = 0; turns_->now <= last; ++turns_->now) {
      bool const stays = settled + turns_->now < tokens - brought;
      std::int64_t length = stays ? settled + turns_->now + 1 : 0;
      unsettled_ = unsettled_ || (stays && turns_->now < last);
      if (turns_->now == last) length = tokens == 0 ? 0 : tokens - brought + 1;
      lengths_.set(0, sequence, length);
      turn(length);
    }
    turns_->now = last;
    alone_ = alone_ && brought <= 1;
  }
  void upload(D& device) const {
    totals_.upload(device);
    lengths_.upload(device);
  }

  /// Calls work(nth) in each turn but the last: the nth of its sequence's tokens at the step before takes it.
  template <class Work>
  void each_settled(Work work) {
    struct ends {
      step_turns& turns;
      ~ends() { turns.now = turns.count - 1; }
    } const back{*turns_};
    for (turns_->now = 0; turns_->now < turns_->count - 1; ++turns_->now) work(turns_->now + 1);
  }

  bool unsettled() const noexcept { return unsettled_; }
  /// No sequence brings more than one token.
  bool alone() const noexcept { return alone_; }
  per_sequence tokens() const noexcept { return totals_.of(all); }
  per_sequence brought() const noexcept { return totals_.of(new_ones); }
  std::int64_t brought(std::int64_t sequence) const noexcept { return totals_.get(new_ones, sequence); }
  /// Tokens in this turn.
  per_sequence lengths() const noexcept { return lengths_.of(0); }
  std::int64_t length(std::int64_t sequence) const noexcept { return lengths_.get(0, sequence); }

  /// What the first new token chose, and the new ones behind it.
  token_lists with_later(token_lists lists) const noexcept {
    lists.tokens = tokens();
    bool const ends = lists.tail.values.data == nullptr && lists.tail.all == token_lists::no_tail;
    if (ends && turns_->count > 1) lists.tail = lengths();
    return lists;
  }

 private:
  enum total { all, new_ones, total_rows };

  std::unique_ptr<step_turns> turns_;
  step_numbers<D> totals_;
  step_numbers<D> lengths_;  ///< of each turn
  bool alone_ = true;
  bool unsettled_ = false;
};

}  // namespace kvpolicy::gpu::detail
