// Units that are scored at every step, the best ones listed (Quest, InfLLM, OmniKV), or the best of their tokens (Twilight), of
// every sequence of a batch.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/base/top_k.hpp"
#include "kvpolicy/gpu/pages/prune.hpp"
#include "kvpolicy/gpu/pages/represent.hpp"
#include "kvpolicy/gpu/pages/units.hpp"

namespace kvpolicy::gpu {

namespace detail {

/// A choice at every step. `unit_scores` is made from the units that a sequence has at most, and has `prefill(piece, exec)`;
/// `score(step, among, scores)`, which takes the step's token in and writes `[sequences, kv_heads, units]`; `by_index`, whether
/// units may be of what a retain left. Where its memory follows the text it has `hold(sequence, units)`.
template <class Rule, owning_device D>
  requires lists_best_units<Rule, D>
class decode_retrieve<Rule, D> {
  /// Rows of each layer's numbers.
  enum number { first, count, taken, tail, end, resident, weighed, behind, rows };
  static constexpr bool prunes = prunes_units<Rule>;

 public:
  static constexpr bool by_index = unit_scores<Rule, D>::by_index && !prunes;
  static constexpr bool can_wait = by_index;
  static constexpr bool waits_in_steps = !contains(Rule::needs, signals::observation_queries);

  explicit decode_retrieve(decode_context<Rule, D> const& context)
      : context_(context),
        units_(divided_up(context.shape.max_tokens, context.rule.segment.unit_size())),
        alike_(alike_in_layers(context.rule.budget)),
        layers_(context.retained_lists == 0 && alike_ ? 1 : context.shape.layers),
        planned_(context.retained_lists > 1 ? context.shape.kv_heads : 1),
        numbers_(context.numbers(layers_ * rows, context.sequences * planned_)),
        unit_scores_(context, units_),
        scores_(context.template array<float>(context.heads() * units_)),
        merged_(context.template array<float>(Rule::granularity == scope::layer ? context.sequences * units_ : 1)),
        lists_(*context.device, context.shape.layers, context.sequences,
               Rule::granularity == scope::head ? context.shape.kv_heads : 1, units_, context.rule.segment.unit_size()) {
    if (context.retained_lists > 0 || prunes) {
      // What the window protects beyond a share, and an open unit, come on top of the budget.
      std::int64_t const most = (ranking().max_ranges(context.rule, context.shape) + 1) * context.rule.segment.unit_size() +
                                context.rule.window.at(context.shape.max_tokens, context.shape.max_tokens).counted;
      tokens_.emplace(*context.device, context.shape.layers, context.sequences, context.shape.kv_heads,
                      std::min(context.shape.max_tokens, most));
    }
  }

  void hold(std::int64_t sequence, std::int64_t tokens) requires requires(unit_scores<Rule, D> of) { of.hold(0, 0); }
  { unit_scores_.hold(sequence, divided_up(tokens, context_.rule.segment.unit_size())); }

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    unit_scores_.prefill(piece, exec);
  }

  template <class View, class Exec>
  void wait(prompt_piece<View> const& piece, Exec& exec) {
    unit_scores_.prefill(piece, exec);  // of everything, which waiting steps go on with
  }

  void plan(planned_turn const& turn, auto const& retained) {
    list_numbers numbers{};
    std::int64_t of = -1;  // tokens of the list that these are of, if another as long has the same
    for (std::int64_t l = 0; l < layers_; ++l) {
      bool const all = turn.tokens == 0 || turn.waits || (layers_ > 1 && context_.rule.layers.dense({l}));
      for (std::int64_t h = 0; h < planned_; ++h) {
        std::int64_t const mine = turn.tokens == 0 ? 0 : retained(layer_id{l}, head_id{h});
        if (all) numbers = numbers_of_all(turn, mine);
        else if (mine != of) numbers = numbers_of_best(turn, {l}, {h}, mine);
        of = !all && alike_ ? mine : -1;
        for (std::int64_t row = 0; row < rows; ++row)
          numbers_.set(l * rows + row, turn.sequence * planned_ + h, numbers[static_cast<std::size_t>(row)]);
      }
    }
  }
  void upload() const { numbers_.upload(*context_.device); }

  void choose(decode_step const& step) {
    layer_id const layer = step.layer;
    if (context_.rule.layers.dense(layer) || context_.rule.layers.leader(layer) != layer) return;
    unit_scores_.score(step, {number_of(layer, first), number_of(layer, count), number_of(layer, end), planned_ > 1},
                       scores_.get());
    top_k_arguments top{};
    top.scores = scores_.get();
    if constexpr (Rule::granularity == scope::layer) {
      context_.device->template launch<merge_heads_body>(
          {divided_up(units_, merge_heads_body::threads), context_.sequences, 1},
          {scores_.get(), units_, static_cast<std::int32_t>(context_.shape.kv_heads),
           context_.rule.select.heads == selectors::merge::maximum, number_of(layer, end), merged_.get()});
      top.scores = merged_.get();
    }
    top.score_stride = units_;
    top.first = number_of(layer, first);
    top.columns = number_of(layer, count);
    top.k = number_of(layer, taken);
    top.rows_of_number = static_cast<std::int32_t>(lists_.lists() / planned_);
    top.indices = lists_.units(layer);
    top.index_stride = units_;
    top.tokens = lists_.named(layer);
    top.unit_size = static_cast<std::int32_t>(context_.rule.segment.unit_size());
    launch_top_k(*context_.device, top, lists_.rows(), units_);
    if constexpr (prunes) return prune(step);
    if (!tokens_) return;
    context_.device->template launch<named_tokens_body>(
        {context_.shape.kv_heads, context_.sequences, 1},
        {lists_.units(layer), units_, lists_.named(layer), top.unit_size, number_of(layer, tail), top.rows_of_number,
         step.retained, tokens_->units(layer), tokens_->stride(), tokens_->named(layer),
         static_cast<std::int32_t>(context_.shape.kv_heads)});
  }

  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id head, std::int64_t) const noexcept requires(!prunes) {
    auto const get = [&](layer_id of, number row) {
      return numbers_.get(first_row(of) + row, sequence * planned_ + (planned_ > 1 ? head.value : 0));
    };
    if (context_.rule.layers.reads_all(layer) || get(layer, behind) == 0) return get(layer, resident);
    layer_id const leader = context_.rule.layers.leader(layer);
    return (get(leader, first) + get(leader, taken)) * context_.rule.segment.unit_size() + get(layer, resident) -
           get(layer, tail);
  }

