// What is retained by a choice that is made anew every so many steps (R-KV, TriAttention), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/gpu/retain/kept_tokens.hpp"
#include "kvpolicy/gpu/retain/late_queries.hpp"
#include "kvpolicy/gpu/step/host_prompts.hpp"
#include "kvpolicy/scorers/recent_attention.hpp"
#include "kvpolicy/scorers/weighted_sum.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every.hpp"

namespace kvpolicy::gpu::detail {

/// Scorers that hear nothing of steps but the last queries, and score after the step's attention.
template <class Score>
inline constexpr bool hears_last_queries = !memory_of<Score>::hears_steps;
template <>
inline constexpr bool hears_last_queries<scorers::recent_attention> = true;
template <class First, class Second>
inline constexpr bool hears_last_queries<scorers::weighted_sum<First, Second>> =
    hears_last_queries<First>&& hears_last_queries<Second>;
template <class Rule>
concept renews_by_steps = std::same_as<typename Rule::trigger_type, triggers::every> &&
    std::same_as<typename Rule::select_type, selectors::top> && evicting_scorer<typename Rule::score_type> &&
    Rule::score_type::after_attention && hears_last_queries<typename Rule::score_type>;

/// The four verbs' own states choose, in the step behind the one whose attention a choice is due after. That step is not
/// captured. Between choices nothing runs but a copy of the queries that scorers hear.
template <class Rule, owning_device D>
  requires renews_by_steps<Rule>
class decode_retain<Rule, D> {
  static constexpr bool hears_queries = contains(Rule::needs, signals::queries);

 public:
  static constexpr bool stays = false;
  static constexpr bool can_wait = false;
  static constexpr bool decides_by_steps = true;

  explicit decode_retain(decode_context<Rule, D> const& context)
      : context_(context),
        prompts_({context.rule, keep_all{}}, context.shape, context.sequences),
        slots_(static_cast<std::size_t>(context.sequences)),
        rows_(*context.device, 1, context.sequences),
        kept_(*context.device, context.shape, context.sequences, Rule::granularity == scope::head ? context.shape.kv_heads : 1),
        window_(hears_queries ? requirements_of(context.rule).observation_queries : 0),
        queries_(context.template by_layer<float>(context.sequences * window_ * size())) {}

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    slot& mine = slots_[static_cast<std::size_t>(piece.sequence)];
    if (piece.layer.value == 0) {
      if (piece.prompt.first > 0) follow(piece.sequence, piece.view, piece.prompt.first, exec);
      mine.due = false;
    }
    put(piece.layer, piece.sequence, prompts_.prefill(piece, exec).retain().lists(piece.layer), piece.view.tokens());
    mine.due_at = piece.view.tokens() + context_.rule.trigger.steps;
  }

  void plan(std::int64_t sequence, std::int64_t, std::int64_t tokens) {
    slot& mine = slots_[static_cast<std::size_t>(sequence)];
    mine.due = tokens > 0 && context_.rule.trigger.steps > 0 && tokens > mine.due_at;
    rows_.set(0, sequence, tokens > 0 && hears_queries ? (tokens - 1) % window_ : -1);
  }
  void upload() const {
    kept_.upload();
    rows_.upload(*context_.device);
  }
  bool decides() const noexcept { return std::ranges::any_of(slots_, &slot::due); }
  bool waits() const noexcept { return hears_queries || decides(); }
  void expect_decided() const {
    for (std::size_t s = 0; s < slots_.size(); ++s) expect_no_choice(slots_[s].due, static_cast<std::int64_t>(s));
  }
  /// All layers' choices, at layer 0: what they look at was there before this step. `view_of(sequence)` is the sequence's.
  template <class ViewOf, class Exec>
  void decide(decode_step const& step, ViewOf view_of, Exec& exec) {
    for (std::int64_t s = 0; s < context_.sequences && step.layer.value == 0; ++s) {
      slot& mine = slots_[static_cast<std::size_t>(s)];
      if (!mine.due) continue;
      auto const view = view_of(s);
      std::int64_t const tokens = view.tokens() - 1;
      mine.scale = step.scale;
      follow(s, view, tokens, exec);
      for (std::int64_t l = 0; l < context_.shape.layers; ++l) put({l}, s, prompts_.state(s).retain().left({l}), tokens);
      mine.due = false;
      mine.due_at = tokens + context_.rule.trigger.steps;
    }
  }

