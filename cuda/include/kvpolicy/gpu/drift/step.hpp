// Followers' tokens fetched anew when their leader's attention drifts (HeteroCache), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "kvpolicy/gpu/base/top_k.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/drift/looks.hpp"
#include "kvpolicy/gpu/step/host_prompts.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/drift.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::gpu::detail {

/// A budget of heads that watch, and of heads that follow another's choice.
template <class Budget>
concept leads_heads = requires(Budget const& budget, std::int64_t n, std::vector<std::int64_t> lengths) {
  { budget.leader(std::size_t{}, n, n) } -> std::convertible_to<std::int64_t>;
  { budget.watches(std::size_t{}, n) } -> std::convertible_to<bool>;
  budget.lengths(n, lengths);
  budget.nobody;
};

/// Heads that follow others, and read on until those drift (HeteroCache).
template <class Rule, class D>
concept follows_heads = std::same_as<typename Rule::trigger_type, triggers::drift> &&
    std::same_as<typename Rule::select_type, selectors::top> && std::same_as<typename Rule::window_type, windows::tokens> &&
    leads_heads<typename Rule::budget_type> && scores_on_device<Rule, D>;

/// A prompt's end is decided on the host, as the verb does; from then on heads look, and fetch, on the device.
template <class Rule, owning_device D>
  requires follows_heads<Rule, D>
class decode_retrieve<Rule, D> {
  enum number { prompt_tokens, seen, rows };
  /// Rows of integers of each layer, `[sequences, kv_heads]`.
  enum of_layer_row { base, leader, source, length, layer_rows };

 public:
  static constexpr bool by_index = true;
  static constexpr bool can_wait = true;

