// What a retain remembers: which tokens are still there, list by list.
#pragma once

#include <algorithm>
#include <concepts>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/detail/eviction.hpp"
#include "kvpolicy/detail/keep_state.hpp"
#include "kvpolicy/detail/resident_tokens.hpp"

namespace kvpolicy {

/// A retain at work. Tokens that come after the prompt are kept until the trigger is due; then an evicting scorer chooses
/// again among those that are still there.
template <class Rule>
class retain_state : public keep_state<Rule> {
  using base = keep_state<Rule>;
  using base::rule_, base::kept_, base::memory_, base::scratch_, base::shape_, base::summaries_, base::trigger_;
  static constexpr bool evicts = evicting_scorer<typename Rule::score_type>;

 public:
  retain_state(Rule const& rule, cache_shape const& shape)
      : base(rule, shape), next_(kept_), slots_(kept_.slots()), eviction_(shape.kv_heads) {}

  /// Makes room for a sequence of so many tokens.
  void reserve(std::int64_t tokens, std::int64_t) {
    base::reserve(tokens, beside_selected);
    for (range_list& list : next_.all()) list.reserve(static_cast<std::size_t>(this->max_ranges()));
    if (evicts) eviction_.reserve(tokens);
  }

  /// Changes where tokens of the layer's lists were dropped.
  std::int64_t revision(layer_id layer) const noexcept { return slots_[kept_.slot(layer)].revision; }
  /// What the next step's list begins with.
  std::span<range_list const> left(layer_id layer) const noexcept {
    return slots_[kept_.slot(layer)].pending ? next_.of(layer) : kept_.of(layer);
  }
  /// What evicts weighs all that it keeps.
  std::int64_t always_read(layer_id layer, std::int64_t) const noexcept {
    return evicts && Rule::trigger_type::while_decoding && !rule_.layers.dense(layer) ? all_tokens : 0;
  }
  bool by_steps() const noexcept { return evicts && Rule::trigger_type::while_decoding; }

  /// Forgets every token from `tokens` on. What was dropped of those before stays dropped.
  void truncate(std::int64_t tokens) {
    trigger_.restart();
    memory_.truncate(tokens);
    for (std::int64_t l = 0; l < shape_.layers; ++l) summaries_.cut({l}, {0, shape_.kv_heads}, tokens);
    for (range_list& list : kept_.all()) kvpolicy::truncate(list, tokens);
    for (range_list& list : next_.all()) kvpolicy::truncate(list, tokens);
    for (slot& one : slots_) {
      one.chosen_at = std::min(one.chosen_at, tokens);
      one.prompt = std::min(one.prompt, tokens);
      one.among = tokens == 0 ? undecided : std::min(one.among, tokens);
    }
  }
  /// Nothing is kept by the index of what is retained.
  void cut(layer_id, head_range, std::int64_t) noexcept {}

  template <class View, class Exec>
  void prefill(View const& view, layer_id layer, retained_tokens const&, prompt_signals const& prompt, Exec& exec) {
    if (Rule::granularity == scope::request && layer.value != 0) {
      return expect_resident(kept_.of(layer), prompt.resident, view.tokens());
    }
    rule_.pool.update(summaries_, view, layer, {0, shape_.kv_heads}, view.tokens(), exec);
    slot_of(layer).prompt = view.tokens();
    decide(view, layer, prompt, {}, exec);
  }

  /// All that is there stays, until prefill is called.
  void wait(layer_id layer, std::int64_t tokens, prompt_signals const& prompt) {
    if (Rule::granularity == scope::request && layer.value != 0) return;
    std::span const lists = kept_.of(layer);
    if (!prompt.resident.empty()) refuse_gone(layer, tokens, prompt);
    for (std::size_t l = 0; l < lists.size(); ++l) {
      lists[l].clear();
      if (prompt.resident.empty()) append(lists[l], 0, tokens, reason::open);
      for (token_range const& range :
           prompt.resident.empty() ? range_list{} : prompt.resident[prompt.resident.size() == 1 ? 0 : l])
        append(lists[l], range.begin, range.end, reason::open);
    }
    slot_of(layer).decided(tokens);
  }

