// What a retain remembers: which tokens are still there, list by list.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/act.hpp"
#include "kvpolicy/layer_lists.hpp"

namespace kvpolicy {

/// State of a retain. Tokens that come after the prompt are kept until the trigger is due; then an evicting scorer chooses
/// again among those that are still there.
template <class Act>
class retain_state {
  static constexpr bool evicts = evicting_scorer<typename Act::score_type>;

 public:
  retain_state(Act const& act, cache_shape const& shape)
      : shape_(shape),
        summaries_(act.pool.start(shape, act.segment)),
        trigger_(act.trigger.start(shape)),
        memory_(act.score.start(shape)),
        scratch_(act.select.start(act, shape)),
        kept_(Act::how_fine, shape, ranges(act, shape)),
        next_(kept_),
        among_(kept_.slots(), undecided),
        revisions_(kept_.slots()),
        chosen_at_(kept_.slots()),
        pending_(kept_.slots(), false) {
    if (evicts) {
      // Between two evictions every new token is kept; with triggers that fire now and then, that may be any number.
      auto const most = static_cast<std::size_t>(shape.max_tokens);
      room_ = static_cast<std::int64_t>(most);
      scores_.resize(static_cast<std::size_t>(shape.kv_heads) * most);
      chosen_.resize(most);
      for (range_list& list : next_.all()) list.reserve(ranges(act, shape));
    }
    for (range_list& list : kept_.all()) list.reserve(ranges(act, shape));
  }

  std::span<range_list const> lists(layer_id layer) const noexcept { return kept_.of(layer); }
  /// What the scorer remembers.
  auto& memory() noexcept { return memory_; }
  /// Changes where tokens of the layer's lists were dropped.
  std::int64_t revision(layer_id layer) const noexcept { return revisions_[kept_.slot(layer)]; }
  /// The most ranges of a list.
  static std::size_t ranges(Act const& act, cache_shape const& shape) {
    return static_cast<std::size_t>(act.select.most_ranges(act, shape)) + 5;
  }

  /// Forgets every token from `tokens` on. What was dropped of those before stays dropped.
  void truncate(std::int64_t tokens) {
    trigger_.restart();
    memory_.truncate(tokens);
    for (std::int64_t l = 0; l < shape_.layers; ++l) summaries_.cut({l}, {0, shape_.kv_heads}, tokens);
    for (range_list& list : kept_.all()) kvpolicy::truncate(list, tokens);
    for (range_list& list : next_.all()) kvpolicy::truncate(list, tokens);
    for (std::int64_t& at : chosen_at_) at = std::min(at, tokens);
    for (std::int64_t& among : among_) among = tokens == 0 ? undecided : std::min(among, tokens);
  }

  void restart() noexcept { trigger_.restart(); }

  template <class View, class Exec>
  void prefill(Act const& act, View const& view, layer_id layer, prompt_signals const& prompt, Exec& exec) {
    if (Act::how_fine == scope::request && layer.value != 0) return;
    act.pool.update(summaries_, view, layer, {0, shape_.kv_heads}, view.tokens(), exec);
    decide(act, view, layer, prompt, {}, exec);
  }

  /// The current token is there; before it is attended to.
  template <class View, class Exec>
  void step(Act const& act, View const& view, layer_id layer, step_signals const& signals, Exec& exec) {
    if (Act::how_fine == scope::request && layer.value != 0) return;
    std::int64_t const tokens = view.tokens();
    std::size_t const at = kept_.slot(layer);
    if (among_[at] == undecided) return decide(act, view, layer, {}, signals.queries, exec);
    if (pending_[at]) {
      std::ranges::copy(next_.of(layer), kept_.of(layer).begin());
      pending_[at] = false;
      ++revisions_[at];
    }
    for (range_list& list : kept_.of(layer)) append(list, among_[at], tokens, reason::open);
    among_[at] = tokens;
    if constexpr (evicts) {
      if (!act.layers.dense(layer) && act.trigger.due(trigger_, layer, {0}, tokens - chosen_at_[at])) {
        evict(act, view, layer, signals.queries, exec);
        chosen_at_[at] = tokens;
      }
    }
  }

  template <class Exec>
  void observe(Act const& act, std::int64_t tokens, step_outcome const& outcome, Exec& exec) {
    if constexpr (contains(Act::trigger_type::needs, signals::logits)) {
      act.trigger.observe(trigger_, tokens, outcome, exec);
    }
  }

 private:
  static constexpr std::int64_t undecided = -1;

  /// What the window protects of `tokens` tokens, within what a list may keep; and that.
  std::pair<protected_tokens, std::int64_t> protection(Act const& act, layer_id layer, std::int64_t tokens) const {
    budget_request request{.shape = shape_, .layer = layer, .heads = {0, shape_.kv_heads}, .tokens = tokens, .prompt = tokens};
    request.recent = act.window.at(tokens, tokens, act.budget.of(request)).recent;
    std::int64_t const most = act.budget.of(request);
    return {clipped(act.window.at(tokens, tokens, most), tokens, most), most};
  }

