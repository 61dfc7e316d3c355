// An act: which units exist (retain), or which of them a step reads (retrieve), as a composition of parts.
#pragma once

#include <algorithm>
#include <concepts>
#include <optional>
#include <string>
#include <type_traits>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/trigger/prefill.hpp"

namespace kvpolicy {

/// How layers differ, for any act that chooses for each layer.
struct layering {
  std::int32_t dense_first = 0;  ///< the first layers keep everything
  std::int32_t reuse = 1;        ///< of as many layers the first chooses, the others take over its choice (ChunkKV)

  bool dense(layer_id layer) const noexcept { return layer.value < dense_first; }
  /// The layer whose choice this layer has.
  layer_id leader(layer_id layer) const noexcept {
    return {dense(layer) ? layer.value : layer.value - (layer.value - dense_first) % reuse};
  }
};

/// The parts of an act, in the order in which data passes through them: which units exist, how they are summarised and scored,
/// how many are kept, which, what is kept in any case, when the choice is made anew, and how layers differ.
template <segmenter Segment, pooler<Segment> Pool, scorer Score, budgeter Budget, part Select, window_part Window,
          trigger_part Trigger>
struct keep {
  static constexpr signals needs = Pool::needs | Score::needs | Trigger::needs;
  static constexpr scope how_fine = std::min(Score::how_fine, Select::coarsest);
  using pool_type = Pool;
  using budget_type = Budget;
  using score_type = Score;
  using segment_type = Segment;
  using trigger_type = Trigger;

  Segment segment{};
  Pool pool{};
  Score score{};
  Budget budget{};
  Select select{};
  Window window{};
  Trigger trigger{};
  layering layers{};
};

template <class Segment, class Pool, class Score, class Budget, class Select, class Window, class Trigger>
keep(Segment, Pool, Score, Budget, Select, Window, Trigger) -> keep<Segment, Pool, Score, Budget, Select, Window, Trigger>;
template <class Segment, class Pool, class Score, class Budget, class Select, class Window, class Trigger>
keep(Segment, Pool, Score, Budget, Select, Window, Trigger, layering)
    -> keep<Segment, Pool, Score, Budget, Select, Window, Trigger>;

/// The act that keeps everything.
struct keep_all {
  static constexpr signals needs = signals::none;
  static constexpr scope how_fine = scope::request;
};

/// What prefill is told beside the view.
struct prompt_signals {
  std::int64_t first = 0;                     ///< the first token that is new; 0 for a new prompt
  query_window queries{};                     ///< the last queries, where the policy needs them
  rotation turned{};                          ///< the keys' rotary embedding, where the policy needs it
  std::span<std::int32_t const> token_ids{};  ///< `[tokens - first]`, where the policy needs them
};

/// What choose is told of a step.
struct step_signals {
  query_heads queries{};       ///< of the current token, in this layer
  std::int32_t token_id = -1;  ///< the current token's, where the policy needs it

