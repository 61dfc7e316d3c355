// A retrieve at work: the four verbs, over retained tokens by index.
#pragma once

#include <algorithm>
#include <span>

#include "kvpolicy/detail/choice_state.hpp"
#include "kvpolicy/triggers/every_step.hpp"

namespace kvpolicy {

/// A retrieve at work. It sees the retained tokens by index, as if there were no others.
template <class Rule>
class retrieve_state : public choice_state<Rule> {
  using base = choice_state<Rule>;
  using base::by_head, base::for_request;
  using base::choices_, base::choices_of, base::compose, base::decided, base::prompt_, base::renewals_, base::renewed_at_;
  using base::rule_, base::kept_, base::memory_, base::shape_, base::summaries_, base::trigger_;
  using typename base::memory_type;

 public:
  retrieve_state(Rule const& rule, cache_shape const& shape) : base(rule, shape), ahead_(Rule::granularity, shape) {}

  /// Makes room for a sequence of so many tokens, whose retain breaks a list up into so many ranges.
  void reserve(std::int64_t tokens, std::int64_t retained) {
    base::reserve(tokens, base::beside_selected + retained);
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
          this->decide(indices, layer, heads, indices.tokens(), prompt_index(retained, heads), {}, &prompt, exec);
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
        this->choose_due(indices, layer, heads, for_request ? tokens - 1 : tokens, prompt,
                         signals.queries.of(heads, shape_.group()), view.tokens(), exec);
      }
      if (!later) compose(kept_, layer, leader, heads, retained, tokens, prompt);
      if (chooses && rule_.next_step) compose(ahead_, layer, leader, heads, retained, tokens, prompt);
    });
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
  void extend(layer_id layer, prompt_signals const& prompt) {
    if constexpr (Rule::segment_type::ragged) {
      if (layer.value == 0) summaries_.extend(rule_.segment, prompt.first, prompt.token_ids, true);
    }
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

  layer_lists ahead_;  ///< what the next step reads, where a choice serves that
};

template <class... Parts>
retrieve_state<keep<Parts...>> start_retrieve(keep<Parts...> const& rule, cache_shape const& shape) {
  return {rule, shape};
}

}  // namespace kvpolicy