  explicit decode_retrieve(decode_context<Rule, D> const& context)
      : context_(context),
        window_(context.rule.trigger.window),
        unit_scores_(context, window_),
        prompts_({keep_all{}, context.rule}, context.shape, context.sequences),
        numbers_(context.numbers(rows)),
        of_layers_(context.template by_layer<std::int32_t>(layer_rows * context.heads())),
        of_step_(context.template array<std::int32_t>(3 * context.heads())),
        queries_(context.template by_layer<float>(context.heads() * window_ * context.shape.group() * context.shape.head_dim)),
        baseline_(context.template by_layer<std::int32_t>(context.heads() * context.shape.max_tokens)),
        chosen_(*context.device, context.shape.layers, context.sequences, context.shape.kv_heads, context.shape.max_tokens),
        sets_(context.template array<std::int32_t>(context.heads() * window_ * context.shape.max_tokens)),
        most_(static_cast<std::size_t>(context.shape.layers * context.heads())) {
    KVPOLICY_EXPECTS(context.rule.window.generated && context.rule.window.sinks == 0,
                     "heads read their own tokens and what was generated; a window with sinks has no kernel");
    std::vector<std::int32_t> const none(static_cast<std::size_t>(context.shape.layers * layer_rows * context.heads()));
    context.device->upload(of_layers_.all(), none.data(), std::ssize(none));
  }

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    Rule const& rule = context_.rule;
    auto& state = prompts_.prefill(piece, exec);
    std::int64_t const tokens = piece.view.tokens();
    std::int64_t const kv_heads = context_.shape.kv_heads;
    std::vector<std::int64_t> lengths(rule.budget.heads.size());
    rule.budget.lengths(tokens, lengths);
    std::vector<range_list> lists(static_cast<std::size_t>(kv_heads));
    std::array<std::vector<std::int32_t>, layer_rows> of_heads{};
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      auto const head = static_cast<std::size_t>(piece.layer.value * kv_heads + h);
      std::int64_t const nth = piece.sequence * kv_heads + h;
      std::int64_t const followed = rule.budget.leader(head, tokens, kv_heads);
      bool const follows = followed != rule.budget.nobody;
      std::vector<std::int32_t> const& set = state.retrieve().trigger().baseline[head];
      bool const looks = rule.budget.watches(head, tokens);
      auto const put = [&](of_layer_row which, std::int64_t value) {
        of_heads[which].push_back(static_cast<std::int32_t>(value));
      };
      put(base, looks ? std::ssize(set) : 0);
      put(leader, followed);
      put(source, rule.score.own || !follows ? h : followed);
      put(length, lengths[head]);
      bool const all = looks || (rule.score.own && follows);  // whose keys are read at a look
      if (looks) {
        context_.device->upload(part_of(baseline_.of(piece.layer), nth * context_.shape.max_tokens, context_.shape.max_tokens),
                                set.data(), std::ssize(set));
      }
      range_list& list = lists[static_cast<std::size_t>(h)];
      if (follows || piece.retained.empty()) {
        state.retrieve().each_chosen(piece.layer, static_cast<std::size_t>(h),
                                     [&](std::int64_t begin, std::int64_t end) { append(list, begin, end, reason::scored); });
        append(list, rule.window.at(tokens, tokens).recent_begin, tokens, reason::recent);
      } else {
        list = list_of(piece.retained, h);
      }
      most_[static_cast<std::size_t>(piece.layer.value * context_.heads() + nth)] =
          all ? tokens : std::max(token_count(list), follows ? lengths[head] : 0);
    }
    for (int const which : {base, leader, source, length}) {
      context_.device->upload(part_of(row(piece.layer, static_cast<of_layer_row>(which)), piece.sequence * kv_heads, kv_heads),
                              of_heads[static_cast<std::size_t>(which)].data(), kv_heads);
    }
    chosen_.upload(piece.layer, piece.sequence, lists, *context_.device);
  }

  /// No head looks, or follows, and the tail has every token.
  template <class View, class Exec>
  void wait(prompt_piece<View> const& piece, Exec&) {
    std::int64_t const heads = context_.shape.kv_heads;
    std::vector<std::int32_t> const none(static_cast<std::size_t>(heads));
    std::vector<std::int32_t> const nobody(static_cast<std::size_t>(heads), -1);
    for (of_layer_row const which : {base, leader, source, length}) {
      context_.device->upload(part_of(row(piece.layer, which), piece.sequence * heads, heads),
                              which == leader ? nobody.data() : none.data(), heads);
    }
    chosen_.upload(piece.layer, piece.sequence, std::vector<range_list>(static_cast<std::size_t>(heads)), *context_.device);
    for (std::int64_t h = 0; h < heads; ++h)
      most_[static_cast<std::size_t>(piece.layer.value * context_.heads() + piece.sequence * heads + h)] = piece.view.tokens();
  }

  void plan(planned_turn const& turn, auto const&) {
    auto const& [sequence, prompt, tokens, waits] = turn;
    numbers_.set(prompt_tokens, sequence, waits ? 0 : prompt);
    // A choice that waited is made in a step, which counts.
    std::int64_t const steps = waits ? -1 : tokens - prompt - (context_.waits ? 0 : 1);
    numbers_.set(seen, sequence, steps < 0 ? -1 : steps % every() - (every() - window_));
  }
  /// Between looks: the window of no sequence has begun.
  bool idle() const noexcept {
    for (std::int64_t s = 0; s < context_.sequences; ++s) {
      if (numbers_.get(seen, s) >= 0) return false;
    }
    return true;
  }
  void upload() const { numbers_.upload(*context_.device); }
  /// The most tokens of a head whose rows a step on so many reads.
  std::int64_t most_listed(layer_id layer, std::int64_t sequence, head_id head, std::int64_t tokens) const noexcept {
    std::int64_t const nth = layer.value * context_.heads() + sequence * context_.shape.kv_heads + head.value;
    return most_[static_cast<std::size_t>(nth)] + tokens - numbers_.get(prompt_tokens, sequence);
  }

  void choose(decode_step const& step) {
    if (!context_.rule.next_step) fetch(step);
  }
  /// What the next step reads, where choices serve that.
  void renew(decode_step const& step) {
    if (context_.rule.next_step) fetch(step);
  }

  token_lists lists(layer_id layer, token_lists const& retained) const noexcept {
    return chosen_.of(layer, numbers_.of(prompt_tokens), retained.tokens, 0);
  }

 private:
  void fetch(decode_step const& step) {
    Rule const& rule = context_.rule;
    layer_id const layer = step.layer;
    cache_shape const& shape = context_.shape;
    D& device = *context_.device;
    auto const heads = static_cast<std::int32_t>(shape.kv_heads);
    auto const group = static_cast<std::int32_t>(shape.group());
    auto const dim = static_cast<std::int32_t>(shape.head_dim);
    drift_heads const of{row(layer, base), row(layer, leader), row(layer, source), step_row(0), step_row(1), step_row(2)};
    buffer<float> const kept = queries_.of(layer);
    device.template launch<keep_queries_body>(
        {heads, context_.sequences, 1},
        {step.queries, of, heads, group, dim, window_, step.lengths, numbers_.of(prompt_tokens), numbers_.of(seen), kept});
    vector_rows const of_window = vectors_of_floats(kept, shape.kv_heads * window_ * group, dim);
    smoothing const averaged{.how = smoothing::kind::average, .width = rule.trigger.smooth};
    unit_scores_.weigh(step, of_window, of.looks, window_);
    unit_scores_.smooth(of.looks, window_, rule.trigger.merged, averaged);
    top_k_arguments top{};
    top.scores = unit_scores_.scores();
    top.score_stride = shape.max_tokens;
    top.columns.values = of.looks;
    top.k.values = of.base;
    top.rows_of_number = window_;
    top.indices = sets_.get();
    top.index_stride = shape.max_tokens;
    top.keeps_empty = true;
    launch_top_k(device, top, context_.heads() * window_, shape.max_tokens);
    device.template launch<drift_body>(
        {heads, context_.sequences, 1},
        {of, heads, window_, sets_.get(), baseline_.of(layer), shape.max_tokens, rule.trigger.tau,
         rule.trigger.chance_corrected, context_.heads(), numbers_.of(prompt_tokens), device.counters()});
    // A leader's attention in this step is the last of its window's.
    if (rule.score.own) unit_scores_.weigh(step, step.queries, of.due, 1);
    unit_scores_.smooth(of.due, rule.score.own ? 1 : window_, rule.score.merged, rule.score.smooth, of.source);
    top.columns.values = of.due;
    top.k.values = row(layer, length);
    top.rows_of_number = 1;
    top.indices = chosen_.units(layer);
    top.tokens = chosen_.named(layer);
    launch_top_k(device, top, context_.heads(), shape.max_tokens);
  }
  std::int32_t every() const noexcept { return context_.rule.trigger.every; }
  buffer<std::int32_t> row(layer_id layer, of_layer_row which) const noexcept {
    return part_of(of_layers_.of(layer), which * context_.heads(), context_.heads());
  }
  buffer<std::int32_t> step_row(std::int64_t nth) const noexcept {
    return part_of(of_step_.get(), nth * context_.heads(), context_.heads());
  }

  decode_context<Rule, D> context_;
  std::int32_t window_;
  unit_scores<Rule, D> unit_scores_;
  host_prompts<policy<keep_all, Rule>> prompts_;
  step_numbers<D> numbers_;
  layer_array<D, std::int32_t> of_layers_;  ///< `[layer_rows, sequences, kv_heads]`
  array_of<D, std::int32_t> of_step_;       ///< `[3, sequences, kv_heads]`: looks, fired, due
  layer_array<D, float> queries_;           ///< `[sequences, kv_heads, window, group, head_dim]`
  layer_array<D, std::int32_t> baseline_;   ///< `[sequences, kv_heads, max_tokens]`
  list_store<D> chosen_;
  array_of<D, std::int32_t> sets_;  ///< `[sequences, kv_heads, window, max_tokens]`
  std::vector<std::int64_t> most_;  ///< `[layers, sequences, kv_heads]` tokens of the prompt whose rows steps read
};

}  // namespace kvpolicy::gpu::detail
