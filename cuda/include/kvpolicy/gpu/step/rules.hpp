// Both rules of a policy on the device, and the choice that waits for tokens of the answer.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "kvpolicy/gpu/decodable.hpp"
#include "kvpolicy/gpu/retain/late_queries.hpp"
#include "kvpolicy/gpu/step/step_plan.hpp"

namespace kvpolicy::gpu::detail {

/// The retain, and among what it left the retrieve.
template <class Policy, owning_device D>
class decode_rules {
  using parts_type = parts_t<Policy>;
  using retain_state = decode_retain<decltype(parts_type::retain), D>;
  using retrieve_state = decode_retrieve<decltype(parts_type::retrieve), D>;
  static constexpr bool retains_alone = std::same_as<decltype(parts_type::retrieve), keep_all>;
  static constexpr bool renews = retain_renews<Policy, D>;

 public:
  /// Lists follow from lengths alone, at every step.
  static constexpr bool by_lengths = never_chooses<retain_state> && never_chooses<retrieve_state>;
  /// What a retain keeps is there for good.
  static constexpr bool stays = retain_state::stays;
  static constexpr bool counts_retained = counts_lists<retain_state>;

  /// `after`: tokens of the answer that choices wait for; `window`: last queries that they look at.
  decode_rules(parts_type const& parts, cache_shape const& shape, std::int64_t sequences, D& device, step_turns const& turns,
               std::int64_t after, std::int64_t window)
      : sequences_(sequences),
        after_(after),
        layers_(shape.layers),
        retain_({parts.retain, shape, sequences, &device, &turns}),
        retrieve_({parts.retrieve, shape, sequences, &device, &turns, retain_.retained_lists(), after > 0}) {
    if (decides_late<Policy, D> && after > 0) late_.emplace(device, shape, sequences, after, window);
  }

  /// A layer of a prompt is there: the rules choose, or wait.
  template <class View, class Exec>
  void prefill(prompt_piece<View>& piece, Exec& exec) {
    if (!late_) return decide_one(piece, exec, [&] { retrieve_.prefill(piece, exec); });
    if constexpr (decides_late<Policy, D>) {
      late_->begin(piece.sequence, piece.layer, piece.prompt, piece.view.tokens());
      retain_.wait(piece, exec);
      retrieve_.wait(piece, exec);
    }
  }

  /// Throws invalid_value where the last step's choice was not made.
  void expect_decided() const {
    if (late_) late_->expect_decided();
    if constexpr (renews) retain_.expect_decided();
  }
  /// Room for what is kept of a sequence of so many tokens. Throws device_memory_exceeded.
  void hold(std::int64_t sequence, std::int64_t tokens) {
    if constexpr (requires { retrieve_.hold(sequence, tokens); }) retrieve_.hold(sequence, tokens);
  }
  /// A turn on so many tokens, or 0.
  void plan(std::int64_t sequence, std::int64_t prompt, std::int64_t tokens) {
    if (late_) late_->plan(sequence, tokens);
    plan_one({sequence, prompt, tokens, late_ ? late_->waits(sequence) : tokens > 0 && tokens < prompt + after_});
  }
  void upload() const {
    if (late_) late_->upload();
    retain_.upload();
    retrieve_.upload();
  }

  void choose(decode_step& step) {
    if (late_) late_->add(step);
    retain_.choose(step);
    step.retained = retain_.lists(step.layer, step.lengths);
    retrieve_.choose(step);
  }
  void renew(decode_step const& step) {
    if constexpr (requires { retrieve_.renew(step); }) retrieve_.renew(step);
  }
  void read(vector_rows const& logits, std::int64_t vocabulary, per_sequence const& brought) {
    if constexpr (contains(parts_type::needs, signals::logits)) retrieve_.read(logits, vocabulary, brought);
  }
  void observe(std::int64_t nth, per_sequence const& lengths) {
    if constexpr (contains(parts_type::needs, signals::logits)) retrieve_.observe(nth, lengths);
  }

