// A scorer names the signals that it reads, so that an adapter can be asked for them.
#include <kvpolicy/kvpolicy.hpp>

using namespace kvpolicy;

#ifndef NAMES
#define NAMES needs
#endif
#ifndef WHOSE
#define WHOSE of
#endif

struct constant {
  static constexpr signals NAMES = signals::none;
  static constexpr scope granularity = scope::request;
  static constexpr scored WHOSE = scored::units;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void score(Input const&, table<float> out, Exec&) const {
    for (std::int64_t unit = 0; unit < out.columns; ++unit) out(0, unit) = 1;
  }
};

static_assert(scorer<constant>);

auto const rule = keep{segments::tokens{}, pools::none{},         constant{}, budgets::tokens{}, selectors::top{},
                       windows::tokens{},  triggers::every_step{}};
