// Followers' tokens fetched anew when their leader's attention drifts (HeteroCache), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "kvpolicy/budgets/by_head_role.hpp"
#include "kvpolicy/gpu/decode/host_prompts.hpp"
#include "kvpolicy/gpu/kernel/drift.hpp"
#include "kvpolicy/gpu/launch/attend.hpp"
#include "kvpolicy/gpu/launch/units.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/scorers/pivot_attention.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/drift.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::gpu {

/// A prompt's end is decided on the host, as the verb does; from then on heads look, and fetch, on the device.
template <owning_device D>
class decode_retrieve<keep<segments::tokens, pools::none, scorers::pivot_attention, budgets::by_head_role, selectors::top,
                           windows::tokens, triggers::drift>,
                      D> {
  using rule_type = keep<segments::tokens, pools::none, scorers::pivot_attention, budgets::by_head_role, selectors::top,
                         windows::tokens, triggers::drift>;
  enum number { prompt_tokens, seen, rows };
  /// Rows of integers of each layer, `[sequences, kv_heads]`.
  enum of_layer_row { base, leader, source, length, layer_rows };

 public:
  static constexpr bool by_index = true;

  explicit decode_retrieve(decode_stage<rule_type, D> const& stage)
      : stage_(stage),
        window_(stage.rule.trigger.window),
        prompts_({keep_all{}, stage.rule}, stage.shape, stage.sequences),
        numbers_(*stage.device, rows, stage.sequences),
        of_layers_(stage.template by_layer<std::int32_t>(layer_rows * stage.heads())),
        of_step_(stage.template array<std::int32_t>(4 * stage.heads())),
        all_(counted(*stage.device, stage.shape.max_tokens)),
        queries_(stage.template by_layer<float>(stage.heads() * window_ * stage.shape.group() * stage.shape.head_dim)),
        baseline_(stage.template by_layer<std::int32_t>(stage.heads() * stage.shape.max_tokens)),
        chosen_(*stage.device, stage.shape.layers, stage.sequences, stage.shape.kv_heads, stage.shape.max_tokens),
        weights_(stage.template array<float>(stage.heads() * window_ * stage.shape.max_tokens)),
        smoothed_(stage.template array<float>(stage.heads() * window_ * stage.shape.max_tokens)),
        sets_(stage.template array<std::int32_t>(stage.heads() * window_ * stage.shape.max_tokens)) {
    KVPOLICY_EXPECTS(stage.rule.window.generated && stage.rule.window.sinks == 0,
                     "heads read their own tokens and what was generated; a window with sinks has no kernel");
    std::vector<std::int32_t> const none(static_cast<std::size_t>(stage.shape.layers * layer_rows * stage.heads()));
    stage.device->upload(of_layers_.all(), none.data(), std::ssize(none));
  }

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    rule_type const& rule = stage_.rule;
    auto& state = prompts_.prefill(piece, exec);
    std::int64_t const tokens = piece.view.tokens();
    std::int64_t const kv_heads = stage_.shape.kv_heads;
    std::vector<std::int64_t> lengths(rule.budget.heads.size());
    rule.budget.lengths(tokens, lengths);
    std::vector<range_list> lists(static_cast<std::size_t>(kv_heads));
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      auto const head = static_cast<std::size_t>(piece.layer.value * kv_heads + h);
      std::int64_t const row = piece.sequence * kv_heads + h;
      std::int64_t const followed = rule.budget.leader(head, tokens, kv_heads);
      bool const follows = followed != rule.budget.nobody;
      std::vector<std::int32_t> const& set = state.retrieve().trigger().baseline[head];
      bool const looks = rule.budget.watches(head, tokens);
      auto const put = [&](of_layer_row which, std::int64_t value) {
        stage_.put(this->row(piece.layer, which), row, static_cast<std::int32_t>(value));
      };
      put(base, looks ? std::ssize(set) : 0);
      put(leader, followed);
      put(source, rule.score.own || !follows ? h : followed);
      put(length, lengths[head]);
      if (looks) {
        stage_.device->upload(part_of(baseline_.of(piece.layer), row * stage_.shape.max_tokens, stage_.shape.max_tokens),
                              set.data(), std::ssize(set));
      }
      range_list& list = lists[static_cast<std::size_t>(h)];
      if (follows || piece.retained.empty()) {
        state.retrieve().each_chosen(piece.layer, static_cast<std::size_t>(h),
                                     [&](std::int64_t begin, std::int64_t end) { append(list, begin, end, reason::scored); });
        append(list, rule.window.at(tokens, tokens).recent_begin, tokens, reason::recent);
      } else {
        list = piece.retained[piece.retained.size() == 1 ? 0 : static_cast<std::size_t>(h)];
      }
    }
    chosen_.upload(piece.layer, piece.sequence, lists, *stage_.device);
  }

  void plan(std::int64_t sequence, std::int64_t prompt, std::int64_t tokens, auto const&) {
    numbers_.set(prompt_tokens, sequence, prompt);
    numbers_.set(seen, sequence, tokens == 0 ? 0 : (tokens - prompt - 1) % every() - (every() - window_));
  }
  void upload() const { numbers_.upload(*stage_.device); }

  void choose(decode_step const& step) {
    rule_type const& rule = stage_.rule;
    layer_id const layer = step.layer;
    cache_shape const& shape = stage_.shape;
    D& device = *stage_.device;
    auto const heads = static_cast<std::int32_t>(shape.kv_heads);
    auto const group = static_cast<std::int32_t>(shape.group());
    auto const dim = static_cast<std::int32_t>(shape.head_dim);
    drift_heads const of{row(layer, base), row(layer, leader), row(layer, source), step_row(0),
                         step_row(1),      step_row(2),        step_row(3)};
    buffer<float> const kept = queries_.of(layer);
    device.template launch<keep_queries_body>(
        {heads, stage_.sequences, 1},
        {step.queries, of, heads, group, dim, window_, step.lengths, numbers_.of(prompt_tokens), numbers_.of(seen), kept});
    vector_rows of_window{};
    of_window.base = kept.data;
    of_window.elements = kept.size;
    of_window.sequence_stride = shape.kv_heads * window_ * group * dim;
    of_window.head_stride = dim;
    smoothing const averaged{.how = smoothing::kind::average, .width = rule.trigger.smooth};
    weigh(step, of_window, of.looks, window_, rule.trigger.merged);
    smooth(of.looks, window_, averaged, {});
    top_k_body<1>::arguments top{};
    top.scores = smoothed_.get();
    top.score_stride = shape.max_tokens;
    top.columns.values = of.looks;
    top.k.values = of.base;
    top.rows_of_number = window_;
    top.indices = sets_.get();
    top.index_stride = shape.max_tokens;
    top.keeps_empty = true;
    launch_top_k(device, top, stage_.heads() * window_, shape.max_tokens);
    device.template launch<drift_body>(
        {heads, stage_.sequences, 1}, {of, heads, window_, sets_.get(), baseline_.of(layer), shape.max_tokens, rule.trigger.tau,
                                       rule.trigger.chance_corrected});
    device.template launch<followers_due_body>({divided_up(stage_.heads(), followers_due_body::threads), 1, 1},
                                               {of, heads, stage_.heads(), numbers_.of(prompt_tokens), rule.score.own});
    weigh(step, step.queries, of.asked, 1, rule.score.merged);
    smooth(of.due, 1, rule.score.smooth, of.source);
    top.columns.values = of.due;
    top.k.values = row(layer, length);
    top.rows_of_number = 1;
    top.indices = chosen_.units(layer);
    top.tokens = chosen_.named(layer);
    launch_top_k(device, top, stage_.heads(), shape.max_tokens);
  }

  token_lists lists(layer_id layer, token_lists const& retained) const noexcept {
    return chosen_.of(layer, numbers_.of(prompt_tokens), retained.tokens, 0);
  }

 private:
  std::int32_t every() const noexcept { return stage_.rule.trigger.every; }
  buffer<std::int32_t> row(layer_id layer, of_layer_row which) const noexcept {
    return part_of(of_layers_.of(layer), which * stage_.heads(), stage_.heads());
  }
  buffer<std::int32_t> step_row(std::int64_t nth) const noexcept {
    return part_of(of_step_.get(), nth * stage_.heads(), stage_.heads());
  }

  /// `weights_` = the attention over the first `counts` tokens: a row for each of `window` query groups of each head. Heads
  /// whose count is 0 read nothing.
  void weigh(decode_step const& step, vector_rows const& queries, buffer<std::int32_t> counts, std::int32_t window,
             group_merge merged) {
    cache_shape const& shape = stage_.shape;
    list_weights a{};
    a.queries = queries;
    a.scale = step.scale;
    a.group = static_cast<std::int32_t>(shape.group());
    a.keys = step.keys;
    a.lists.units = all_.get();  // every list is 0, 1, 2, ...: no stride
    a.lists.named = counts;
    a.lists.tokens.all = shape.max_tokens;
    a.lists.lists = static_cast<std::int32_t>(shape.kv_heads);
    a.sequences = stage_.sequences;
    a.most_tokens = shape.max_tokens;
    a.window = window;
    a.out = weights_.get();
    a.sequence_stride = shape.kv_heads * window * shape.max_tokens;
    a.head_stride = shape.max_tokens;
    a.maximum = merged == group_merge::maximum;
    launch_list_weights(*stage_.device, a);
  }

  /// `smoothed_` = `weights_`, smoothed: each row's own, or its source's.
  void smooth(buffer<std::int32_t> counts, std::int32_t window, smoothing how, buffer<std::int32_t const> of) {
    cache_shape const& shape = stage_.shape;
    std::int64_t const row_count = stage_.heads() * window;
    std::int32_t const blocks =
        blocks_of_row<smooth_rows_body>(*stage_.device, shape.max_tokens, smooth_rows_body::threads, row_count);
    stage_.device->template launch<smooth_rows_body>(
        {blocks, row_count, 1},
        {weights_.get(), shape.max_tokens, counts, window, static_cast<std::int32_t>(how.how),
         static_cast<std::int32_t>(how.width), smoothed_.get(), of, static_cast<std::int32_t>(shape.kv_heads), blocks});
  }

  decode_stage<rule_type, D> stage_;
  std::int32_t window_;
  host_prompts<policy<keep_all, rule_type>> prompts_;
  step_numbers<D> numbers_;
  layer_array<D, std::int32_t> of_layers_;  ///< `[layer_rows, sequences, kv_heads]`
  array_of<D, std::int32_t> of_step_;       ///< `[4, sequences, kv_heads]`: looks, fired, due, asked
  array_of<D, std::int32_t> all_;           ///< 0, 1, 2, ...
  layer_array<D, float> queries_;           ///< `[sequences, kv_heads, window, group, head_dim]`
  layer_array<D, std::int32_t> baseline_;   ///< `[sequences, kv_heads, max_tokens]`
  list_store<D> chosen_;
  array_of<D, float> weights_;      ///< `[sequences, kv_heads, window, max_tokens]`
  array_of<D, float> smoothed_;     ///< the same
  array_of<D, std::int32_t> sets_;  ///< the same
};

}  // namespace kvpolicy::gpu
