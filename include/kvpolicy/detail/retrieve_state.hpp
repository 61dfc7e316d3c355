// A retrieve at work: summaries of the retained tokens, and which units were chosen, list by list.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/detail/keep_state.hpp"
#include "kvpolicy/triggers/every_step.hpp"

namespace kvpolicy {

/// A retrieve at work. It sees the retained tokens by index, as if there were no others.
template <class Rule>
class retrieve_state : public keep_state<Rule> {
  using base = keep_state<Rule>;
  using base::rule_, base::kept_, base::memory_, base::scratch_, base::shape_, base::summaries_, base::trigger_;
  using typename base::memory_type;
  static constexpr bool for_request = Rule::granularity == scope::request;
  static constexpr bool by_head = Rule::granularity == scope::head;

 public:
  retrieve_state(Rule const& rule, cache_shape const& shape)
      : base(rule, shape), choices_(kept_.all().size()), ahead_(Rule::granularity, shape) {}

  /// Makes room for a sequence of so many tokens, whose retain breaks a list up into so many ranges.
  void reserve(std::int64_t tokens, std::int64_t retained) {
    base::reserve(tokens, beside_selected + retained);
    for (choice& c : choices_) c.ranges.reserve(static_cast<std::size_t>(this->max_ranges()));
    if (rule_.next_step) {
      for (range_list& list : ahead_.all()) list.reserve(static_cast<std::size_t>(this->max_ranges()));
    }
    if (for_request) renewed_at_.reserve(static_cast<std::size_t>(tokens));
  }
  std::int64_t revision(layer_id) const noexcept { return 0; }
  std::span<range_list const> ahead(layer_id layer) const noexcept {
    return rule_.next_step && rule_.layers.leader(layer) == layer ? ahead_.of(layer) : kept_.of(layer);
  }
  /// Units are scored by their summaries once they are full, tokens by their keys.
  std::int64_t always_read(layer_id layer, std::int64_t head) const {
    if (rule_.layers.reads_all(layer)) return all_tokens;
    if (rule_.layers.leader(layer) != layer) return 0;
    bool each = Rule::score_type::of == scored::tokens;
    if constexpr (requires { Rule::select_type::reads_keys; }) each = each || Rule::select_type::reads_keys;
    auto const at = static_cast<std::size_t>(layer.value * shape_.kv_heads + head);
    if constexpr (requires { rule_.score.reads_keys(at, prompt_, shape_.kv_heads); }) {
      each = rule_.score.reads_keys(at, prompt_, shape_.kv_heads);
    }
    if constexpr (requires { rule_.trigger.reads_keys(at, prompt_); }) each = each || rule_.trigger.reads_keys(at, prompt_);
    if (each) return all_tokens;
    if constexpr (Rule::segment_type::ragged) return summaries_.tokens - summaries_.open_begin();
    else return rule_.segment.unit_size();
  }

  bool by_steps() const noexcept {
    using trigger = typename Rule::trigger_type;
    return (trigger::while_decoding && !std::same_as<trigger, triggers::every_step>) || memory_type::hears_steps ||
           rule_.next_step;
  }

  /// Calls visit(begin, end) for each chosen range of a layer's list, ascending, by index.
  template <class Visit>
  void each_chosen(layer_id layer, std::size_t list, Visit visit) noexcept {
    for (auto const& range : choices_of(layer)[list].ranges) visit(range.begin, range.end);
  }

  /// Forgets what lies behind the first `tokens` tokens, of a layer's heads, counted by index.
  void cut(layer_id layer, head_range heads, std::int64_t tokens) {
    summaries_.cut(layer, heads, tokens);
    memory_.cut(layer, heads, tokens);
    if (tokens > 0) return;
    for (choice& c : choices_of(layer)) c.decided = false;
  }
  void truncate(std::int64_t tokens) {
    trigger_.restart();
    memory_.truncate(tokens);
    for (choice& c : choices_) c.at = std::min(c.at, tokens);
    if constexpr (Rule::segment_type::ragged) summaries_.truncate(tokens);
  }

  template <class View, class Exec>
  void prefill(View const& view, layer_id layer, retained_tokens const& retained, prompt_signals const& prompt, Exec& exec) {
    prompt_ = view.tokens();
    for (choice& c : choices_of(layer)) {
      if (for_request && layer.value != 0) break;  // all layers' one choice may have been made since layer 0's prompt
      c.decided = false;
      c.at = prompt_;
    }
    extend(layer, prompt);
    if constexpr (requires { rule_.pool.begin(summaries_, prompt); }) rule_.pool.begin(summaries_, prompt);
    each_group(view, retained, shape_.kv_heads, by_head, [&](auto const& indices, head_range heads) {
      rule_.pool.update(summaries_, indices, layer, heads, indices.tokens(), exec);
      typename base::template input_type<std::decay_t<decltype(indices)>> input{
          indices, layer, heads, indices.tokens(), prompt_, summaries_, memory_, {}, &prompt};
      if constexpr (memory_type::hears_prompts) rule_.score.begin(input, exec);
      if constexpr (contains(Rule::trigger_type::needs, signals::queries)) {
        rule_.trigger.begin(trigger_, input, prompt_index(retained, heads), exec);
      }
      if constexpr (Rule::score_type::of == scored::tokens && contains(Rule::needs, signals::observation_queries)) {
        if (rule_.layers.leader(layer) == layer && !rule_.layers.dense(layer)) {
          decide(indices, layer, heads, indices.tokens(), prompt_index(retained, heads), {}, &prompt, exec);
        }
      }
    });
  }