  /// Whether the planned step makes a choice that is not captured.
  bool decides() const noexcept {
    if constexpr (renews) return retain_.decides();
    else return late_ && late_->any_due();
  }
  /// Makes a layer's; calls `decided(sequence)` of each whose last layer it was. `view_of(sequence)` has its tokens.
  template <class ViewOf, class Exec, class Decided>
  void decide(decode_step const& step, ViewOf view_of, Exec& exec, Decided decided) {
    using view_type = decltype(view_of(std::int64_t{}));
    if constexpr (renews) retain_.decide(step, view_of, exec);
    if constexpr (decides_late<Policy, D>) {
      if (late_) late_->add(step);
      for (std::int64_t s = 0; late_ && s < sequences_; ++s) {
        if (!late_->due(s)) continue;
        view_type const one = view_of(s);
        prompt_signals from{};
        from.queries = late_->last(s, step.layer, step.scale);
        from.observed_from = one.tokens() - from.queries.tokens;
        prompt_piece<view_type> piece{s, one, of_sequence(one.batch.keys(step.layer), one.row), step.layer, from};
        piece.later = 1;
        decide_one(piece, exec, [&] {
          if constexpr (requires { retrieve_.decide(piece, exec); }) retrieve_.decide(piece, exec);
          else retrieve_.prefill(piece, exec);
        });
        plan_one({s, one.tokens(), one.tokens(), false});
        if (step.layer.value + 1 < layers_) continue;
        late_->end(s);
        decided(s);
      }
    }
    retain_.upload();
    retrieve_.upload();
  }

  /// Whether lists() is right at the planned step without choose(). `plain`: every sequence brings one token, and none is
  /// unsettled.
  bool idle(bool plain) const noexcept {
    if (late_ && late_->waits()) return false;
    if constexpr (renews) return !retain_.waits();
    else if constexpr (by_lengths) return true;
    else if constexpr (requires { retain_.idle(), retrieve_.idle(); }) return plain && retain_.idle() && retrieve_.idle();
    else return false;
  }
  token_lists retained(layer_id layer, per_sequence const& lengths) const { return retain_.lists(layer, lengths); }
  token_lists lists(layer_id layer, token_lists const& retained) const { return retrieve_.lists(layer, retained); }

  std::int64_t retained_count(layer_id layer, std::int64_t sequence, head_id head,
                              std::int64_t tokens) const requires counts_retained {
    return retain_.listed(layer, sequence, head, tokens);
  }
  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id head,
                      std::int64_t tokens) const requires known_counts<Policy, D> {
    if constexpr (retains_alone) return retain_.listed(layer, sequence, head, tokens);
    else return retrieve_.listed(layer, sequence, head, tokens);
  }
  std::int64_t most_listed(layer_id layer, std::int64_t sequence, head_id head, std::int64_t tokens) const {
    if constexpr (requires { retrieve_.most_listed(layer, sequence, head, tokens); })
      return std::min(tokens, retrieve_.most_listed(layer, sequence, head, tokens));
    else if constexpr (known_counts<Policy, D>) return listed(layer, sequence, head, tokens);
    else return tokens;
  }

 private:
  /// Both choose: the retain, and then among what it left the retrieve, by `retrieve()`.
  template <class View, class Exec, class Retrieve>
  void decide_one(prompt_piece<View>& piece, Exec& exec, Retrieve retrieve) {
    retain_.prefill(piece, exec);
    if constexpr (!retains_alone) {
      piece.retained = retain_.kept(piece.sequence, piece.layer);
      piece.lists = retain_.kept_lists(piece.sequence, piece.layer, piece.view.tokens());
    }
    retrieve();
  }
  void plan_one(planned_turn const& turn) {
    retain_.plan(turn.sequence, turn.prompt, turn.tokens);
    retrieve_.plan(turn, [&](layer_id layer, head_id head) {
      if constexpr (counts_retained) return retain_.listed(layer, turn.sequence, head, turn.tokens);
      else return turn.tokens;
    });
  }

  std::int64_t sequences_;
  std::int64_t after_;
  std::int64_t layers_;
  retain_state retain_;
  retrieve_state retrieve_;
  std::optional<late_queries<D>> late_;  ///< of choices that wait and are made in a step of their own
};

}  // namespace kvpolicy::gpu::detail
