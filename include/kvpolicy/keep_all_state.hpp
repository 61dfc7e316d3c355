// The states of acts that keep everything: nothing to remember.
#pragma once

#include "kvpolicy/retain_state.hpp"
#include "kvpolicy/retrieve_state.hpp"

namespace kvpolicy {

/// Every token stays.
template <>
class retain_state<keep_all> {
 public:
  retain_state(keep_all const&, cache_shape const&) { kept_.reserve(1); }

  std::span<range_list const> lists(layer_id) const noexcept { return {&kept_, 1}; }
  std::int64_t revision(layer_id) const noexcept { return 0; }
  static std::size_t ranges(keep_all const&, cache_shape const&) noexcept { return 1; }
  void truncate(std::int64_t) noexcept {}
  void restart() noexcept {}
  template <class View, class Exec>
  void prefill(keep_all const&, View const&, layer_id, prompt_signals const&, Exec&) noexcept {}
  template <class View, class Exec>
  void step(keep_all const&, View const& view, layer_id, step_signals const&, Exec&) {
    kept_.clear();
    append(kept_, 0, view.tokens(), reason::open);
  }
  template <class Exec>
  void observe(keep_all const&, std::int64_t, step_outcome const&, Exec&) noexcept {}

 private:
  range_list kept_;
};

/// Every token that is there is read: nothing to remember.
template <>
class retrieve_state<keep_all> {
 public:
  retrieve_state(keep_all const&, cache_shape const&) noexcept {}

  void reserve(std::size_t) noexcept {}
  std::span<range_list const> lists(layer_id) const noexcept { return {}; }
  void restart() noexcept {}
  void cut(layer_id, head_range, std::int64_t) noexcept {}
  void truncate(std::int64_t) noexcept {}
  template <class View, class Exec>
  void prefill(keep_all const&, View const&, layer_id, retained_tokens const&, prompt_signals const&, Exec&) noexcept {}
  template <class View, class Exec>
  void choose(keep_all const&, View const&, layer_id, retained_tokens const&, step_signals const&, Exec&) noexcept {}
  template <class Exec>
  void observe(keep_all const&, std::int64_t, step_outcome const&, Exec&) noexcept {}
};

}  // namespace kvpolicy
