// Snippets of docs/adding-a-part.md, as the page has them: compiled, not run.
#include <kvpolicy/compose.hpp>
#include <kvpolicy/kvpolicy.hpp>
#include <kvpolicy/testing/check_policy.hpp>
#include <kvpolicy/testing/check_scorer.hpp>
#include <kvpolicy/testing/check_view.hpp>

namespace kv = kvpolicy;

namespace composed {
constexpr auto by_value = kv::score_tokens([](auto key, auto value, auto age) { return norm(value); });
auto const retains = kv::retain(by_value, {.tokens = 1024, .sinks = 4});
auto const reads = kv::retrieve(by_value, {.tokens = 256, .page = 8, .recent = 64});
auto const both = retains + kv::presets::quest{.tokens = 256};
}  // namespace composed

struct short_keys {
  static constexpr kv::signals needs = kv::signals::keys;
  static constexpr kv::scope granularity = kv::scope::head;
  static constexpr kv::scored of = kv::scored::tokens;
  static constexpr kv::no_memory start(kv::cache_shape const&) noexcept { return {}; }

  template <class Input, kv::executor Exec>
  void score(Input const& input, kv::table<float> out, Exec& exec) const;
};
template <class Input, kv::executor Exec>
void short_keys::score(Input const& input, kv::table<float> out, Exec& exec) const {
  kv::row_norms(input.keys(), out, exec);
}
static_assert(kv::scorer<short_keys>);

struct my_pool {
  static constexpr kv::signals needs = kv::signals::keys;
  struct summaries {
    void cut(kv::layer_id, kv::head_range, std::int64_t tokens);
  };
  template <kv::segmenter Segment>
  summaries start(kv::cache_shape const&, Segment const&) const;
  template <kv::kv_cache_view View, kv::executor Exec>
  void update(summaries&, View const&, kv::layer_id, kv::head_range, std::int64_t tokens, Exec&) const;
};
void my_pool::summaries::cut(kv::layer_id, kv::head_range, std::int64_t) {}
template <kv::segmenter Segment>
my_pool::summaries my_pool::start(kv::cache_shape const&, Segment const&) const {
  return {};
}
template <kv::kv_cache_view View, kv::executor Exec>
void my_pool::update(summaries&, View const&, kv::layer_id, kv::head_range, std::int64_t, Exec&) const {}

struct my_score : short_keys {
  static constexpr kv::scored of = kv::scored::units;
  template <class Input, kv::executor Exec>
  void score(Input const&, kv::table<float> out, Exec&) const {
    for (std::int64_t h = 0; h < out.rows; ++h) std::fill_n(out.row(h), out.columns, 0.f);
  }
};
using my_preset = kv::presets::quest;

void checks(kv::strided_view<> const& my_engine_view);
void checks(kv::strided_view<> const& my_engine_view) {
  auto const row_of = [](kv::layer_id, kv::head_id, kv::token_index, bool, std::span<float>) {};
  kv::testing::check_scorer(short_keys{});
  kv::testing::check_scorer(my_score{}, my_pool{}, kv::segments::pages{8});
  kv::testing::check_policy(my_preset{.tokens = 40});
  kv::testing::check_view(my_engine_view, row_of);
}
