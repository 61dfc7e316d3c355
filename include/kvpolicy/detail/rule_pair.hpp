// A retain and a retrieve at work on one sequence, and the choice that may wait for the answer's first tokens.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "kvpolicy/detail/indexed_tokens.hpp"
#include "kvpolicy/detail/keep_all_state.hpp"
#include "kvpolicy/detail/late_choice.hpp"
#include "kvpolicy/detail/repeated_state.hpp"
#include "kvpolicy/detail/retain_state.hpp"
#include "kvpolicy/detail/retrieve_state.hpp"

namespace kvpolicy {

/// Both rules of a policy. Input was checked; layers come in order.
template <class Retain, class Retrieve>
class rule_pair {
 public:
  rule_pair(Retain const& retain, Retrieve const& retrieve, cache_shape const& shape)
      : retain_requirements_(requirements_of(retain)),
        retrieve_requirements_(requirements_of(retrieve)),
        shape_(shape),
        retain_(start_retain(retain, shape)),
        retrieve_(start_retrieve(retrieve, shape)) {
    std::int64_t const window = observation_queries();
    if (retain_requirements_.after > 0)
      late_ = {std::min<std::int64_t>(retain_requirements_.after, shape.max_tokens), window, shape};
    if (late_.in_use() && window > 0) retain_requirements_.needs = retain_requirements_.needs | signals::queries;
    if (retain_requirements_.hides) everything_.resize(static_cast<std::size_t>(shape.layers));
    for (range_list& all : everything_) all.reserve(1);
    if (!retain_requirements_.keeps_all && retrieves()) retained_ = indexed_tokens(retain_requirements_.granularity, shape);
  }

  /// Makes room for a sequence of so many tokens.
  void reserve(std::int64_t tokens) {
    retain_.reserve(tokens, 0);
    retrieve_.reserve(tokens, retain_.max_ranges());
    retained_.reserve(tokens);
    late_.reserve();
  }

  signals needs() const noexcept { return retain_requirements_.needs | retrieve_requirements_.needs; }
  /// How many of a prompt's last queries the rules look at.
  std::int64_t observation_queries() const noexcept {
    return std::max(retain_requirements_.observation_queries, retrieve_requirements_.observation_queries);
  }
  /// The most tokens of a unit.
  std::int64_t unit() const noexcept { return std::max(retain_requirements_.unit, retrieve_requirements_.unit); }
  bool keeps_all() const noexcept { return retain_requirements_.keeps_all || retain_requirements_.hides; }
  /// Layers in which a step is made: 1 where one choice stands for all.
  std::int64_t step_layers() const noexcept { return one_choice() ? 1 : shape_.layers; }
  /// See rule_state.
  bool by_steps() const noexcept { return retain_.by_steps() || retrieve_.by_steps() || late_.in_use(); }

  /// Whether a layer's steps read what the retrieve chooses, and not all that is retained.
  bool chooses(layer_id layer) const noexcept { return retrieves() && !waits(layer); }
  bool waits(layer_id layer) const noexcept { return late_.waits(one_choice() ? layer_id{0} : layer); }
  bool undoes_choice(std::int64_t tokens) const noexcept { return late_.undone_by(tokens); }
  selection kept(layer_id layer) const noexcept {
    if (!chooses(layer)) return {retain_requirements_.granularity, retain_.lists(layer), shape_.kv_heads};
    return {retrieve_requirements_.granularity, retrieve_.lists(layer), shape_.kv_heads};
  }
  selection ahead(layer_id layer) const noexcept {
    if (!chooses(layer)) return kept(layer);
    return {retrieve_requirements_.granularity, retrieve_.ahead(layer), shape_.kv_heads};
  }
  selection retained(layer_id layer) const noexcept {
    if (everything_.empty()) return {retain_requirements_.granularity, retain_.lists(layer), shape_.kv_heads};
    std::size_t const of = step_layers() == 1 ? 0 : static_cast<std::size_t>(layer.value);
    return {scope::request, {&everything_[of], 1}, shape_.kv_heads};
  }
  std::int64_t always_read(layer_id layer, std::int64_t head) const {
    if (!chooses(layer) || !everything_.empty()) return all_tokens;
    return std::max(retain_.always_read(layer, head), retrieve_.always_read(layer, head));
  }

  /// How many of a head's last retained keys every step weighs, as far as that is known before tokens are removed: the open
  /// sentence, say, may be another one then.
  std::int64_t weighs(layer_id layer, std::int64_t head) const {
    std::int64_t const all =
        std::max(retain_.always_read(layer, head), chooses(layer) ? retrieve_.always_read(layer, head) : 0);
    return all == all_tokens || all == retrieve_requirements_.unit ? all : 0;
  }

  template <class View, class Exec>
  void prefill(View const& view, layer_id layer, prompt_signals const& prompt, Exec& exec) {
    know(layer, view.tokens());
    if (late_.in_use() && !one_choice()) return wait(layer, view.tokens(), prompt);
    decide(view, layer, prompt, exec);
    if (late_.in_use()) late_.begin(layer, prompt, view.tokens());
  }
  /// A layer's choice for the view's last token.
  template <class View, class Exec>
  void choose(View const& view, layer_id layer, step_signals const& step, Exec& exec) {
    std::int64_t const tokens = view.tokens();
    know(layer, tokens);
    retain_.choose(view, layer, {}, step, exec);
    if (one_choice() && layer.value != 0) return;
    if (late_.waits(layer)) {
      retrieve_.wait(layer, tokens, {.first = tokens - 1, .token_ids = {&step.token_id, 1}});
      late_.add(layer, step.queries, tokens);
    }
    if (late_.due(layer, tokens)) decide_late(view, layer, exec);
    if (chooses(layer)) retrieve_.choose(view, layer, follow_retain(layer, tokens), step, exec);
  }

