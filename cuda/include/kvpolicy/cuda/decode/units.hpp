// Units that are scored at every step, the best ones listed (Quest, InfLLM), of every sequence of a batch.
#pragma once

#include <array>

#include "kvpolicy/cuda/decode/stage.hpp"
#include "kvpolicy/cuda/kernel/representatives.hpp"
#include "kvpolicy/cuda/launch/units.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/segment/pages.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/every_step.hpp"

namespace kvpolicy::cuda {

/// Of each sequence: candidates [first, end), `count` of them.
struct unit_candidates {
  per_sequence first;
  per_sequence count;
  per_sequence end;
};

/// An act's pool and scorer on the device, of every layer: one specialisation for each pair.
/// Requires: a constructor from decode_stage and the units that a sequence has at most; `prefill(piece, exec)`; `score(step,
/// among, scores)`, which takes the step's token in and writes `[sequences, kv_heads, units]`.
template <class Act, owning_device D>
class unit_scores;

template <class Act, class D>
concept has_unit_scores = requires {
  sizeof(unit_scores<Act, D>);
};

template <class Pool, class Score, class Budget, scope Finest, class Window, owning_device D>
  requires has_unit_scores<keep<segment::pages, Pool, Score, Budget, select::basic_top<Finest>, Window, trigger::every_step>, D>
class decode_retrieve<keep<segment::pages, Pool, Score, Budget, select::basic_top<Finest>, Window, trigger::every_step>, D> {
  using act_type = keep<segment::pages, Pool, Score, Budget, select::basic_top<Finest>, Window, trigger::every_step>;
  static_assert(!Budget::reads_scores, "a budget that reads scores is decided on the host");
  static_assert(act_type::granularity != scope::request, "a choice for the whole request has no kernel here");
  /// Rows of each layer's numbers.
  enum number { first, count, taken, tail, end, rows };

 public:
  static constexpr bool by_index = false;

  explicit decode_retrieve(decode_stage<act_type, D> const& stage)
      : stage_(stage),
        units_(divided_up(stage.shape.max_tokens, stage.act.segment.unit_size())),
        numbers_(*stage.device, stage.shape.layers * rows, stage.sequences),
        unit_scores_(stage, units_),
        scores_(stage.template array<float>(stage.heads() * units_)),
        summed_(stage.template array<float>(act_type::granularity == scope::layer ? stage.sequences * units_ : 1)),
        lists_(*stage.device, stage.shape.layers, stage.sequences,
               act_type::granularity == scope::head ? stage.shape.kv_heads : 1, units_, stage.act.segment.unit_size()) {}

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    unit_scores_.prefill(piece, exec);
  }

  void plan(std::int64_t sequence, std::int64_t prompt, std::int64_t tokens) {
    act_type const& act = stage_.act;
    for (std::int64_t l = 0; l < stage_.shape.layers; ++l) {
      auto const set = [&](number row, std::int64_t value) { numbers_.set(l * rows + row, sequence, value); };
      for (number const row : {first, count, taken, tail, end}) set(row, 0);
      if (tokens == 0 || act.layers.dense({l})) continue;
      protected_tokens const safe = act.window.at(tokens, prompt);
      budget_request const request{
          .shape = stage_.shape, .layer = {l}, .heads = {0, stage_.shape.kv_heads}, .tokens = tokens, .prompt = prompt};
      auto const among = act.select.candidates_of(act, request, safe);
      std::array<std::int32_t, 1> units{};
      host_exec none;
      if (among.any) act.select.allot(act, among, {}, units, none);
      set(first, among.first);
      set(count, among.count);
      set(end, among.first + among.count);
      set(taken, units[0]);
      set(tail, safe.recent_begin);
    }
  }
  void upload() const { numbers_.upload(*stage_.device); }

  void choose(decode_step const& step) {
    layer_id const layer = step.layer;
    if (stage_.act.layers.dense(layer) || stage_.act.layers.leader(layer) != layer) return;
    unit_scores_.score(step, {number_of(layer, first), number_of(layer, count), number_of(layer, end)}, scores_.get());
    top_k_body<1>::arguments top{};
    top.scores = scores_.get();
    if constexpr (act_type::granularity == scope::layer) {
      stage_.device->template launch<sum_heads_body>(
          {divided_up(units_, sum_heads_body::threads), stage_.sequences, 1},
          {scores_.get(), units_, static_cast<std::int32_t>(stage_.shape.kv_heads), number_of(layer, end), summed_.get()});
      top.scores = summed_.get();
    }
    top.score_stride = units_;
    top.first = number_of(layer, first);
    top.columns = number_of(layer, count);
    top.k = number_of(layer, taken);
    top.rows_of_number = static_cast<std::int32_t>(lists_.lists());
    top.indices = lists_.units(layer);
    top.index_stride = units_;
    top.tokens = lists_.named(layer);
    top.unit_size = static_cast<std::int32_t>(stage_.act.segment.unit_size());
    launch_top_k(*stage_.device, top, lists_.rows(), units_);
  }

  std::int64_t listed(layer_id layer, std::int64_t sequence, head_id, std::int64_t tokens) const noexcept {
    if (tokens == 0 || stage_.act.layers.dense(layer)) return tokens;
    std::int64_t const from = stage_.act.layers.leader(layer).value * rows;
    return (numbers_.get(from + first, sequence) + numbers_.get(from + taken, sequence)) * stage_.act.segment.unit_size() +
           tokens - numbers_.get(layer.value * rows + tail, sequence);
  }

  token_lists lists(layer_id layer, token_lists const& retained) const noexcept {
    if (stage_.act.layers.dense(layer)) return all_of(retained.tokens);
    return lists_.of(stage_.act.layers.leader(layer), number_of(layer, tail), retained.tokens,
                     stage_.act.budget.most_tokens(stage_.shape));
  }

 private:
  per_sequence number_of(layer_id layer, number row) const noexcept { return numbers_.of(layer.value * rows + row); }

  decode_stage<act_type, D> stage_;
  std::int64_t units_;  ///< of a sequence, at most
  step_numbers<D> numbers_;
  unit_scores<act_type, D> unit_scores_;
  array_of<D, float> scores_;  ///< `[sequences, kv_heads, units]`
  array_of<D, float> summed_;  ///< `[sequences, units]`, of a layer's list
  list_store<D> lists_;
};

}  // namespace kvpolicy::cuda
