// The lists that a rule's state holds: as many for each layer as its scope asks for.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy {

/// A number of lists for each layer, or for the request: as many as a scope asks for.
class layer_lists {
 public:
  layer_lists(scope granularity, cache_shape const& shape)
      : granularity_(granularity),
        lists_(static_cast<std::size_t>(granularity == scope::head ? shape.kv_heads : 1)),
        all_(lists_ * static_cast<std::size_t>(granularity == scope::request ? 1 : shape.layers)) {}
  std::size_t slot(layer_id layer) const noexcept {
    return granularity_ == scope::request ? 0 : static_cast<std::size_t>(layer.value);
  }
  std::size_t slots() const noexcept { return all_.size() / lists_; }
  std::span<range_list> of(layer_id layer) noexcept { return std::span(all_).subspan(slot(layer) * lists_, lists_); }
  std::span<range_list const> of(layer_id layer) const noexcept {
    return std::span(all_).subspan(slot(layer) * lists_, lists_);
  }
  std::vector<range_list>& all() noexcept { return all_; }
  scope granularity() const noexcept { return granularity_; }
  template <class Archive>
  void archive(Archive& a) {
    a(all_);
  }

 private:
  scope granularity_;
  std::size_t lists_;
  std::vector<range_list> all_;
};

/// Which tokens a retrieve chose for one list, by their index among the retained: ascending ranges, neighbours merged.
struct choice {
  struct range {
    std::int64_t begin;
    std::int64_t end;
  };
  std::vector<range> ranges;
  bool decided = false;
  std::int64_t at = 0;     ///< tokens of the sequence at that time
  std::int64_t since = 0;  ///< what is behind was protected then, or came later; it stays until the next choice

  template <class Archive>
  void archive(Archive& a) {
    a(ranges, decided, at, since);
  }
  void clear() noexcept {
    ranges.clear();
    decided = false;
  }
  void add(std::int64_t begin, std::int64_t end) {
    if (!ranges.empty() && ranges.back().end == begin) ranges.back().end = end;
    else ranges.push_back({begin, end});
  }
  /// Calls add(begin, end, reason) for what a step reads of `tokens` tokens, ascending: what was chosen, and what is protected.
  /// What was protected when the choice was made, and came since, is read too, unless the window `slides`.
  template <class Add>
  void compose(protected_tokens const& safe, std::int64_t tokens, bool slides, Add add) {
    add(0, safe.sink_end, reason::sink);
    since = slides ? safe.recent_begin : std::min(since, safe.recent_begin);  // a tail may have been removed
    std::int64_t const behind = std::max(safe.sink_end, since);
    for (auto const& chosen : ranges) add(std::max(chosen.begin, safe.sink_end), std::min(chosen.end, behind), reason::scored);
    add(behind, safe.open_begin, reason::recent);
    add(safe.open_begin, tokens, reason::open);
  }
};

/// Of protected tokens, as many as a list may keep at all: sinks first, then the most recent.
inline protected_tokens clipped(protected_tokens safe, std::int64_t tokens, std::int64_t most) noexcept {
  if (safe.counted <= most) return safe;
  safe.sink_end = std::min(safe.sink_end, safe.beside + most);
  safe.recent_begin = std::max(safe.recent_begin, tokens - (most - (safe.sink_end - safe.beside)));
  safe.open_begin = std::max(safe.open_begin, safe.recent_begin);
  safe.counted = safe.sink_end - safe.beside + tokens - safe.recent_begin;
  return safe;
}

}  // namespace kvpolicy
