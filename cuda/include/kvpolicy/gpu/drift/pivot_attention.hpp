// A step's attention over a prompt's tokens, head by head, smoothed (HeteroCache), of every sequence of a batch.
#pragma once

#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/drift/looks.hpp"
#include "kvpolicy/gpu/step/context.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/scorers/pivot_attention.hpp"

namespace kvpolicy::gpu {

/// For triggers::drift: `weigh(...)` and then `smooth(...)`, whose outcome is `scores()`, `[sequences, kv_heads, window,
/// max_tokens]`.
template <class Rule, owning_device D>
  requires pools_and_scores<Rule, pools::none, scorers::pivot_attention>
class unit_scores<Rule, D> {
 public:
  unit_scores(decode_context<Rule, D> const& context, std::int64_t window)
      : context_(context),
        all_(counted(*context.device, context.shape.max_tokens)),
        weights_(context.template array<float>(context.heads() * window * context.shape.max_tokens)),
        smoothed_(context.template array<float>(context.heads() * window * context.shape.max_tokens)) {}

  buffer<float> scores() const noexcept { return smoothed_.get(); }

  /// Attention over the first `counts` tokens: a row for each of `window` query groups of each head. Heads
  /// whose count is 0 read nothing.
  void weigh(decode_step const& step, vector_rows const& queries, buffer<std::int32_t> counts, std::int32_t window,
             group_merge merged) {
    cache_shape const& shape = context_.shape;
    detail::list_weights a{};
    a.queries = queries;
    a.scale = step.scale;
    a.group = static_cast<std::int32_t>(shape.group());
    a.keys = step.keys;
    a.lists.units = all_.get();  // every list is 0, 1, 2, ...: no stride
    a.lists.named = counts;
    a.lists.tokens.all = shape.max_tokens;
    a.lists.lists = static_cast<std::int32_t>(shape.kv_heads);
    a.sequences = context_.sequences;
    a.most_tokens = shape.max_tokens;
    a.window = window;
    a.out = weights_.get();
    a.sequence_stride = shape.kv_heads * window * shape.max_tokens;
    a.head_stride = shape.max_tokens;
    a.maximum = merged == group_merge::maximum;
    detail::launch_list_weights(*context_.device, a);
  }

  /// Smooths what was weighed: each row's own, or its source's.
  void smooth(buffer<std::int32_t> counts, std::int32_t window, smoothing how, buffer<std::int32_t const> of) {
    cache_shape const& shape = context_.shape;
    std::int64_t const row_count = context_.heads() * window;
    std::int32_t const blocks = blocks_of_row<detail::smooth_rows_body>(*context_.device, shape.max_tokens,
                                                                        detail::smooth_rows_body::threads, row_count);
    context_.device->template launch<detail::smooth_rows_body>(
        {blocks, row_count, 1},
        {weights_.get(), shape.max_tokens, counts, window, static_cast<std::int32_t>(how.how),
         static_cast<std::int32_t>(how.width), smoothed_.get(), of, static_cast<std::int32_t>(shape.kv_heads), blocks});
  }

 private:
  decode_context<Rule, D> context_;
  array_of<D, std::int32_t> all_;  ///< 0, 1, 2, ...
  array_of<D, float> weights_;     ///< `[sequences, kv_heads, window, max_tokens]`
  array_of<D, float> smoothed_;    ///< the same
};

}  // namespace kvpolicy::gpu
