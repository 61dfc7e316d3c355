// What a retrieve remembers: summaries of the tokens that are there, and which units were chosen, list by list.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/act.hpp"
#include "kvpolicy/layer_lists.hpp"
#include "kvpolicy/retained_tokens.hpp"

namespace kvpolicy {

/// State of a retrieve. It sees the retained tokens by rank, as if there were no others.
template <class Act>
class retrieve_state {
  static constexpr bool for_request = Act::how_fine == scope::request;
  static constexpr bool by_head = Act::how_fine == scope::head;

 public:
  retrieve_state(Act const& act, cache_shape const& shape)
      : summaries(act.pool.start(shape, act.segment)),
        trigger(act.trigger.start(shape)),
        shape_(shape),
        memory_(act.score.start(shape)),
        scratch_(act.select.start(act, shape)),
        kept_(Act::how_fine, shape, 0),
        choices_(kept_.all().size()) {
    auto const most = static_cast<std::size_t>(act.select.most_ranges(act, shape)) + 1;
    for (choice& c : choices_) c.ranges.reserve(most);
    // One range each for sinks, recent and open; retained tokens may break any of them up.
    for (range_list& list : kept_.all()) list.reserve(most + 5);
  }

  /// Room for lists that a retain breaks up into as many ranges.
  void reserve(std::size_t ranges) {
    for (range_list& list : kept_.all()) list.reserve(ranges + list.capacity());
  }
  std::span<range_list const> lists(layer_id layer) const noexcept { return kept_.of(layer); }

  /// What the scorer remembers.
  auto& memory() noexcept { return memory_; }
  /// Calls visit(begin, end) for each chosen range of a layer's list, ascending, by rank.
  template <class Visit>
  void each_chosen(layer_id layer, std::size_t list, Visit visit) noexcept {
    for (rank_range const& range : choices_of(layer)[list].ranges) visit(range.begin, range.end);
  }

  void restart() noexcept { trigger.restart(); }

  /// Forgets what lies behind the first `tokens` tokens, of a layer's heads, counted by rank.
  void cut(layer_id layer, head_range heads, std::int64_t tokens) {
    summaries.cut(layer, heads, tokens);
    memory_.cut(layer, heads, tokens);
    if (tokens > 0) return;
    for (choice& c : choices_of(layer)) c.decided = false;
  }
  void truncate(std::int64_t tokens) {
    memory_.truncate(tokens);
    for (choice& c : choices_) c.at = std::min(c.at, tokens);
    if constexpr (Act::segment_type::ragged) summaries.truncate(tokens);
  }

  template <class View, class Exec>
  void prefill(Act const& act, View const& view, layer_id layer, retained_tokens const& there, prompt_signals const& prompt,
               Exec& exec) {
    prompt_ = view.tokens();
    for (choice& c : choices_of(layer)) {
      c.decided = false;
      c.at = prompt_;
    }
    if constexpr (Act::segment_type::ragged) {
      if (layer.value == 0) summaries.extend(act.segment, prompt.first, prompt.token_ids);
    }
    each_batch(view, there, [&](auto const& ranks, head_range heads) {
      update(act, ranks, layer, heads, ranks.tokens(), exec);
      score_input<std::decay_t<decltype(ranks)>, decltype(summaries), memory_type> input{
          ranks, layer, heads, ranks.tokens(), prompt_, summaries, memory_, {}, &prompt};
      if constexpr (!std::same_as<memory_type, no_memory>) act.score.begin(input, exec);
      if constexpr (contains(Act::trigger_type::needs, signals::queries)) {
        act.trigger.begin(trigger, input, prompt_rank(there, heads), exec);
      }
      if constexpr (Act::score_type::of == scored::tokens && contains(Act::needs, signals::window_queries)) {
        if (act.layers.leader(layer) == layer && !act.layers.dense(layer)) {
          decide(act, ranks, layer, heads, ranks.tokens(), prompt_rank(there, heads), {}, &prompt, exec);
        }
      }
    });
  }