  /// The current token is there; before it is attended to.
  template <class View, class Exec>
  void choose(View const& view, layer_id layer, retained_tokens const&, step_signals const& signals, Exec& exec) {
    if (Rule::granularity == scope::request && layer.value != 0) return;
    std::int64_t const tokens = view.tokens();
    slot& mine = slot_of(layer);
    if (mine.among == undecided) return decide(view, layer, {}, signals.queries, exec);
    if (std::exchange(mine.pending, false)) {
      std::ranges::copy(next_.of(layer), kept_.of(layer).begin());
      ++mine.revision;
    }
    for (range_list& list : kept_.of(layer)) append(list, mine.among, tokens, reason::open);
    mine.among = tokens;
    if constexpr (base::memory_type::hears_steps) rule_.score.watch(input_at(view, layer, signals.queries), exec);
    if constexpr (evicts) {
      if (!rule_.layers.dense(layer) && rule_.trigger.due(trigger_, layer, {0}, tokens - mine.chosen_at)) {
        evict(view, layer, signals.queries, exec);
        mine.chosen_at = tokens;
      }
    }
  }

  template <class Archive>
  void archive(Archive& a) {
    a(kept_, next_, slots_);
    this->archive_parts(a);
  }

 private:
  static constexpr std::int64_t undecided = -1;
  /// What is known beside the lists.
  struct slot {
    std::int64_t among = undecided;  ///< tokens that the lists are of
    std::int64_t revision = 0;
    std::int64_t chosen_at = 0;  ///< tokens at the last choice
    std::int64_t prompt = 0;     ///< tokens at the last prompt's end
    bool pending = false;        ///< what an eviction left holds from the next step on

    void decided(std::int64_t tokens) noexcept { *this = {tokens, revision + 1, tokens, prompt, false}; }
    template <class Archive>
    void archive(Archive& a) {
      a(among, revision, chosen_at, prompt, pending);
    }
  };
  slot& slot_of(layer_id layer) noexcept { return slots_[kept_.slot(layer)]; }
  static constexpr std::int64_t beside_selected = 5;  ///< ranges of a list: the window's, and what it cuts in two

  template <class View, class Exec>
  void decide(View const& view, layer_id layer, prompt_signals const& prompt, query_heads const& queries, Exec& exec) {
    std::int64_t const tokens = view.tokens();
    slot_of(layer).decided(tokens);
    std::span const lists = kept_.of(layer);
    if (layer_id const leader = rule_.layers.leader(layer); leader != layer) {
      std::ranges::copy(kept_.of(leader), lists.begin());
      return expect_resident(lists, prompt.resident, tokens);
    }
    if (rule_.layers.dense(layer)) {
      for (range_list& list : lists) list.clear(), append(list, 0, tokens, reason::open);
      return expect_resident(lists, prompt.resident, tokens);
    }
    if (prompt.resident.empty()) return decide_among(view, layer, {0, shape_.kv_heads}, {}, prompt, queries, exec);
    refuse_gone(layer, tokens, prompt);
    bool const alike = resident_.alike();
    for (std::int64_t h = 0; h < (alike ? 1 : shape_.kv_heads); ++h) {
      decide_among(resident_.of(view, h), layer, alike ? head_range{0, shape_.kv_heads} : head_range{h, 1}, resident_.tokens(),
                   prompt, queries, exec);
    }
  }

  /// Throws where the policy can't do without the tokens that are gone; lists those that are there.
  void refuse_gone(layer_id layer, std::int64_t tokens, prompt_signals const& prompt) {
    std::size_t const lists = kept_.of(layer).size();
    range_list const all{{0, static_cast<std::int32_t>(tokens)}};
    if (rule_.layers.dense(layer)) return expect_resident({&all, 1}, prompt.resident, tokens);
    if (requirements_of(rule_).whole_prompts) {
      throw unsupported(
          "the policy looks at every token of the sequence when a prompt goes on, and rows of some are gone; begin with an "
          "empty sequence");
    }
    resident_.list(prompt.resident, lists, tokens);
  }

