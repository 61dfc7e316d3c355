// The state of a rule that keeps everything.
#pragma once

#include "kvpolicy/detail/rule_state.hpp"

namespace kvpolicy {

/// As a retain: every token stays. As a retrieve it is never asked: what is retained is read.
class keep_all_state {
 public:
  keep_all_state() { kept_.reserve(1); }

  std::span<range_list const> lists(layer_id) const noexcept { return {&kept_, 1}; }
  std::span<range_list const> ahead(layer_id layer) const noexcept { return lists(layer); }
  std::int64_t revision(layer_id) const noexcept { return 0; }
  std::int64_t max_ranges() const noexcept { return 1; }
  void reserve(std::int64_t, std::int64_t) const noexcept {}
  std::int64_t always_read(layer_id, std::int64_t) const noexcept { return 0; }
  bool by_steps() const noexcept { return false; }
  void truncate(std::int64_t tokens) { kvpolicy::truncate(kept_, tokens); }
  void cut(layer_id, head_range, std::int64_t) noexcept {}
  template <class View, class Exec>
  void prefill(View const& view, layer_id, retained_tokens const&, prompt_signals const&, Exec&) noexcept {
    append(kept_, 0, view.tokens(), reason::open);
  }
  void wait(layer_id, std::int64_t tokens, prompt_signals const&) noexcept { append(kept_, 0, tokens, reason::open); }
  template <class View, class Exec>
  void choose(View const& view, layer_id, retained_tokens const&, step_signals const&, Exec&) noexcept {
    append(kept_, 0, view.tokens(), reason::open);
  }
  template <class Exec>
  void observe(std::int64_t, step_outcome const&, Exec&) noexcept {}
  void visit_statistics(statistic_visitor const&) const noexcept {}
  template <class Archive>
  void archive(Archive& a) {
    a(kept_);
  }

 private:
  range_list kept_;
};

inline keep_all_state start_retain(keep_all const&, cache_shape const&) { return {}; }
inline keep_all_state start_retrieve(keep_all const&, cache_shape const&) { return {}; }

static_assert(rule_state<keep_all_state, archetype::view, archetype::executor>);

}  // namespace kvpolicy