  template <class View, class Exec>
  void decide(Act const& act, View const& view, layer_id layer, prompt_signals const& prompt, query_heads const& queries,
              Exec& exec) {
    std::int64_t const tokens = view.tokens();
    among_[kept_.slot(layer)] = tokens;
    chosen_at_[kept_.slot(layer)] = tokens;
    pending_[kept_.slot(layer)] = false;
    ++revisions_[kept_.slot(layer)];
    std::span const lists = kept_.of(layer);
    if (layer_id const leader = act.layers.leader(layer); leader != layer) {
      std::ranges::copy(kept_.of(leader), lists.begin());
      return;
    }
    for (range_list& list : lists) list.clear();
    if (act.layers.dense(layer)) {
      for (range_list& list : lists) append(list, 0, tokens, reason::open);
      return;
    }
    score_input<View, decltype(summaries_), decltype(memory_)> input{
        view, layer, {0, shape_.kv_heads}, tokens, tokens, summaries_, memory_, queries, &prompt};
    protected_tokens const safe = protection(act, layer, tokens).first;
    for (range_list& list : lists) append(list, 0, safe.sink_end, reason::sink);
    if constexpr (!std::same_as<decltype(memory_), no_memory>) {
      if (prompt.queries.tokens > 0 || !contains(Act::needs, signals::window_queries)) act.score.begin(input, exec);
    }
    act.select.select(act, scratch_, input, safe, exec, [&](std::int64_t list, std::int64_t begin, std::int64_t end) {
      append(lists[static_cast<std::size_t>(list)], begin, std::min(end, safe.recent_begin), reason::scored);
    });
    for (range_list& list : lists) {
      append(list, safe.recent_begin, safe.open_begin, reason::recent);
      append(list, safe.open_begin, tokens, reason::open);
    }
  }

  /// Chooses again among the tokens that are still there, the current one included.
  template <class View, class Exec>
  void evict(Act const& act, View const& view, layer_id layer, query_heads const& queries, Exec& exec) {
    if (layer_id const leader = act.layers.leader(layer); leader != layer) {
      bool const later = pending_[kept_.slot(leader)] != 0;
      std::ranges::copy(later ? next_.of(leader) : kept_.of(leader), later ? next_.of(layer).begin() : kept_.of(layer).begin());
      pending_[kept_.slot(layer)] = later;
      if (!later) ++revisions_[kept_.slot(layer)];
      return;
    }
    std::int64_t const tokens = view.tokens();
    auto const bounds = protection(act, layer, tokens);
    protected_tokens const safe = bounds.first;
    std::int64_t const most = bounds.second;
    std::span const lists = kept_.of(layer);
    score_input<View, decltype(summaries_), decltype(memory_)> input{
        view, layer, {0, shape_.kv_heads}, tokens, tokens, summaries_, memory_, queries};
    bool const by_head = Act::score_type::how_fine == scope::head;
    table<float> const scores{scores_.data(), by_head ? shape_.kv_heads : 1, room_, room_};
    act.score.score_kept(input, std::span<range_list const>(lists), scores, exec);
    for (std::int64_t h = 1; std::ssize(lists) == 1 && h < scores.rows; ++h) {
      for (std::int64_t i = 0, count = token_count(lists.front()); i < count; ++i) scores(0, i) += scores(h, i);
    }
    std::span const left = next_.of(layer);
    for (std::size_t l = 0; l < lists.size(); ++l) {
      float* const row = scores.row(static_cast<std::int64_t>(l));
      auto const is_free = [&](std::int32_t t) { return t >= safe.sink_end && t < safe.recent_begin; };
      std::int64_t count = 0;
      std::int64_t free = 0;  // tokens that are not protected; their scores move to the front
      each_token(lists[l], [&](std::int32_t t) {
        if (is_free(t)) row[free++] = row[count];
        ++count;
      });
      std::array const wanted{static_cast<std::int32_t>(std::clamp<std::int64_t>(most - (count - free), 0, free))};
      table<std::int32_t> const chosen{chosen_.data(), 1, room_, room_};
      top_k(table<float const>{row, 1, free, room_}, wanted, chosen, exec);
      std::int32_t at = 0;
      std::int32_t next = 0;
      left[l].clear();
      each_token(lists[l], [&](std::int32_t t) {
        if (t < safe.sink_end) append(left[l], t, t + 1, reason::sink);
        else if (t >= safe.open_begin) append(left[l], t, t + 1, reason::open);
        else if (t >= safe.recent_begin) append(left[l], t, t + 1, reason::recent);
        else if (next < wanted[0] && chosen(0, next) == at++) {
          append(left[l], t, t + 1, reason::scored);
          ++next;
        }
      });
      if (!Act::score_type::after_attention) std::swap(lists[l], left[l]);
    }
    pending_[kept_.slot(layer)] = Act::score_type::after_attention;
    if (!Act::score_type::after_attention) ++revisions_[kept_.slot(layer)];
  }

  template <class Visit>
  static void each_token(range_list const& list, Visit visit) {
    for (token_range const& range : list) {
      for (std::int32_t t = range.begin; t < range.end; ++t) visit(t);
    }
  }

  cache_shape shape_;
  decltype(std::declval<Act const&>().pool.start(cache_shape{}, std::declval<Act const&>().segment)) summaries_;
  decltype(std::declval<Act const&>().trigger.start(cache_shape{})) trigger_;
  decltype(std::declval<Act const&>().score.start(cache_shape{})) memory_;
  decltype(std::declval<Act const&>().select.start(std::declval<Act const&>(), cache_shape{})) scratch_;
  layer_lists kept_;
  layer_lists next_;  ///< what an eviction left, for the next step
  std::vector<std::int64_t> among_;
  std::vector<std::int64_t> revisions_;
  std::vector<std::int64_t> chosen_at_;  ///< tokens at the last choice
  std::vector<char> pending_;
  std::int64_t room_ = 0;
  std::vector<float> scores_;
  std::vector<std::int32_t> chosen_;
};

}  // namespace kvpolicy
