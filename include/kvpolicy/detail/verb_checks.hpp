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
      check_indices(keys, shape.max_tokens);
      // Layers share an engine's table. A store's tables, of each head and token, are its own, and too long for every step.
      if (layer.value == 0 && keys.page_table_stride == 0) check_last_page(keys);
      else check_newest_page(keys);
    }
  }
  /// A prompt's choice reads every row, where the view does not say which are there. Throws invalid_value.
  template <class View>
  void all_rows(View const& view, layer_id layer, signals needs, prompt_signals const& prompt) const {
    if constexpr (std::same_as<typename View::memory, host_memory>) {
      if (!contains(needs, signals::keys)) return;
      if (prompt.resident.empty()) return check_pages(view.keys(layer));
      bool const one = prompt.resident.size() == 1;
      check_read_pages(view.keys(layer), {one ? scope::layer : scope::head, prompt.resident, view.shape().kv_heads},
                       "the keys that prompt_signals::resident names");
    }
  }
  /// As rows(); and a step that weighs every retained key finds its row. Throws invalid_value, unsupported.
  template <class View, class Rules>
  void step_rows(View const& view, layer_id layer, Rules const& rules, cache_shape const& shape) {
    rows(view, layer, rules.needs(), shape);
    if constexpr (std::same_as<typename View::memory, host_memory>) {
      if (!contains(rules.needs(), signals::keys) || rules.retained(layer).lists().empty()) return;
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        if (rules.weighs_all(layer, h))
          check_read_pages(view.keys(layer), h, rules.retained(layer).of({h}), "the retained keys", view.tokens() - 1);
      }
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