  constexpr step_signals() noexcept = default;
  constexpr step_signals(query_heads const& heads, std::int32_t id = -1) noexcept : queries(heads), token_id(id) {}
  /// query_heads' members.
  constexpr step_signals(float const* data, std::int64_t heads, std::int64_t head_stride, float scale) noexcept
      : queries{data, heads, head_stride, scale} {}
};

/// What observe is told of a step.
struct step_outcome {
  std::span<float const> logits{};  ///< `[vocabulary]`, where the policy needs them
  std::optional<float> entropy{};   ///< of the logits, in nats, in place of them: computed once, for every rank
};

/// What a scorer may read. `heads` are the KV heads that it is asked for; queries are theirs alone.
template <class View, class Summaries, class Memory>
struct score_input {
  View const& view;
  layer_id layer{};
  head_range heads{};
  std::int64_t tokens = 0;         ///< how many tokens of the view the choice is made among
  std::int64_t prompt_tokens = 0;  ///< of the sequence
  Summaries& summaries;
  Memory& memory;
  query_heads queries{};           ///< while decoding
  prompt_signals const* prompt{};  ///< at prefill
};

/// A scorer that needs the prompt's queries says of how many tokens: `window`.
template <class Act>
constexpr std::int64_t prompt_queries(Act const& act) noexcept {
  if constexpr (contains(Act::needs, signals::window_queries)) return act.score.window;
  else return 0;
}

/// Every query of the prompt.
inline constexpr std::int32_t all_queries = INT32_MAX;

/// What an act needs and how finely it selects, where that is known only at run time (act_of, exchanged by name).
constexpr signals needs_of(keep_all const&) noexcept { return signals::none; }
template <class... Parts>
constexpr signals needs_of(keep<Parts...> const& act) noexcept {
  using type = keep<Parts...>;
  return type::pool_type::needs | type::score_type::needs | act.trigger.wants();
}
template <class Act>
constexpr scope scope_of(Act const&) noexcept {
  return Act::how_fine;
}

constexpr bool keeps_all(keep_all const&) noexcept { return true; }
template <class... Parts>
constexpr bool keeps_all(keep<Parts...> const&) noexcept {
  return false;
}
/// Whether an act drops tokens while decoding, and whether an act can't do with that.
constexpr bool evicts(keep_all const&) noexcept { return false; }
template <class... Parts>
constexpr bool evicts(keep<Parts...> const&) noexcept {
  return evicting_scorer<typename keep<Parts...>::score_type> &&
         !std::same_as<typename keep<Parts...>::trigger_type, trigger::prefill>;
}
constexpr bool needs_ranks(keep_all const&) noexcept { return false; }
template <class... Parts>
constexpr bool needs_ranks(keep<Parts...> const& act) noexcept {
  return decltype(act.score.start(cache_shape{}))::by_rank;
}
constexpr layering layers_of(keep_all const&) noexcept { return {}; }
template <class... Parts>
constexpr layering layers_of(keep<Parts...> const& act) noexcept {
  return act.layers;
}

inline void check(keep_all const&, cache_shape const&) noexcept {}
inline void check_window(keep_all const&, cache_shape const&) noexcept {}

/// A retrieve must read the current token. Throws invalid_value where its window does not protect it.
template <class... Parts>
void check_window(keep<Parts...> const& act, cache_shape const& shape) {
  KVPOLICY_EXPECTS(act.window.at(shape.max_tokens, shape.max_tokens).recent_begin < shape.max_tokens,
                   "the window of a retrieve must hold the current token; give it at least 1 recent token or page");
}

/// Throws invalid_value for parameters that can't be, on a cache of this shape.
template <class... Parts>
void check(keep<Parts...> const& act, cache_shape const& shape) {
  std::int64_t const unit = act.segment.unit_size();
  KVPOLICY_EXPECTS(unit >= 1, "a unit of " + std::to_string(unit) + " tokens; it needs at least 1");
  act.budget.check(shape);
  act.window.check(unit);
  if constexpr (contains(keep<Parts...>::needs, signals::window_queries)) {
    KVPOLICY_EXPECTS(act.score.window >= 1,
                     "a window of " + std::to_string(act.score.window) + " queries; it needs at least 1");
  }
  layering const& layers = act.layers;
  KVPOLICY_EXPECTS(layers.dense_first >= 0 && layers.reuse >= 1,
                   std::to_string(layers.dense_first) + " dense layers and one choice for " + std::to_string(layers.reuse) +
                       "; the first must not be negative, the second at least 1");
  if (keep<Parts...>::how_fine == scope::request) {
    KVPOLICY_EXPECTS(layers.dense_first == 0 && layers.reuse == 1,
                     "layers can't differ under a policy that makes one choice for the whole request");
  }
  act.select.check(act, shape);
}

}  // namespace kvpolicy
