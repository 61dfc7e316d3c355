// What a request's verbs check beside their signals, and what they remember to do so.
#pragma once

#include <string>

#include "kvpolicy/detail/signal_checks.hpp"

namespace kvpolicy {

/// Remembers where layer 0's rows were, and the steps without an outcome.
class verb_checks {
 public:
  /// The view is the request's cache, its layers have strides, and the last tokens a page of their own. Throws
  /// invalid_value, unsupported.
  template <class View>
  void rows(View const& view, layer_id layer, signals needs, cache_shape const& shape) {
    check_view(view, layer, needs, shape);
    if (!contains(needs, signals::keys)) return;
    check_layer_apart(view, layer, first_);
    if constexpr (std::same_as<typename View::memory, host_memory>) {
      check_indices(view.keys(layer), shape.max_tokens);
      check_table(view.keys(layer), layer);
      if (view.values(layer).pages != view.keys(layer).pages) check_table(view.values(layer), layer);
    }
  }
  /// A prompt's choice reads every row, where the view does not say which are there, and none is a value. Throws
  /// invalid_value.
  template <class View>
  void all_rows(View const& view, layer_id layer, signals needs, prompt_signals const& prompt) const {
    if constexpr (std::same_as<typename View::memory, host_memory>) {
      if (!contains(needs, signals::keys)) return;
      check_pools_apart(view.keys(layer), view.values(layer));
      if (prompt.resident.empty()) return check_pages(view.keys(layer));
      bool const one = prompt.resident.size() == 1;
      check_read_pages(view.keys(layer), {one ? scope::layer : scope::head, prompt.resident, view.shape().kv_heads},
                       "the keys that prompt_signals::resident names");
    }
  }
  /// As rows(); and a step finds the rows of the retained keys that it weighs whatever it chooses. Throws invalid_value,
  /// unsupported.
  template <class View, class Rules>
  void step_rows(View const& view, layer_id layer, Rules const& rules, cache_shape const& shape) {
    rows(view, layer, rules.needs(), shape);
    if constexpr (requires { view.of_store; }) check_store(view, layer);
    if constexpr (std::same_as<typename View::memory, host_memory>) {
      if (!contains(rules.needs(), signals::keys) || rules.retained(layer).lists().empty()) return;
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        check_read_pages(view.keys(layer), h, rules.retained(layer).of({h}), "the retained keys", view.tokens() - 1,
                         rules.weighs(layer, h));
      }
    }
  }
  /// A policy that reads every step's logits was not left without them for a whole unit, and got those of all of the last
  /// step's tokens that stayed, or of none. Throws invalid_value.
  void outcomes(layer_id layer, signals needs, std::int64_t unit, std::int64_t observed, std::int64_t stayed) const {
    if (layer.value != 0 || !contains(needs, signals::logits)) return;
    KVPOLICY_EXPECTS(observed == 0 || observed >= stayed,
                     "of the last step " + std::to_string(stayed) + " tokens stayed, and " + std::to_string(observed) +
                         " were observed; call observe() once for each that stays, with its logits");
    KVPOLICY_EXPECTS(silent_ < unit, std::to_string(silent_) +
                                         " steps were made and none was observed, but the policy reads the logits of "
                                         "each; call observe() after every step, or choose a trigger that reads none");
  }
  void step_begins() noexcept { ++silent_; }
  void step_observed() noexcept { silent_ = 0; }

 private:
  /// Layers share an engine's table. A store's tables, of each head and token, are its own, and too long for every step.
  static void check_table(basic_rows<host_memory> const& of, layer_id layer) {
    if (layer.value == 0 && of.page_table_stride == 0) check_last_page(of);
    else check_newest_page(of);
  }
  /// A store has no rows behind the step's. Throws invalid_value.
  template <class View>
  static void check_store(View const& view, layer_id layer) {
    if (!view.of_store) return;
    std::int64_t const there = view.key_rows[layer.value].tokens;
    KVPOLICY_EXPECTS(there <= view.tokens(), "the store has rows of " + std::to_string(there) + " tokens in layer " +
                                                 std::to_string(layer.value) + ", and the step is on " +
                                                 std::to_string(view.tokens()) +
                                                 "; call row_store::truncate() where tokens, or drafts, did not stay");
  }

  std::int64_t silent_ = 0;  ///< steps since the last one that was observed
  layer_place first_;        ///< layer 0's, of the last verb
};

}  // namespace kvpolicy
