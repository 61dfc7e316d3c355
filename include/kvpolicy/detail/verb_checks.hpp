// What a request's verbs check beside their signals, and what they remember to do so.
#pragma once

#include <string>

#include "kvpolicy/detail/signal_checks.hpp"

namespace kvpolicy {

/// Remembers where layer 0's keys were, and the steps without an outcome.
class verb_checks {
 public:
  /// The view is the request's cache, each layer has rows of its own, and the last tokens a page of their own. Throws
  /// invalid_value, unsupported.
  template <class View>
  void rows(View const& view, layer_id layer, signals needs, cache_shape const& shape) {
    check_view(view, layer, needs, shape);
    if (!contains(needs, signals::keys)) return;
    check_layer_apart(view, layer, first_keys_);
    if constexpr (std::same_as<typename View::memory, host_memory>) {
      auto const keys = view.keys(layer);
      // Layers share an engine's table. A store's tables, of each head and token, are its own, and too long for every step.
      if (layer.value == 0 && keys.page_table_stride == 0) check_last_page(keys);
      else check_newest_page(keys);
    }
  }
  /// A prompt's choice reads every row, where the view does not say which are there. Throws invalid_value.
  template <class View>
  void all_rows(View const& view, layer_id layer, signals needs, prompt_signals const& prompt) const {
    if constexpr (std::same_as<typename View::memory, host_memory>) {
      if (contains(needs, signals::keys) && prompt.resident.empty()) check_pages(view.keys(layer));
    }
  }
  /// A policy that reads every step's logits was not left without them for a whole unit. Throws invalid_value.
  void outcomes(layer_id layer, signals needs, std::int64_t unit) const {
    if (layer.value != 0 || !contains(needs, signals::logits)) return;
    KVPOLICY_EXPECTS(silent_ < unit, std::to_string(silent_) +
                                         " steps were made and none was observed, but the policy reads the logits of "
                                         "each; call observe() after every step, or choose a trigger that reads none");
  }
  void step_begins() noexcept { ++silent_; }
  void step_observed() noexcept { silent_ = 0; }

 private:
  std::int64_t silent_ = 0;           ///< steps since the last one that was observed
  void const* first_keys_ = nullptr;  ///< layer 0's, of the last verb
};

}  // namespace kvpolicy
