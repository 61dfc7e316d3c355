// Which units of the retained tokens a retrieve has chosen, list by list, and when.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/detail/keep_state.hpp"

namespace kvpolicy {

/// The choices of a retrieve at work. Tokens are counted by index among those that are retained.
template <class Rule>
class choice_state : public keep_state<Rule> {
  using base = keep_state<Rule>;

 public:
  /// Calls visit(begin, end) for each chosen range of a layer's list, ascending, by index.
  template <class Visit>
  void each_chosen(layer_id layer, std::size_t list, Visit visit) noexcept {
    for (auto const& range : choices_of(layer)[list].ranges) visit(range.begin, range.end);
  }

 protected:
  using base::kept_, base::memory_, base::rule_, base::scratch_, base::shape_, base::summaries_, base::trigger_;
  static constexpr bool for_request = Rule::granularity == scope::request;
  static constexpr bool by_head = Rule::granularity == scope::head;
  /// Ranges of a list, one more each for sinks, recent and open; retained tokens may break any of them up.
  static constexpr std::int64_t beside_selected = 6;

  choice_state(Rule const& rule, cache_shape const& shape) : base(rule, shape), choices_(kept_.all().size()) {}

  std::span<choice> choices_of(layer_id layer) noexcept {
    std::size_t const lists = kept_.of(layer).size();
    return std::span(choices_).subspan(kept_.slot(layer) * lists, lists);
  }

  /// Whether the heads have a choice.
  bool decided(layer_id layer, head_range heads) noexcept {
    std::span const all = choices_of(layer);
    return std::ranges::all_of(
        by_head ? all.subspan(static_cast<std::size_t>(heads.first), static_cast<std::size_t>(heads.count)) : all,
        &choice::decided);
  }

  /// Chooses anew where that is due: for all heads at once, or head by head.
  template <class Ranks, class Exec>
  void choose_due(Ranks const& indices, layer_id layer, head_range heads, std::int64_t known, std::int64_t prompt,
                  query_heads const& queries, std::int64_t now, Exec& exec) {
    std::span const choices = choices_of(layer);
    auto const due = [&](std::int64_t h) {
      choice const& c = choices[by_head ? static_cast<std::size_t>(h) : 0];
      return !c.decided || rule_.trigger.due(trigger_, layer, {h}, now - c.at);
    };
    std::int64_t wanted = 0;
    for (std::int64_t h = heads.first; h < heads.first + heads.count; ++h) wanted += due(h) ? 1 : 0;
    if (wanted == 0) return;
    for (std::int64_t h = heads.first; h < (by_head ? heads.first + heads.count : heads.first + 1); ++h) {
      renewals_ += due(h) && choices[by_head ? static_cast<std::size_t>(h) : 0].decided ? 1 : 0;
    }
    if (for_request && choices[0].decided) {
      while (!renewed_at_.empty() && renewed_at_.back() >= now) renewed_at_.pop_back();  // of a tail that was removed
      renewed_at_.push_back(now);
    }
    bool const all = !by_head || wanted == heads.count;
    if (all) decide(indices, layer, heads, known, prompt, queries, nullptr, exec);
    if constexpr (by_head) {
      for (std::int64_t h = heads.first; h < heads.first + heads.count; ++h) {
        if (!all && !due(h)) continue;
        if (!all)
          decide(indices, layer, {h, 1}, known, prompt, queries.of({h - heads.first, 1}, shape_.group()), nullptr, exec);
        choices[static_cast<std::size_t>(h)].at = now;
      }
    } else {
      choices[0].at = now;
    }
  }

  /// Where the selector throws before it has emitted anything, the choice that was made before stands.
  template <class Ranks, class Exec>
  void decide(Ranks const& indices, layer_id layer, head_range heads, std::int64_t tokens, std::int64_t prompt,
              query_heads const& queries, prompt_signals const* at_prompt, Exec& exec) {
    std::span const choices = choices_of(layer);
    std::size_t const first = by_head ? static_cast<std::size_t>(heads.first) : 0;
    std::size_t const count = by_head ? static_cast<std::size_t>(heads.count) : 1;
    bool begun = false;
    auto const begin_anew = [&] {
      if (begun) return;
      begun = true;
      for (choice& c : choices.subspan(first, count)) c.clear();
    };
    typename base::template input_type<Ranks> input{indices,    layer,   heads,   tokens,   prompt_,
                                                    summaries_, memory_, queries, at_prompt};
    protected_tokens const safe = rule_.window.at(tokens, prompt);
    rule_.select.select(rule_, scratch_, input, safe, exec, [&](std::int64_t list, std::int64_t begin, std::int64_t end) {
      begin_anew();
      choices[first + static_cast<std::size_t>(list)].add(begin, end);
    });
    begin_anew();
    for (choice& c : choices.subspan(first, count)) {
      c.decided = true;
      c.since = safe.recent_begin;
    }
  }

  bool slides() const noexcept {
    if constexpr (requires { rule_.window.slides; }) return rule_.window.slides;
    else return false;
  }
  /// Lists from the chosen units and what is protected now.
  void compose(layer_lists& into, layer_id layer, layer_id leader, head_range heads, retained_tokens const& retained,
               std::int64_t tokens, std::int64_t prompt) {
    protected_tokens safe = rule_.window.at(tokens, prompt);
    std::span const lists = into.of(layer);
    std::span const choices = choices_of(leader);
    for (std::size_t l = by_head ? static_cast<std::size_t>(heads.first) : 0,
                     last = by_head ? l + static_cast<std::size_t>(heads.count) : 1;
         l < last; ++l) {
      if constexpr (Rule::segment_type::ragged) {
        std::int64_t const open = retained.index_of(static_cast<std::int64_t>(l), summaries_.open_begin());
        safe = rule_.window.at(tokens, prompt);
        safe.recent_begin = std::max(safe.sink_end, std::min(safe.recent_begin, open));
        safe.open_begin = std::max(safe.recent_begin, open);
      }
      range_list& list = lists[l];
      list.clear();
      auto const add = [&](std::int64_t begin, std::int64_t end, reason why) {
        retained.each_range(static_cast<std::int64_t>(l), begin, end, [&](auto from, auto to) { append(list, from, to, why); });
      };
      if (rule_.layers.reads_all(layer)) add(0, tokens, reason::open);
      else choices[l].compose(safe, tokens, slides(), add);
    }
  }

  std::vector<choice> choices_;
  std::int64_t prompt_ = 0;
  std::int64_t renewals_ = 0;             ///< choices of lists that had one
  std::vector<std::int64_t> renewed_at_;  ///< tokens of the sequence then, where a request has one list
};

}  // namespace kvpolicy