  static constexpr std::int64_t retained_lists() noexcept { return 0; }
  static constexpr bool idle() noexcept { return true; }
  void choose(decode_step const& step) {
    if constexpr (!hears_queries) return;
    for (slot& mine : slots_) mine.scale = step.scale;
    context_.device->template launch<keep_late_body>(
        {1, context_.sequences, 1},
        {step.queries, static_cast<std::int32_t>(context_.shape.q_heads), static_cast<std::int32_t>(context_.shape.head_dim),
         rows_.of(0), queries_.of(step.layer), window_});
  }

  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id head, std::int64_t tokens) const noexcept {
    return kept_.count(layer, sequence, head, tokens);
  }
  token_lists lists(layer_id layer, per_sequence const& lengths) const noexcept {
    std::int64_t const about = context_.rule.layers.dense(layer) ? 0 : context_.rule.budget.most_tokens(context_.shape);
    return kept_.of(layer, lengths, about);
  }

 private:
  struct slot {
    std::int64_t due_at = 0;  ///< tokens of the step after which the next choice is made
    bool due = false;         ///< in the planned step
    float scale = 1;          ///< of its last queries
  };

  std::int64_t size() const noexcept { return context_.shape.q_heads * context_.shape.head_dim; }

  /// Brings the host's state up to so many tokens, step by step, with the last queries.
  template <class View, class Exec>
  void follow(std::int64_t sequence, View const& view, std::int64_t tokens, Exec& exec) {
    cache_shape const& shape = context_.shape;
    std::vector<float> heard(static_cast<std::size_t>(shape.layers * window_ * size()));
    // In a ring: those of the last steps, from the oldest on, and behind the ring's end the others.
    std::int64_t const fresh = std::min(window_, tokens - prompts_.tokens(sequence));
    std::int64_t const oldest = fresh > 0 ? (tokens - fresh) % window_ : 0;
    auto const download = [&](std::int64_t layer, std::int64_t at, std::int64_t count) {
      if (count <= 0) return;
      buffer<float const> const from = part_of(queries_.of({layer}), (sequence * window_ + at) * size(), count * size());
      context_.device->download(heard.data() + (layer * window_ + at) * size(), from);
    };
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      download(l, oldest, std::min(fresh, window_ - oldest));
      download(l, 0, oldest + fresh - window_);
    }
    std::vector<float> const forgotten(static_cast<std::size_t>(size()));  // queries that later ones take the place of
    auto& state = prompts_.state(sequence);
    for (std::int64_t t = prompts_.tokens(sequence) + 1; t <= tokens; ++t) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        bool const last = t > tokens - window_;
        float const* const mine = last ? heard.data() + (l * window_ + (t - 1) % window_) * size() : forgotten.data();
        step_signals step{};
        if (hears_queries)
          step.queries = {mine, shape.q_heads, shape.head_dim, slots_[static_cast<std::size_t>(sequence)].scale};
        static_cast<void>(state.choose(view.first(t), {l}, step, exec));
      }
    }
    prompts_.follows(sequence, std::max(tokens, prompts_.tokens(sequence)));
  }

  void put(layer_id layer, std::int64_t sequence, std::span<range_list const> lists, std::int64_t tokens) {
    if (context_.rule.layers.dense(layer)) kept_.put_all(layer, sequence);
    else kept_.put(layer, sequence, lists, tokens);
  }

  decode_context<Rule, D> context_;
  host_prompts<policy<Rule, keep_all>> prompts_;
  std::vector<slot> slots_;
  step_numbers<D> rows_;  ///< where a step's queries go, of the last `window`
  kept_tokens<D> kept_;
  std::int64_t window_;            ///< queries that the scorer hears
  layer_array<D, float> queries_;  ///< `[sequences, window, q_heads, head_dim]`
};

}  // namespace kvpolicy::gpu::detail
