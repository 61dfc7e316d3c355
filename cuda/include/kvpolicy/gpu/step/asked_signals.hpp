// The signals that a decoder's policy needs, and whether they come.
#pragma once

#include <string>

#include "kvpolicy/detail/signal_checks.hpp"
#include "kvpolicy/gpu/base/block.hpp"
#include "kvpolicy/rule.hpp"

namespace kvpolicy::gpu::detail {

/// Checks what a decoder is given of a prompt, and that outcomes of steps come at all.
class asked_signals {
 public:
  asked_signals(requirements const& of, std::int64_t layers) noexcept
      : needs_(of.needs), queries_(of.observation_queries), unit_(of.unit), layers_(of.next_step ? layers : 0) {}

  /// Throws invalid_value, unsupported.
  template <class View>
  void check_prompt(View const& one, layer_id layer, prompt_signals const& prompt, std::int64_t begun,
                    cache_shape const& shape) const {
    check_view(one, layer, needs_ | signals::keys, shape);
    check_signals(prompt, needs_, queries_, begun, one.tokens(), shape);
    check_rotated_first(one, layer, needs_, prompt.rope, shape);
  }
  /// Throws invalid_value without ids that the policy needs.
  void check_step(buffer<std::int32_t const> ids) const {
    KVPOLICY_EXPECTS(ids.data != nullptr || !contains(needs_, signals::token_ids),
                     "the policy needs the current tokens' ids, and was given none");
  }
  /// A step is planned. Throws invalid_value where a policy of logits has gone a whole unit of steps without any, and where one
  /// that chooses for the next step was not asked to.
  void plan() {
    KVPOLICY_EXPECTS(chosen_ <= renewed_, "the policy chooses for the next step, and renew() was called for " +
                                              std::to_string(renewed_) + " of the " + std::to_string(chosen_) +
                                              " layers that were read; call it after each layer's attention, or within the "
                                              "captured step");
    chosen_ = renewed_ = 0;
    KVPOLICY_EXPECTS(observed_ || !contains(needs_, signals::logits) || planned_ < unit_,
                     std::to_string(planned_) +
                         " steps were planned and observe() was never called, but the policy reads the logits of each; call it "
                         "after each step's attention, or within the captured step");
    ++planned_;
  }
  /// observe() was called. In a captured step it is called once.
  void observed() noexcept { observed_ = true; }
  /// choose(), or renew(), was called for a layer.
  void chosen() noexcept { chosen_ += layers_ > 0 ? 1 : 0; }
  void renewed() noexcept { ++renewed_; }

 private:
  signals needs_ = signals::none;
  std::int64_t queries_ = 0;  ///< of a prompt
  std::int64_t unit_ = 0;     ///< steps that a policy of logits may be without them
  std::int64_t layers_ = 0;   ///< of the model, where choices serve the next step
  std::int64_t chosen_ = 0;   ///< layers of this step
  std::int64_t renewed_ = 0;  ///< of them, those that chose for the next one
  std::int64_t planned_ = 0;
  bool observed_ = false;
};

}  // namespace kvpolicy::gpu::detail