  /// Tokens [first, first + their number) were decoded, and no rule has to see the steps.
  void skip(std::int64_t first, std::span<std::int32_t const> ids) {
    if (retrieves()) retrieve_.wait({0}, first + std::ssize(ids), {.first = first, .token_ids = ids});
  }
  template <class Exec>
  void observe(std::int64_t tokens, step_outcome const& outcome, Exec& exec) {
    retain_.observe(tokens, outcome, exec);
    retrieve_.observe(tokens, outcome, exec);
  }
  /// Forgets every token from `tokens` on. Decisions about earlier tokens stand.
  void truncate(std::int64_t tokens) {
    for (range_list& all : everything_) kvpolicy::truncate(all, tokens);
    retain_.truncate(tokens);
    late_.truncate(tokens, [&](layer_id layer) -> std::span<range_list const> {
      if (retain_requirements_.keeps_all) return {};
      if (!retain_requirements_.hides) return retain_.lists(layer);
      retain_.wait(layer, tokens, {});  // nothing was dropped: steps read everything again
      return {};
    });
    retrieve_.truncate(tokens);
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      if (retained_.all()) retrieve_.cut({l}, {0, shape_.kv_heads}, tokens);
      else retained_.truncate({l}, tokens, [&](head_range heads, std::int64_t left) { retrieve_.cut({l}, heads, left); });
    }
  }

  void visit_statistics(statistic_visitor const& visit) const {
    retain_.visit_statistics(visit);
    retrieve_.visit_statistics(visit);
  }
  /// Of which cache the state is, and what rules require: it is refused for others.
  template <class Archive>
  void archive_shape(Archive& a) const {
    auto const number = [](auto value) { return static_cast<std::int64_t>(value); };
    std::array<std::int64_t, 14> const here{shape_.layers,
                                            shape_.q_heads,
                                            shape_.kv_heads,
                                            shape_.head_dim,
                                            shape_.max_tokens,
                                            number(shape_.type),
                                            shape_.values_dim(),
                                            number(retain_requirements_.needs),
                                            number(retain_requirements_.granularity),
                                            number(retain_requirements_.observation_queries),
                                            number(retrieve_requirements_.needs),
                                            number(retrieve_requirements_.granularity),
                                            number(retrieve_requirements_.observation_queries),
                                            unit()};
    std::array<std::int64_t, 14> saved = here;
    a(saved);
    if constexpr (Archive::reads) {
      if (saved != here) Archive::refuse();
    }
  }
  template <class Archive>
  void archive(Archive& a) {
    a(retained_, late_, everything_);
    if constexpr (Archive::reads) {
      if (std::ssize(everything_) != (retain_requirements_.hides ? shape_.layers : 0)) Archive::refuse();
    }
    retain_.archive(a);
    retrieve_.archive(a);
  }

  auto& retain() noexcept { return retain_; }
  auto const& retain() const noexcept { return retain_; }
  auto& retrieve() noexcept { return retrieve_; }

 private:
  bool retrieves() const noexcept { return !retrieve_requirements_.keeps_all; }
  bool one_choice() const noexcept {
    return std::max(retain_requirements_.granularity, retrieve_requirements_.granularity) == scope::request;
  }

  template <class View, class Exec>
  void decide(View const& view, layer_id layer, prompt_signals const& prompt, Exec& exec) {
    retain_.prefill(view, layer, {}, prompt, exec);
    retrieve_.prefill(view, layer, follow_retain(layer, view.tokens()), prompt, exec);
  }
  /// Keeps and reads everything until the answer has as many tokens as the policy waits for.
  void wait(layer_id layer, std::int64_t tokens, prompt_signals const& prompt) {
    retain_.wait(layer, tokens, prompt);
    retrieve_.wait(layer, tokens, prompt);
    late_.begin(layer, prompt, tokens);
  }
  /// One choice for all layers comes in the step itself: it needs no more of the prompt than the keys, which are in.
  template <class View, class Exec>
  void decide_late(View const& view, layer_id layer, Exec& exec) {
    if (one_choice()) return late_.end(layer);
    prompt_signals const prompt = late_.prompt(layer, view.tokens());
    try {
      decide(view, layer, prompt, exec);
    } catch (...) {
      retain_.wait(layer, view.tokens(), prompt);  // keeps everything again, for a step that begins anew
      throw;
    }
    late_.end(layer);
  }

  /// Nothing of the first `tokens` tokens is dropped, where the retain hides.
  void know(layer_id layer, std::int64_t tokens) {
    if (everything_.empty()) return;
    range_list& all = everything_[static_cast<std::size_t>(layer.value)];
    all.clear();
    append(all, 0, tokens, reason::open);
  }
  /// Returns what the retain kept of a layer's first `tokens` tokens, by index.
  retained_tokens follow_retain(layer_id layer, std::int64_t tokens) {
    if (retained_.all()) return {};
    return retained_.follow(layer, retain_.lists(layer), retain_.revision(layer), tokens,
                            [&](layer_id of, head_range heads, std::int64_t same) { retrieve_.cut(of, heads, same); });
  }

  requirements retain_requirements_;
  requirements retrieve_requirements_;
  cache_shape shape_;
  decltype(start_retain(std::declval<Retain const&>(), cache_shape{})) retain_;
  decltype(start_retrieve(std::declval<Retrieve const&>(), cache_shape{})) retrieve_;
  indexed_tokens retained_;             ///< used if there are both rules
  std::vector<range_list> everything_;  ///< `[layers]` of all tokens, where the retain hides
  late_choice late_;                    ///< used if the policy waits for the answer's first tokens
};

}  // namespace kvpolicy