  /// A prompt brings its token ids once, though the choice comes later.
  void wait(layer_id layer, std::int64_t, prompt_signals const& prompt) { extend(layer, prompt); }

  /// Chooses for the view's last token.
  template <class View, class Exec>
  void choose(View const& view, layer_id layer, retained_tokens const& retained, step_signals const& signals, Exec& exec) {
    if (for_request && layer.value != 0) return;
    if constexpr (Rule::segment_type::ragged) {
      if (layer.value == 0) summaries_.extend(rule_.segment, view.tokens() - 1, {&signals.token_id, 1});
    }
    layer_id const leader = rule_.layers.leader(layer);
    bool const chooses = !rule_.layers.dense(layer) && leader == layer;
    // All heads look before any of them chooses: one head's trigger may be another's query.
    each_group(view, retained, shape_.kv_heads, by_head, [&](auto const& indices, head_range heads) {
      if (!chooses) return;
      if constexpr (for_request) {
        for (std::int64_t l = 0; l < shape_.layers; ++l)
          rule_.pool.update(summaries_, indices, {l}, heads, indices.tokens() - 1, exec);
      } else {
        rule_.pool.update(summaries_, indices, layer, heads, indices.tokens(), exec);
      }
      watch(indices, layer, heads, signals.queries.of(heads, shape_.group()), prompt_index(retained, heads), exec);
    });
    each_group(view, retained, shape_.kv_heads, by_head, [&](auto const& indices, head_range heads) {
      std::int64_t const tokens = indices.tokens();
      std::int64_t const prompt = prompt_index(retained, heads);
      bool const later = chooses && rule_.next_step && decided(layer, heads);
      if (later) compose(kept_, layer, leader, heads, retained, tokens, prompt);
      if (chooses) {
        choose_due(indices, layer, heads, for_request ? tokens - 1 : tokens, prompt, signals.queries.of(heads, shape_.group()),
                   view.tokens(), exec);
      }
      if (!later) compose(kept_, layer, leader, heads, retained, tokens, prompt);
      if (chooses && rule_.next_step) compose(ahead_, layer, leader, heads, retained, tokens, prompt);
    });
  }

  /// The next step chooses anew.
  void forget_choice() noexcept {
    for (choice& c : choices_) c.decided = false;
  }

  void visit_statistics(statistic_visitor const& visit) const {
    visit(statistic::count, "renewals", static_cast<double>(renewals_));
    for (std::int64_t const tokens : renewed_at_) visit(statistic::series, "renewed_at", static_cast<double>(tokens));
    if constexpr (requires { rule_.budget.visit_statistics(shape_, prompt_, visit); }) {
      if (prompt_ > 0) rule_.budget.visit_statistics(shape_, prompt_, visit);
    }
    base::visit_statistics(visit);
  }

  template <class Archive>
  void archive(Archive& a) {
    a(kept_, choices_, prompt_, renewals_, renewed_at_);
    this->archive_parts(a);
  }

 private:
  /// Ranges of a list, one more each for sinks, recent and open; retained tokens may break any of them up.
  static constexpr std::int64_t beside_selected = 6;

  std::span<choice> choices_of(layer_id layer) noexcept {
    std::size_t const lists = kept_.of(layer).size();
    return std::span(choices_).subspan(kept_.slot(layer) * lists, lists);
  }

  void extend(layer_id layer, prompt_signals const& prompt) {
    if constexpr (Rule::segment_type::ragged) {
      if (layer.value == 0) summaries_.extend(rule_.segment, prompt.first, prompt.token_ids, true);
    }
  }

  /// Whether the heads have a choice.
  bool decided(layer_id layer, head_range heads) noexcept {
    std::span const all = choices_of(layer);
    return std::ranges::all_of(
        by_head ? all.subspan(static_cast<std::size_t>(heads.first), static_cast<std::size_t>(heads.count)) : all,
        &choice::decided);
  }

  /// How many of the retained tokens are the prompt's.
  std::int64_t prompt_index(retained_tokens const& retained, head_range heads) const noexcept {
    return retained.index_of(heads.first, prompt_);
  }

  template <class Ranks, class Exec>
  void watch(Ranks const& indices, layer_id layer, head_range heads, query_heads const& queries, std::int64_t prompt,
             Exec& exec) {
    typename base::template input_type<Ranks> input{indices, layer,      heads,   indices.tokens(),
                                                    prompt_, summaries_, memory_, queries};
    if constexpr (memory_type::hears_steps) rule_.score.watch(input, exec);
    if constexpr (contains(Rule::trigger_type::needs, signals::queries)) rule_.trigger.watch(trigger_, input, prompt, exec);
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
  layer_lists ahead_;  ///< what the next step reads, where a choice serves that
  std::int64_t prompt_ = 0;
  std::int64_t renewals_ = 0;             ///< choices of lists that had one
  std::vector<std::int64_t> renewed_at_;  ///< tokens of the sequence then, where a request has one list
};

template <class... Parts>
retrieve_state<keep<Parts...>> start_retrieve(keep<Parts...> const& rule, cache_shape const& shape) {
  return {rule, shape};
}

}  // namespace kvpolicy
