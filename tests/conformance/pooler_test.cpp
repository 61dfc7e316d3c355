#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <span>
#include <vector>

#include "conformance/executors.hpp"
#include "conformance/random_cache.hpp"
#include "kvpolicy/exec/host_pool.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

/// A summary's bytes, so that any NaN equals itself.
template <class T>
void add_bytes(std::vector<std::byte>& to, T const* from, std::int64_t count) {
  auto const* const bytes = reinterpret_cast<std::byte const*>(from);
  to.insert(to.end(), bytes, bytes + count * static_cast<std::int64_t>(sizeof(T)));
}

/// Heads are folded and cut together, or each by itself.
template <pools::bounds::kind How>
struct bounds_model {
  static constexpr bool by_head = true;
  pools::bounds pool{How};
  segments::pages segment;
  explicit bounds_model(cache_shape const&, random_source& random)
      : segment{static_cast<std::int32_t>(random.between(1, 40))} {}
  void learn(pools::bounds::summaries&, std::int64_t) const {}
  std::int64_t forget(pools::bounds::summaries&, std::int64_t tokens, random_source&) const { return tokens; }
  template <class Exec>
  void settle(pools::bounds::summaries&, Exec&) const {}
  /// Everything that stands for the first `tokens` tokens.
  static std::vector<std::byte> content(pools::bounds::summaries& from, cache_shape const& shape, std::int64_t tokens) {
    std::vector<std::byte> made;
    std::int64_t const units = (tokens + from.unit_size - 1) / from.unit_size;
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      bounds_table const bounds = from.of({l});
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        add_bytes(made, bounds.unit(h, 0), units * 2 * shape.head_dim * size_of(shape.type));
      }
    }
    return made;
  }
};
using range_model = bounds_model<pools::bounds::kind::range>;
using spread_model = bounds_model<pools::bounds::kind::mean_deviation>;

struct mean_model {
  static constexpr bool by_head = false;
  pools::hierarchical_mean pool;
  segments::hierarchy segment;
  explicit mean_model(cache_shape const&, random_source& random)
      : segment{static_cast<std::int32_t>(random.between(1, 20)), static_cast<std::int32_t>(random.between(1, 5)),
                static_cast<std::int32_t>(random.between(1, 5))} {}
  void learn(pools::hierarchical_mean::summaries&, std::int64_t) const {}
  std::int64_t forget(pools::hierarchical_mean::summaries&, std::int64_t tokens, random_source&) const { return tokens; }
  template <class Exec>
  void settle(pools::hierarchical_mean::summaries& summaries, Exec& exec) const {
    pool.refresh(summaries, exec);
  }
  static std::vector<std::byte> content(pools::hierarchical_mean::summaries& from, cache_shape const&, std::int64_t) {
    std::vector<std::byte> made;
    for (std::size_t l = 0; l < 3; ++l) {
      table<float> const level = from.of(l);
      for (std::int64_t u = 0; u < level.rows; ++u) add_bytes(made, level.row(u), level.columns);
    }
    return made;
  }
};

