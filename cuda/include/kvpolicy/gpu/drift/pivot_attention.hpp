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
        rows_(context.heads() * window * context.shape.group()),
        all_(counted(*context.device, context.shape.max_tokens)),
        logits_(context.template array<float>(rows_ * context.shape.max_tokens)),
        statistics_(context.template array<float>(rows_ * 2)),
        smoothed_(context.template array<float>(context.heads() * window * context.shape.max_tokens)) {}

  buffer<float> scores() const noexcept { return smoothed_.get(); }

  /// Attention of `window` query groups of each head to its first `counts` tokens. Heads whose count is 0 read nothing.
  void weigh(decode_step const& step, vector_rows const& queries, buffer<std::int32_t> counts, std::int32_t window) {
    scratch_scope const scope(*context_.device);
    detail::list_weights a = all_of(counts, window);
    a.queries = queries;
    a.scale = step.scale;
    a.keys = step.keys;
    detail::launch_list_logits(*context_.device, a, logits_.get(), statistics_.get());
  }

  /// What was weighed, merged over query groups and smoothed: every row of its own, `[sequences, kv_heads, window]`.
  void smooth(buffer<std::int32_t> counts, std::int32_t window, group_merge merged, smoothing how) {
    smooth(counts, window, merged, how, [](auto&) {});
  }
  /// The same of one row a head: the last of the `weighed` of another head.
  void smooth(buffer<std::int32_t> counts, std::int32_t weighed, group_merge merged, smoothing how,
              buffer<std::int32_t const> of) {
    smooth(counts, 1, merged, how, [&](auto& a) {
      a.source = of;
      a.rows_of_head = weighed * a.group;
      a.first_row = a.rows_of_head - a.group;
    });
  }

 private:
  template <class Set>
  void smooth(buffer<std::int32_t> counts, std::int32_t window, group_merge merged, smoothing how, Set set) {
    detail::list_weights a = all_of(counts, window);
    a.out = smoothed_.get();
    a.maximum = merged == group_merge::maximum;
    detail::launch_group_weights(*context_.device, logits_.get(), context_.shape.max_tokens, statistics_.get(), a,
                                 [&](auto& w) {
                                   w.how = static_cast<std::int32_t>(how.how);
                                   w.width = static_cast<std::int32_t>(how.width);
                                   set(w);
                                 });
  }
  detail::list_weights all_of(buffer<std::int32_t> counts, std::int32_t window) const {
    cache_shape const& shape = context_.shape;
    detail::list_weights a{};
    a.group = static_cast<std::int32_t>(shape.group());
    a.keys.heads = static_cast<std::int32_t>(shape.kv_heads);
    a.lists.units = all_.get();  // every list is 0, 1, 2, ...: no stride
    a.lists.named = counts;
    a.lists.tokens.all = shape.max_tokens;
    a.lists.lists = static_cast<std::int32_t>(shape.kv_heads);
    a.sequences = context_.sequences;
    a.most_tokens = shape.max_tokens;
    a.window = window;
    a.sequence_stride = shape.kv_heads * window * shape.max_tokens;
    a.head_stride = shape.max_tokens;
    return a;
  }

  decode_context<Rule, D> context_;
  std::int64_t rows_;              ///< of logits
  array_of<D, std::int32_t> all_;  ///< 0, 1, 2, ...
  array_of<D, float> logits_;      ///< `[sequences, kv_heads, window, group, max_tokens]`
  array_of<D, float> statistics_;  ///< `[sequences, kv_heads, window, group, 2]`
  array_of<D, float> smoothed_;    ///< `[sequences, kv_heads, window, max_tokens]`
};

}  // namespace kvpolicy::gpu