  token_lists lists(layer_id layer, token_lists const& retained) const noexcept {
    if (context_.rule.layers.reads_all(layer)) return retained;
    layer_id const leader = context_.rule.layers.leader(layer);
    std::int64_t const about = context_.rule.budget.most_tokens(context_.shape);
    if (!tokens_) return lists_.of(leader, number_of(layer, tail), retained.tokens, about);
    token_lists made = tokens_->of(leader, {{}, token_lists::no_tail}, retained.tokens, about);
    if (prunes || context_.waits) {
      made.tail = number_of(layer, prunes ? tail : behind);
      made.tails = static_cast<std::int32_t>(planned_);
    }
    return made;
  }

 private:
  /// The selector that ranks units.
  auto ranking() const noexcept {
    if constexpr (prunes) return selectors::top{};
    else return context_.rule.select;
  }

  /// Of the tokens of the listed units, those that query heads attend to most.
  void prune(decode_step const& step) requires(prunes) {
    layer_id const layer = step.layer;
    cache_shape const& shape = context_.shape;
    D& device = *context_.device;
    list_weights a{};
    a.queries = step.queries;
    a.scale = step.scale;
    a.group = static_cast<std::int32_t>(shape.group());
    a.keys = step.keys;
    a.lists = lists_.of(layer, number_of(layer, tail), number_of(layer, weighed), 0);
    a.sequences = context_.sequences;
    a.most_tokens = tokens_->stride();
    scratch_scope const scope(device);
    std::int64_t const query_rows = context_.heads() * shape.group();
    buffer<float> const logits = device.template scratch<float>(query_rows * a.most_tokens);
    buffer<float> const statistics = device.template scratch<float>(query_rows * 2);
    launch_list_logits(device, a, logits, statistics);
    device.template launch<prune_body>({shape.kv_heads, context_.sequences, 1},
                                       {logits, a.most_tokens, statistics, a.lists, number_of(layer, first), a.group,
                                        static_cast<std::int32_t>(shape.kv_heads), context_.rule.select.mass,
                                        device.template scratch<std::uint8_t>(context_.heads() * a.most_tokens),
                                        tokens_->units(layer), tokens_->stride(), tokens_->named(layer)});
  }

  using list_numbers = std::array<std::int64_t, rows>;

  /// Of a list that names nothing: its tail has every token.
  list_numbers numbers_of_all(planned_turn const& turn, std::int64_t mine) const noexcept {
    list_numbers made{};
    made[resident] = mine;
    if (turn.tokens > 0 && !turn.waits) made[behind] = token_lists::no_tail;
    if (turn.waits && tokens_) made[tail] = token_lists::no_tail;
    return made;
  }
  list_numbers numbers_of_best(planned_turn const& turn, layer_id layer, head_id head, std::int64_t mine) const {
    Rule const& rule = context_.rule;
    // Every token since the prompt is there.
    protected_tokens const safe = rule.window.at(mine, mine - (turn.tokens - turn.prompt));
    budget_request const request{.shape = context_.shape,
                                 .layer = layer,
                                 .heads = {head.value, planned_ > 1 ? 1 : context_.shape.kv_heads},
                                 .tokens = mine,
                                 .prompt = turn.prompt};
    auto const among = ranking().candidates_of(rule, request, safe);
    std::array<std::int32_t, 1> units{};
    host_exec none;
    if (among.any) ranking().allot(rule, among, {}, units, none);
    list_numbers made{};
    made[first] = among.first;
    made[count] = among.count;
    made[end] = among.first + among.count;
    made[taken] = units[0];
    made[tail] = safe.recent_begin;
    made[resident] = made[weighed] = mine;
    made[behind] = token_lists::no_tail;
    return made;
  }

  std::int64_t first_row(layer_id layer) const noexcept { return layers_ == 1 ? 0 : layer.value * rows; }
  per_sequence number_of(layer_id layer, number row) const noexcept { return numbers_.of(first_row(layer) + row); }

  decode_context<Rule, D> context_;
  std::int64_t units_;    ///< of a sequence, at most
  bool alike_;            ///< lists of one length have one budget, whatever their layer
  std::int64_t layers_;   ///< that numbers are kept of: one where all are alike
  std::int64_t planned_;  ///< numbers of a sequence and layer: one for all lists, or, where a retain left unequal ones, each
  step_numbers<D> numbers_;
  unit_scores<Rule, D> unit_scores_;
  array_of<D, float> scores_;            ///< `[sequences, kv_heads, units]`
  array_of<D, float> merged_;            ///< `[sequences, units]`, of a layer's list
  list_store<D> lists_;                  ///< of units
  std::optional<list_store<D>> tokens_;  ///< where units are of what a retain left, or of their tokens few are read
};

}  // namespace detail
}  // namespace kvpolicy::gpu
