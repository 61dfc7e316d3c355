// Sentences by the running mean of the queries (SentenceKV), of every sequence of a batch.
#pragma once

#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/pooling/launch_pool.hpp"
#include "kvpolicy/gpu/pooling/unit_vectors.hpp"
#include "kvpolicy/gpu/sentences/fill.hpp"
#include "kvpolicy/gpu/step/context.hpp"
#include "kvpolicy/pools/unit_mean.hpp"
#include "kvpolicy/scorers/query_mean_dot.hpp"

namespace kvpolicy::gpu {

/// For selectors::fill over segments::sentences, `units` of a sequence at most: `hold(sequence, units)`, room for so many;
/// `restart(layer, sequence)`; `take(step, state)`, the step's token and queries; `score(layer, count, out)`; `units(layer)`,
/// where the fill finds what it reads.
template <class Rule, owning_device D>
  requires pools_and_scores<Rule, pools::unit_mean, scorers::query_mean_dot>
class unit_scores<Rule, D> {
 public:
  unit_scores(decode_context<Rule, D> const& context, std::int64_t units)
      : context_(context),
        most_(units),
        spread_(context.rule.pool.spread),
        vectors_(spread_ ? context.shape.group() : 1),
        units_(context.shape, context.sequences, units, spread_ ? 2 : 1, *context.device),
        rank_ends_(context.template by_layer<std::int32_t>(context.heads() * units)),
        counts_(context.template by_layer<std::int32_t>(2 * context.heads())),
        sums_(context.template by_layer<float>(context.heads() * vectors_ * context.shape.head_dim)) {
    std::vector<std::int32_t> const none(static_cast<std::size_t>(counts_.all().size));
    context.device->upload(counts_.all(), none.data(), std::ssize(none));
  }

  detail::sentence_units units(layer_id layer) const noexcept {
    return {units_.to(layer), spread_, rank_ends_.of(layer), folded(layer)};
  }
  void hold(std::int64_t sequence, std::int64_t units) { units_.hold(sequence, units); }
  void restart(layer_id layer, std::int64_t row) {
    context_.put(folded(layer), row, 0);
    context_.put(queries_summed(layer), row, 0);
  }

  void take(decode_step const& step, detail::sentence_state const& state) {
    cache_shape const& shape = context_.shape;
    auto const heads = static_cast<std::int32_t>(shape.kv_heads);
    detail::query_sums const sums{step.queries,
                                  static_cast<std::int32_t>(shape.group()),
                                  heads,
                                  static_cast<std::int32_t>(shape.head_dim),
                                  context_.rule.score.carry,
                                  spread_,
                                  step.lengths,
                                  queries_summed(step.layer),
                                  sums_.of(step.layer)};
    with_type(step.keys.type, [&]<element_type E>() {
      context_.device->template launch<detail::sentence_take_body<E>>(
          {heads, context_.sequences, 1}, {step.keys, step.retained, state, units(step.layer), sums});
    });
  }

  void score(layer_id layer, buffer<std::int32_t const> count, buffer<float> scores) {
    cache_shape const& shape = context_.shape;
    vector_rows const sums = vectors_of_floats(sums_.of(layer), shape.kv_heads * vectors_, shape.head_dim);
    if (spread_) {
      detail::launch_score_bounds(*context_.device,
                                  {units_.rows(layer), static_cast<std::int32_t>(shape.group()), most_, context_.sequences},
                                  [&](auto& a) {
                                    a.queries = sums;
                                    a.merged = group_merge::mean;
                                    a.count.values = count;
                                    a.scores = scores;
                                    a.sequence_stride = shape.kv_heads * most_;
                                    a.head_stride = most_;
                                  });
      return;
    }
    detail::list_weights a{};
    a.queries = sums;
    a.keys = units_.rows(layer);
    a.lists = all_of({count});
    a.sequences = context_.sequences;
    a.most_tokens = most_;
    detail::launch_list_logits(*context_.device, a, scores);
  }

 private:
  buffer<std::int32_t> folded(layer_id layer) const noexcept { return part_of(counts_.of(layer), 0, context_.heads()); }
  buffer<std::int32_t> queries_summed(layer_id layer) const noexcept {
    return part_of(counts_.of(layer), context_.heads(), context_.heads());
  }

  decode_context<Rule, D> context_;
  std::int64_t most_;
  bool spread_;
  std::int64_t vectors_;                    ///< query sums of a KV head: one, or its query heads'
  detail::unit_vectors<D> units_;           ///< means, or mean +/- deviation
  layer_array<D, std::int32_t> rank_ends_;  ///< `[sequences, kv_heads, units]`
  layer_array<D, std::int32_t> counts_;     ///< `[2, sequences, kv_heads]`: sentences that are in, queries in the sum
  layer_array<D, float> sums_;              ///< `[sequences, kv_heads, vectors, head_dim]`
};

}  // namespace kvpolicy::gpu
