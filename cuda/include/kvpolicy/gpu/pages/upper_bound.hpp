// Pages by the bounds of their keys (Quest), of every sequence of a batch.
#pragma once

#include <string>

#include "kvpolicy/gpu/pages/largest_channels.hpp"
#include "kvpolicy/gpu/pages/step.hpp"
#include "kvpolicy/gpu/pooling/launch_pool.hpp"
#include "kvpolicy/gpu/pooling/unit_vectors.hpp"
#include "kvpolicy/pools/bounds.hpp"
#include "kvpolicy/scorers/upper_bound.hpp"

namespace kvpolicy::gpu {

template <class Rule, owning_device D>
  requires pools_and_scores<Rule, pools::bounds, scorers::upper_bound>
class unit_scores<Rule, D> {
 public:
  static constexpr bool by_index = true;

  unit_scores(decode_context<Rule, D> const& context, std::int64_t units)
      : context_(context),
        bounds_(context.shape, context.sequences, units, 2, *context.device),
        moments_(context.template by_layer<float>(
            context.rule.pool.how == pools::bounds::kind::mean_deviation ? context.sequences * moments_of_sequence() : 0)),
        largest_(context.template array<float>(
            by_few_channels() ? context.sequences * context.shape.q_heads * context.shape.head_dim : 0)) {}

  /// A sequence has room for so many units; it gives back what is beyond.
  void hold(std::int64_t sequence, std::int64_t units) { bounds_.hold(sequence, units); }

  /// Bounds of a prompt's pages: those of further tokens, where everything is there, and a page that was open is made anew; or
  /// of all that a retain left.
  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec&) {
    if (piece.layer.value == 0) hold(piece.sequence, divided_up(piece.view.tokens(), page()));
    detail::pooled_tokens what{};
    what.last.all = piece.view.tokens();
    what.lists = piece.lists;
    what.later = piece.later;
    what.newest = what.last.all;
    if (what.lists.units.data == nullptr) what.newest -= piece.prompt.first / page() * page();
    what.units = divided_up(what.newest, page());
    what.unit_size = page();
    with_pool(piece.layer, piece.sequence, [&]<template <element_type> class Pool>(auto set) {
      detail::launch_pool<Pool>(*context_.device, piece.keys, what, 1, set);
    });
  }

  /// The step's token is folded in, too. Its page is none of those that are scored: the window protects it.
  void score(decode_step const& step, unit_candidates const& among, buffer<float> scores) {
    detail::pooled_tokens newest{};
    newest.last = step.lengths;
    newest.lists = step.retained;
    newest.newest = 1;
    newest.units = 1;
    newest.unit_size = page();
    cache_shape const& shape = context_.shape;
    std::int64_t const units = bounds_.units();
    detail::scored_bounds const what{bounds_.rows(step.layer), static_cast<std::int32_t>(shape.group()), units,
                                     context_.sequences};
    vector_rows const queries = by_few_channels() ? of_few_channels(step) : step.queries;
    auto const set = [&](auto& a) {
      a.queries = queries;
      a.merged = context_.rule.score.merged;
      a.first = among.first;
      a.count = among.count;
      a.by_head = among.by_head;
      a.scores = scores;
      a.sequence_stride = shape.kv_heads * units;
      a.head_stride = units;
    };
    with_pool(step.layer, 0, [&]<template <element_type> class Pool>(auto set_pool) {
      detail::launch_pool_beside_bounds<Pool>(*context_.device, step.keys, newest, set_pool, what, set);
    });
  }

 private:
  std::int32_t page() const noexcept { return static_cast<std::int32_t>(context_.rule.segment.unit_size()); }
  std::int64_t moments_of_sequence() const noexcept { return context_.shape.kv_heads * 2 * context_.shape.head_dim; }

  bool by_few_channels() const noexcept {
    std::int32_t const channels = context_.rule.score.channels;
    return channels > 0 && channels < context_.shape.head_dim;
  }
  vector_rows of_few_channels(decode_step const& step) const {
    cache_shape const& shape = context_.shape;
    context_.device->template launch<detail::largest_channels_body>(
        {shape.kv_heads, context_.sequences, 1},
        {step.queries, static_cast<std::int32_t>(shape.group()), static_cast<std::int32_t>(shape.kv_heads),
         static_cast<std::int32_t>(shape.head_dim), context_.rule.score.channels, step.lengths, largest_.get()});
    return vectors_of_floats(largest_.get(), shape.q_heads, shape.head_dim);
  }

  /// Calls work<Pool>(set): the pool's body, and what sets where it writes, from a sequence on.
  template <class Work>
  void with_pool(layer_id layer, std::int64_t first_sequence, Work work) {
    detail::batch_vectors const to = bounds_.to(layer, first_sequence);
    if (context_.rule.pool.how == pools::bounds::kind::range) {
      work.template operator()<detail::pool_bounds_body>([&](auto& a) { a.bounds = to; });
    } else {
      work.template operator()<detail::pool_mean_deviation_body>([&](auto& a) {
        a.bounds = to;
        std::int64_t const skipped = first_sequence * moments_of_sequence();
        a.moments = part_of(moments_.of(layer), skipped, moments_.of(layer).size - skipped);
        a.open_alone = true;
      });
    }
  }

  decode_context<Rule, D> context_;
  detail::unit_vectors<D> bounds_;
  layer_array<D, float> moments_;  ///< `[sequences, kv_heads, 2, head_dim]` of open pages, where bounds are spreads
  array_of<D, float> largest_;     ///< `[sequences, q_heads, head_dim]` a step's queries, where few of their channels count
};

}  // namespace kvpolicy::gpu