  /// Decides for these heads among the tokens of a view, which are those that are there, or all.
  template <class Among, class Exec>
  void decide_among(Among const& among, layer_id layer, head_range heads, retained_tokens const& resident,
                    prompt_signals const& prompt, query_heads const& queries, Exec& exec) {
    std::int64_t const tokens = among.tokens();
    std::span lists = kept_.of(layer);
    if (lists.size() > 1) lists = lists.subspan(static_cast<std::size_t>(heads.first), static_cast<std::size_t>(heads.count));
    auto const add = [&](std::size_t list, std::int64_t begin, std::int64_t end, reason why) {
      resident.each_range(heads.first + static_cast<std::int64_t>(list), begin, end,
                          [&](auto from, auto to) { append(lists[list], from, to, why); });
    };
    for (range_list& list : lists) list.clear();
    std::int64_t const gone = slot_of(layer).among - tokens;
    typename base::template input_type<Among> input{among,      layer,   heads,   tokens,  tokens,
                                                    summaries_, memory_, queries, &prompt, gone};
    protected_tokens const safe =
        protection(rule_, shape_, layer, {0, shape_.kv_heads}, tokens, slot_of(layer).prompt, gone).safe;
    for (std::size_t l = 0; l < lists.size(); ++l) add(l, 0, safe.sink_end, reason::sink);
    if constexpr (base::memory_type::hears_prompts) {
      auto heard = input;  // of the whole sequence, though rows may be gone
      heard.prompt_tokens = std::max(tokens, slot_of(layer).prompt);
      if (prompt.queries.tokens > 0 || !contains(Rule::needs, signals::observation_queries)) rule_.score.begin(heard, exec);
    }
    rule_.select.select(rule_, scratch_, input, safe, exec, [&](std::int64_t list, std::int64_t begin, std::int64_t end) {
      add(static_cast<std::size_t>(list), begin, std::min(end, safe.recent_begin), reason::scored);
    });
    for (std::size_t l = 0; l < lists.size(); ++l) {
      add(l, safe.recent_begin, safe.open_begin, reason::recent);
      add(l, safe.open_begin, tokens, reason::open);
    }
  }

  template <class View>
  auto input_at(View const& view, layer_id layer, query_heads const& queries) {
    return typename base::template input_type<View>{
        view, layer, {0, shape_.kv_heads}, view.tokens(), slot_of(layer).prompt, summaries_, memory_, queries};
  }
  /// Chooses again among the tokens that are still there, the current one included.
  template <class View, class Exec>
  void evict(View const& view, layer_id layer, query_heads const& queries, Exec& exec) {
    if (layer_id const leader = rule_.layers.leader(layer); leader != layer) {
      bool const later = slot_of(leader).pending;
      std::ranges::copy(left(leader), later ? next_.of(layer).begin() : kept_.of(layer).begin());
      slot_of(layer).pending = later;
      if (!later) ++slot_of(layer).revision;
      return;
    }
    std::span const lists = kept_.of(layer);
    auto const input = input_at(view, layer, queries);
    table<float> const scores = eviction_.scores(Rule::score_type::granularity == scope::head ? shape_.kv_heads : 1);
    rule_.score.score_kept(input, std::span<range_list const>(lists), scores, exec);
    for (std::int64_t h = 1; std::ssize(lists) == 1 && h < scores.rows; ++h) {
      for (std::int64_t i = 0, count = token_count(lists.front()); i < count; ++i) {
        rule_.select.merge_heads(scores(0, i), scores(h, i));
      }
    }
    std::span const left = next_.of(layer);
    for (std::size_t l = 0; l < lists.size(); ++l) {
      auto const list = static_cast<std::int64_t>(l);
      head_range const heads = lists.size() > 1 ? head_range{list, 1} : input.heads;
      auto const [safe, most] = protection(rule_, shape_, layer, heads, input.tokens, input.prompt_tokens);
      eviction_.leave(lists[l], scores.row(list), safe, most, left[l], exec);
      if (!Rule::score_type::after_attention) std::swap(lists[l], left[l]);
    }
    slot_of(layer).pending = Rule::score_type::after_attention;
    if (!Rule::score_type::after_attention) ++slot_of(layer).revision;
  }

  layer_lists next_;         ///< what an eviction left, for the next step
  std::vector<slot> slots_;  ///< of each layer, or one of the request
  eviction eviction_;
  resident_tokens resident_;  ///< of the layer that is decided, where tokens are gone
};

template <class... Parts>
retain_state<keep<Parts...>> start_retain(keep<Parts...> const& rule, cache_shape const& shape) {
  return {rule, shape};
}

}  // namespace kvpolicy