  /// Chooses for the view's last token.
  template <class View, class Exec>
  void choose(Act const& act, View const& view, layer_id layer, retained_tokens const& there, step_signals const& signals,
              Exec& exec) {
    if (for_request && layer.value != 0) return;
    if constexpr (Act::segment_type::ragged) {
      if (layer.value == 0) summaries.extend(act.segment, view.tokens() - 1, {&signals.token_id, 1});
    }
    layer_id const leader = act.layers.leader(layer);
    bool const chooses = !act.layers.dense(layer) && leader == layer;
    // All heads look before any of them chooses: one head's trigger may be another's query.
    each_batch(view, there, [&](auto const& ranks, head_range heads) {
      if (!chooses) return;
      if constexpr (for_request) {
        for (std::int64_t l = 0; l < shape_.layers; ++l) update(act, ranks, {l}, heads, ranks.tokens() - 1, exec);
      } else {
        update(act, ranks, layer, heads, ranks.tokens(), exec);
      }
      watch(act, ranks, layer, heads, signals.queries.of(heads, shape_.group()), prompt_rank(there, heads), exec);
    });
    each_batch(view, there, [&](auto const& ranks, head_range heads) {
      std::int64_t const tokens = ranks.tokens();
      std::int64_t const prompt = prompt_rank(there, heads);
      if (chooses) {
        choose_due(act, ranks, layer, heads, for_request ? tokens - 1 : tokens, prompt,
                   signals.queries.of(heads, shape_.group()), view.tokens(), exec);
      }
      compose(act, layer, leader, heads, there, tokens, prompt);
    });
  }

  template <class Exec>
  void observe(Act const& act, std::int64_t tokens, step_outcome const& outcome, Exec& exec) {
    if constexpr (contains(Act::trigger_type::needs, signals::logits)) act.trigger.observe(trigger, tokens, outcome, exec);
  }

  void forget_choice() noexcept {
    for (choice& c : choices_) c.decided = false;
  }

  decltype(std::declval<Act const&>().pool.start(cache_shape{}, std::declval<Act const&>().segment)) summaries;
  decltype(std::declval<Act const&>().trigger.start(cache_shape{})) trigger;

 private:
  using memory_type = decltype(std::declval<Act const&>().score.start(cache_shape{}));
  struct rank_range {
    std::int32_t begin;
    std::int32_t end;
  };
  struct choice {
    std::vector<rank_range> ranges;
    bool decided = false;
    std::int64_t at = 0;  ///< tokens at that time
  };

  std::span<choice> choices_of(layer_id layer) noexcept {
    std::size_t const lists = kept_.of(layer).size();
    return std::span(choices_).subspan(kept_.slot(layer) * lists, lists);
  }

  /// Heads that see the same tokens go together.
  template <class View, class Work>
  void each_batch(View const& view, retained_tokens const& there, Work work) {
    each_group(view, there, shape_.kv_heads, by_head, work);
  }

  /// How many of the retained tokens are the prompt's.
  std::int64_t prompt_rank(retained_tokens const& there, head_range heads) const noexcept {
    return there.rank_of(heads.first, prompt_);
  }

  template <class Ranks, class Exec>
  void update(Act const& act, Ranks const& ranks, layer_id layer, head_range heads, std::int64_t tokens, Exec& exec) {
    act.pool.update(summaries, ranks, layer, heads, tokens, exec);
  }

  template <class Ranks, class Exec>
  void watch(Act const& act, Ranks const& ranks, layer_id layer, head_range heads, query_heads const& queries,
             std::int64_t prompt, Exec& exec) {
    score_input<Ranks, decltype(summaries), memory_type> input{ranks,   layer,     heads,   ranks.tokens(),
                                                               prompt_, summaries, memory_, queries};
    if constexpr (!std::same_as<memory_type, no_memory>) act.score.watch(input, exec);
    if constexpr (contains(Act::trigger_type::needs, signals::queries)) act.trigger.watch(trigger, input, prompt, exec);
  }

  /// Chooses anew where that is due: for all heads at once, or head by head.
  template <class Ranks, class Exec>
  void choose_due(Act const& act, Ranks const& ranks, layer_id layer, head_range heads, std::int64_t known, std::int64_t prompt,
                  query_heads const& queries, std::int64_t now, Exec& exec) {
    std::span const choices = choices_of(layer);
    auto const due = [&](std::int64_t h) {
      choice const& c = choices[by_head ? static_cast<std::size_t>(h) : 0];
      return !c.decided || act.trigger.due(trigger, layer, {h}, now - c.at);
    };
    std::int64_t wanted = 0;
    for (std::int64_t h = heads.first; h < heads.first + heads.count; ++h) wanted += due(h) ? 1 : 0;
    if (wanted == 0) return;
    if (!by_head || wanted == heads.count) {
      decide(act, ranks, layer, heads, known, prompt, queries, nullptr, exec);
      if (!by_head) choices[0].at = now;
      for (std::int64_t h = heads.first; by_head && h < heads.first + heads.count; ++h)
        choices[static_cast<std::size_t>(h)].at = now;
      return;
    }
    for (std::int64_t h = heads.first; h < heads.first + heads.count; ++h) {
      if (!due(h)) continue;
      decide(act, ranks, layer, {h, 1}, known, prompt, queries.of({h - heads.first, 1}, shape_.group()), nullptr, exec);
      choices[static_cast<std::size_t>(h)].at = now;
    }
  }

