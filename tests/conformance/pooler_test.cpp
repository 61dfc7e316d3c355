#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/random_cache.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

struct bounds_model {
  pool::bounds pool;
  segment::pages segment;
  explicit bounds_model(random_source& random) : segment{static_cast<std::int32_t>(random.between(1, 40))} {}
  template <class Exec>
  void settle(pool::bounds::summaries&, Exec&) const {}
  /// Everything that stands for the first `tokens` tokens.
  static std::vector<float> content(pool::bounds::summaries& from, cache_shape const& shape, std::int64_t tokens) {
    std::vector<float> made;
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      bounds_table const bounds = from.of({l});
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        std::int64_t const units = (tokens + from.unit_size - 1) / from.unit_size;
        std::int64_t const bytes = units * 2 * shape.head_dim * size_of(shape.type);
        for (std::int64_t i = 0; i < bytes; ++i) made.push_back(static_cast<float>(bounds.unit(h, 0)[i]));
      }
    }
    return made;
  }
};

struct mean_model {
  pool::hierarchical_mean pool;
  segment::hierarchy segment;
  explicit mean_model(random_source& random)
      : segment{static_cast<std::int32_t>(random.between(1, 20)), static_cast<std::int32_t>(random.between(1, 5)),
                static_cast<std::int32_t>(random.between(1, 5))} {}
  template <class Exec>
  void settle(pool::hierarchical_mean::summaries& summaries, Exec& exec) const {
    pool.refresh(summaries, exec);
  }
  static std::vector<float> content(pool::hierarchical_mean::summaries& from, cache_shape const&, std::int64_t) {
    std::vector<float> made;
    for (std::size_t l = 0; l < 3; ++l) {
      table<float> const level = from.of(l);
      for (std::int64_t u = 0; u < level.rows; ++u) made.insert(made.end(), level.row(u), level.row(u) + level.columns);
    }
    return made;
  }
};

struct none_model {
  pool::none pool;
  segment::tokens segment;
  explicit none_model(random_source&) {}
  template <class Exec>
  void settle(pool::none::summaries&, Exec&) const {}
  static std::vector<float> content(pool::none::summaries&, cache_shape const&, std::int64_t) { return {}; }
};

// Bounds are exact; means are built in the same order whatever the cuts, so they too must be equal to the last bit.
template <class On, class Model>
void grow_cut_and_regrow(std::uint64_t seed, int rounds) {
  random_source random(seed);
  for (int round = 0; round < rounds; ++round) {
    cache_shape shape = random_shape(random, 200, random.between(1, 3));
    shape.head_dim = random.between(1, 24);
    random_cache cache = random_cache_of(shape, random);
    Model const model(random);
    On on(shape);
    bool same = true;
    on.run([&](auto& exec) {
      auto grown = model.pool.start(shape, model.segment);
      auto const reach = [&](auto& summaries, std::int64_t n) {
        for (std::int64_t l = 0; l < shape.layers; ++l) model.pool.update(summaries, own_view{&cache, n}, {l}, n, exec);
      };
      std::int64_t n = 0;
      for (int event = 0; event < 12; ++event) {
        if (random.one_in(3)) {
          n = random.between(0, n);
          grown.truncate(n);
          cache.fill(n, shape.max_tokens, random);
        }
        n = random.between(n, shape.max_tokens);
        if (n == 0) continue;
        reach(grown, n);
        if (random.one_in(2)) reach(grown, n);  // a second time changes nothing
        if (random.one_in(2)) continue;         // not looked at between two changes
        model.settle(grown, exec);
        auto fresh = model.pool.start(shape, model.segment);
        reach(fresh, n);
        model.settle(fresh, exec);
        same = same && Model::content(grown, shape, n) == Model::content(fresh, shape, n);
      }
    });
    INFO("round " << round);
    REQUIRE(same);
  }
}

TEMPLATE_TEST_CASE("a pooler that grew in any cuts, and was cut back, equals a fresh one", "[pool]", bounds_model, mean_model,
                   none_model) {
  grow_cut_and_regrow<on_host, TestType>(81, 60);
  grow_cut_and_regrow<on_simd, TestType>(82, 120);
  grow_cut_and_regrow<on_team, TestType>(83, 20);
}

}  // namespace
}  // namespace kvpolicy_test
