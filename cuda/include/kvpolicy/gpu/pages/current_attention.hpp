// Tokens by a step's attention to them (OmniKV), of every sequence of a batch.
#pragma once

#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/pages/step.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/scorers/current_attention.hpp"

namespace kvpolicy::gpu {

/// For a choice at every step (pages/step.hpp): attention to all tokens before the window.
template <class Rule, owning_device D>
  requires pools_and_scores<Rule, pools::none, scorers::current_attention>
class unit_scores<Rule, D> {
 public:
  static constexpr bool by_index = false;

  unit_scores(decode_context<Rule, D> const& context, std::int64_t units)
      : context_(context), all_(counted(*context.device, units)) {}

  template <class View, class Exec>
  void prefill(prompt_piece<View> const&, Exec&) {}

  void score(decode_step const& step, unit_candidates const& among, buffer<float> scores) {
    cache_shape const& shape = context_.shape;
    auto const& score = context_.rule.score;
    detail::list_weights a{};
    a.queries = step.queries;
    a.scale = step.scale;
    a.group = static_cast<std::int32_t>(shape.group());
    a.keys = step.keys;
    a.lists.units = all_.get();
    a.lists.named = among.end.values;
    a.lists.tokens = step.lengths;
    a.sequences = context_.sequences;
    a.most_tokens = shape.max_tokens;
    a.out = scores;
    a.sequence_stride = shape.kv_heads * shape.max_tokens;
    a.head_stride = shape.max_tokens;
    a.maximum = score.merged == group_merge::maximum;
    detail::launch_list_weights(*context_.device, a, [&](auto& w) {
      w.how = static_cast<std::int32_t>(score.smooth.how);
      w.width = static_cast<std::int32_t>(score.smooth.width);
    });
  }

 private:
  decode_context<Rule, D> context_;
  array_of<D, std::int32_t> all_;  ///< 0, 1, 2, ...
};

}  // namespace kvpolicy::gpu