  /// Where the selector throws before it has emitted anything, the choice that was made before stands.
  template <class Ranks, class Exec>
  void decide(Act const& act, Ranks const& ranks, layer_id layer, head_range heads, std::int64_t tokens, std::int64_t prompt,
              query_heads const& queries, prompt_signals const* at_prompt, Exec& exec) {
    std::span const choices = choices_of(layer);
    std::size_t const first = by_head ? static_cast<std::size_t>(heads.first) : 0;
    std::size_t const count = by_head ? static_cast<std::size_t>(heads.count) : 1;
    bool begun = false;
    auto const begin_anew = [&] {
      if (begun) return;
      begun = true;
      for (choice& c : choices.subspan(first, count)) {
        c.ranges.clear();
        c.decided = false;
      }
    };
    score_input<Ranks, decltype(summaries), memory_type> input{ranks,     layer,   heads,   tokens,   prompt_,
                                                               summaries, memory_, queries, at_prompt};
    protected_tokens const safe = act.window.at(tokens, prompt);
    auto const add = [&](std::size_t list, std::int64_t begin, std::int64_t end) {
      std::vector<rank_range>& ranges = choices[list].ranges;
      if (!ranges.empty() && ranges.back().end == begin) ranges.back().end = static_cast<std::int32_t>(end);
      else ranges.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
    };
    act.select.select(act, scratch_, input, safe, exec, [&](std::int64_t list, std::int64_t begin, std::int64_t end) {
      begin_anew();
      add(first + static_cast<std::size_t>(list), begin, end);
    });
    begin_anew();
    for (choice& c : choices.subspan(first, count)) c.decided = true;
    for (std::size_t list = first; at_prompt != nullptr && list < first + count;
         ++list) {  // the window moves on, the choice stands
      add(list, std::max<std::int64_t>(safe.recent_begin, choices[list].ranges.empty() ? 0 : choices[list].ranges.back().end),
          tokens);
    }
  }

  /// Lists from the chosen units and what is protected now.
  void compose(Act const& act, layer_id layer, layer_id leader, head_range heads, retained_tokens const& there,
               std::int64_t tokens, std::int64_t prompt) {
    protected_tokens safe = act.window.at(tokens, prompt);
    std::span const lists = kept_.of(layer);
    std::span const choices = choices_of(leader);
    for (std::size_t l = by_head ? static_cast<std::size_t>(heads.first) : 0,
                     last = by_head ? l + static_cast<std::size_t>(heads.count) : 1;
         l < last; ++l) {
      if constexpr (Act::segment_type::ragged) {
        std::int64_t const open = there.rank_of(static_cast<std::int64_t>(l), summaries.open_begin());
        safe = act.window.at(tokens, prompt);
        safe.recent_begin = std::max(safe.sink_end, std::min(safe.recent_begin, open));
        safe.open_begin = std::max(safe.recent_begin, open);
      }
      range_list& list = lists[l];
      list.clear();
      auto const add = [&](std::int64_t begin, std::int64_t end, reason why) {
        if (there.all()) return append(list, begin, end, why);
        std::int32_t const* const ids = there.of(static_cast<std::int64_t>(l));
        for (std::int64_t r = begin; r < end; ++r) append(list, ids[r], ids[r] + 1, why);
      };
      if (act.layers.dense(layer)) {
        add(0, tokens, reason::open);
        continue;
      }
      add(0, safe.sink_end, reason::sink);
      for (rank_range const& range : choices[l].ranges) {
        add(std::max<std::int64_t>(range.begin, safe.sink_end), std::min<std::int64_t>(range.end, safe.recent_begin),
            reason::scored);
      }
      add(safe.recent_begin, safe.open_begin, reason::recent);
      add(safe.open_begin, tokens, reason::open);
    }
  }

  cache_shape shape_;
  memory_type memory_;
  decltype(std::declval<Act const&>().select.start(std::declval<Act const&>(), cache_shape{})) scratch_;
  layer_lists kept_;
  std::vector<choice> choices_;
  std::int64_t prompt_ = 0;
};

}  // namespace kvpolicy
