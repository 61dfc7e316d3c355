// Pool: no summaries.
#pragma once

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/segments/tokens.hpp"

namespace kvpolicy::pools {

/// Keeps no summaries. The scorer reads keys itself, or nothing.
struct none {
  static constexpr signals needs = signals::none;

  struct summaries {
    void cut(layer_id, head_range, std::int64_t) noexcept {}
    template <class Archive>
    void archive(Archive& a) {
      static_cast<void>(a);
    }
  };

  template <segmenter Segment>
  summaries start(cache_shape const&, Segment const&) const {
    return {};
  }

  template <kv_cache_view View, executor Exec>
  void update(summaries&, View const&, layer_id, head_range, std::int64_t, Exec&) const {}
};

static_assert(pooler<none, segments::tokens>);

}  // namespace kvpolicy::pools
