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

  pool::none::summaries start(cache_shape const&, segment::tokens const&) const { return {}; }

  template <kv_cache_view View, executor Exec>
  void update(pool::none::summaries&, View const&, layer_id, head_range, std::int64_t, Exec&) const {}
};

static_assert(pooler<windowed_pool, segment::tokens>);

auto const act = keep{segment::tokens{}, windowed_pool{},  score::recency{},     budget::tokens{},
                      select::top{},     window::tokens{}, trigger::every_step{}};
