// A part describes: it owns nothing and hides nothing.
#include <kvpolicy/kvpolicy.hpp>

#include <vector>

using namespace kvpolicy;

#ifndef MEMBER
#define MEMBER int width = 1
#endif

struct windowed_pool {
  static constexpr signals needs = signals::none;
  MEMBER;

  pools::none::summaries start(cache_shape const&, segments::tokens const&) const { return {}; }

  template <kv_cache_view View, executor Exec>
  void update(pools::none::summaries&, View const&, layer_id, head_range, std::int64_t, Exec&) const {}
};

static_assert(pooler<windowed_pool, segments::tokens>);

auto const rule = keep{segments::tokens{}, windowed_pool{},   scorers::recency{},    budgets::tokens{},
                       selectors::top{},   windows::tokens{}, triggers::every_step{}};