/// Ids are the tokens' own; a third of them ends a sentence.
struct sentence_model {
  static constexpr bool by_head = true;
  pools::unit_mean pool;
  std::vector<std::uint8_t> boundary{1, 0, 0};
  segments::sentences segment;
  std::vector<std::int32_t> ids;
  explicit sentence_model(cache_shape const& shape, random_source& random)
      : pool{.spread = random.one_in(2)},
        segment{.longest = static_cast<std::int32_t>(random.between(4, 30)),
                .shortest = static_cast<std::int32_t>(random.between(1, 4))} {
    for (std::int64_t t = 0; t < shape.max_tokens; ++t) ids.push_back(static_cast<std::int32_t>(random.between(0, 2)));
  }
  segments::sentences cut_by() const {
    segments::sentences with = segment;
    with.boundary = boundary;
    return with;
  }
  void learn(pools::unit_mean::summaries& into, std::int64_t tokens) const {
    auto const known = static_cast<std::size_t>(into.tokens);
    into.extend(cut_by(), into.tokens, std::span(ids).subspan(known, static_cast<std::size_t>(tokens) - known));
  }
  /// Tokens are replaced by others, at least one of them at once: what ends exactly at a cut is closed by the next token.
  std::int64_t forget(pools::unit_mean::summaries& of, std::int64_t tokens, random_source& random) {
    of.truncate(tokens);
    for (auto t = static_cast<std::size_t>(tokens); t < ids.size(); ++t)
      ids[t] = static_cast<std::int32_t>(random.between(0, 2));
    tokens = std::min<std::int64_t>(tokens + 1, std::ssize(ids));
    learn(of, tokens);
    return tokens;
  }
  template <class Exec>
  void settle(pools::unit_mean::summaries&, Exec&) const {}
  static std::vector<std::byte> content(pools::unit_mean::summaries& from, cache_shape const& shape, std::int64_t) {
    std::vector<std::byte> made;
    add_bytes(made, from.ends.data(), from.units());
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        add_bytes(made, from.index_ends({l}, h), from.units());
        if (from.spread) {
          bounds_table const spreads = from.bounds({l});
          add_bytes(made, spreads.unit(h, 0), spreads.unit(h, from.units()) - spreads.unit(h, 0));
          continue;
        }
        table<float> const means = from.of({l}, h);
        for (std::int64_t u = 0; u < means.rows; ++u) add_bytes(made, means.row(u), means.columns);
      }
    }
    return made;
  }
};

struct none_model {
  static constexpr bool by_head = true;
  pools::none pool;
  segments::tokens segment;
  explicit none_model(cache_shape const&, random_source&) {}
  void learn(pools::none::summaries&, std::int64_t) const {}
  std::int64_t forget(pools::none::summaries&, std::int64_t tokens, random_source&) const { return tokens; }
  template <class Exec>
  void settle(pools::none::summaries&, Exec&) const {}
  static std::vector<std::byte> content(pools::none::summaries&, cache_shape const&, std::int64_t) { return {}; }
};

// Bounds are exact; means are built in the same order whatever the cuts, so they too must be equal to the last bit.
template <class On, class Model>
void grow_cut_and_regrow(std::uint64_t seed, int rounds) {
  random_source random(seed);
  for (int round = 0; round < rounds; ++round) {
    cache_shape shape = random_shape(random, 200, random.between(1, 3));
    shape.head_dim = random.between(1, 24);
    random_cache cache = random_cache_of(shape, random);
    Model model(shape, random);
    bool const apart = Model::by_head && random.one_in(2);
    auto const each_batch = [&](auto const& work) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        for (std::int64_t h = 0; h < (apart ? shape.kv_heads : 1); ++h) {
          work(layer_id{l}, apart ? head_range{h, 1} : head_range{0, shape.kv_heads});
        }
      }
    };
    On on(shape);
    bool same = true;
    on.run([&](auto& exec) {
      auto grown = model.pool.start(shape, model.segment);
      auto const reach = [&](auto& summaries, std::int64_t n) {
        model.learn(summaries, n);
        each_batch([&](layer_id l, head_range heads) { model.pool.update(summaries, own_view{&cache, n}, l, heads, n, exec); });
      };
      std::int64_t n = 0;
      for (int event = 0; event < 12; ++event) {
        if (random.one_in(3)) {
          n = random.between(0, n);
          each_batch([&](layer_id l, head_range heads) { grown.cut(l, heads, n); });
          cache.fill(n, shape.max_tokens, random);
          n = model.forget(grown, n, random);
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

TEMPLATE_TEST_CASE("a pooler that grew in any cuts, and was cut back, equals a fresh one", "[pool]", range_model, spread_model,
                   mean_model, sentence_model, none_model) {
  grow_cut_and_regrow<on_host, TestType>(81, 60);
#if defined(KVPOLICY_TEST_SIMD)
  grow_cut_and_regrow<on_simd, TestType>(82, 120);
  grow_cut_and_regrow<on_team, TestType>(83, 20);
#endif
#if defined(KVPOLICY_TEST_GPU_EMULATOR)
  grow_cut_and_regrow<on_gpu_emulator, TestType>(84, 10);
#endif
}

}  // namespace
}  // namespace kvpolicy_test
