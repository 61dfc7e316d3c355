// Parts that do not fit do not compile, and the first error says which part lacks which member. A scorer names the signals
// that it reads, so that an adapter can be asked for them.
#include <kvpolicy/kvpolicy.hpp>

using namespace kvpolicy;

#ifndef TRIGGER
#define TRIGGER triggers::prefill
#endif
#ifndef NAMES
#define NAMES needs
#endif
#ifndef WHOSE
#define WHOSE of
#endif
#ifndef SCORE_MEMBER
#define SCORE_MEMBER score
#endif
#ifndef BUDGET
#define BUDGET budgets::tokens
#endif
#ifndef SELECT
#define SELECT selectors::top
#endif
#ifndef POOL
#define POOL pools::none
#endif

struct constant {
  static constexpr signals NAMES = signals::none;
  static constexpr scope granularity = scope::request;
  static constexpr scored WHOSE = scored::tokens;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void SCORE_MEMBER(Input const&, table<float> out, Exec&) const {
    for (std::int64_t token = 0; token < out.columns; ++token) out(0, token) = 1;
  }
};

static_assert(scorer<constant>);

struct lazy_pool {
  static constexpr signals needs = signals::none;
  pools::none::summaries start(cache_shape const&, segments::tokens const&) const { return {}; }
};

auto const made =
    policy{keep{segments::tokens{}, POOL{}, constant{}, BUDGET{}, SELECT{}, windows::tokens{}, TRIGGER{}}, keep_all{}};
