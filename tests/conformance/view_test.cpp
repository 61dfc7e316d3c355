#include <sys/mman.h>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/engine_batch.hpp"
#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "kvpolicy/layer_table_view.hpp"

namespace kvpolicy_test {
namespace {

/// The rows of a layer are the content: through load, and through address where they are contiguous.
template <class View>
bool holds(View const& view, random_cache const& cache, std::int64_t n) {
  cache_shape const shape = view.shape();
  std::vector<float> row(static_cast<std::size_t>(shape.head_dim));
  bool same = view.tokens() == n && shape == cache.shape();
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    rows const keys = view.keys({l});
    rows const values = view.values({l});
    same = same && keys.tokens == n && values.tokens == n && keys.heads == shape.kv_heads && keys.head_dim == shape.head_dim;
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t t = 0; t < n; ++t) {
        keys.load({h}, {t}, row);
        for (std::int64_t d = 0; d < shape.head_dim; ++d)
          same = same && row[static_cast<std::size_t>(d)] == cache.key(l, h, t, d);
        values.load({h}, {t}, row);
        for (std::int64_t d = 0; d < shape.head_dim; ++d)
          same = same && row[static_cast<std::size_t>(d)] == cache.value(l, h, t, d);
      }
    }
  }
  return same;
}

TEST_CASE("strided, paged, table-of-layers and a user's own view give the same rows for the same content", "[view]") {
  random_source random(101);
  for (int round = 0; round < 150; ++round) {
    cache_shape shape = random_shape(random, 60, random.between(1, 3));
    shape.head_dim = random.between(1, 20);
    random_cache const cache(shape, layouts[static_cast<std::size_t>(round) % layouts.size()], random.between(1, 40), random);
    std::int64_t const n = random.between(1, shape.max_tokens);
    INFO("round " << round);
    REQUIRE(holds(own_view{&cache, n}, cache, n));
    if (cache.paged()) REQUIRE(holds(cache.in_pages(n), cache, n));
    else REQUIRE(holds(cache.strided(n), cache, n));
    std::vector<rows> keys;
    std::vector<rows> values;
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      keys.push_back(cache.keys(l, shape.max_tokens));
      values.push_back(cache.values(l, shape.max_tokens));
    }
    REQUIRE(holds(layer_table_view{shape, n, keys.data(), values.data()}, cache, n));
  }
}

/// Rows of one layer are what was written to the engine's tensor.
bool holds(rows const& keys, rows const& values, engine_batch const& batch, std::int64_t s, std::int64_t l, std::int64_t n) {
  cache_shape const& shape = batch.shape();
  bool same = keys.tokens == n && values.tokens == n && keys.heads == shape.kv_heads && values.head_dim == shape.head_dim;
  std::vector<float> key(static_cast<std::size_t>(shape.head_dim));
  std::vector<float> value(key.size());
  for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
    for (std::int64_t t = 0; t < n; ++t) {
      keys.load({h}, {t}, key);
      values.load({h}, {t}, value);
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        same = same && key[static_cast<std::size_t>(d)] == batch.content(0, s, l, h, t, d) &&
               value[static_cast<std::size_t>(d)] == batch.content(1, s, l, h, t, d);
      }
    }
  }
  return same;
}

cache_shape engine_shape(random_source& random) {
  constexpr std::array<std::int64_t, 5> dims{8, 24, 5, 64, 30};
  std::int64_t const heads = random.between(1, 3);
  return {.layers = random.between(1, 3),
          .q_heads = heads * random.between(1, 3),
          .kv_heads = heads,
          .head_dim = random.pick(dims),
          .max_tokens = random.between(1, 60),
          .type = random.pick(types)};
}

TEST_CASE("views of every engine's layout give the rows that its tensor holds", "[view]") {
  random_source random(103);
  for (int round = 0; round < 110; ++round) {
    engine const which = engines[static_cast<std::size_t>(round) % engines.size()];
    cache_shape const shape = engine_shape(random);
    bool const one = which == engine::llama_cpp || which == engine::llama_cpp_transposed;
    engine_batch const batch(which, shape, one ? 1 : random.between(1, 3), std::int64_t{1} << random.between(0, 4), random);
    std::int64_t const n = random.between(1, shape.max_tokens);
    INFO("round " << round);
    for (std::int64_t s = 0; s < batch.sequences(); ++s) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        if (batch.paged()) {
          paged_view<> const view = batch.view_in_pages(s, n);
          REQUIRE(shape_of(view) == shape);
          REQUIRE(holds(view.keys({l}), view.values({l}), batch, s, l, n));
        } else {
          strided_view<> const view = batch.view_of_cells(s, n);
          REQUIRE(shape_of(view) == shape);
          REQUIRE(holds(view.keys({l}), view.values({l}), batch, s, l, n));
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("pooling and attention read every engine's layout as they read plain rows", "[view]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(104);
  for (int round = 0; round < 44; ++round) {
    engine const which = engines[static_cast<std::size_t>(round) % engines.size()];
    cache_shape shape = engine_shape(random);
    shape.layers = 1;
    engine_batch const batch(which, shape, 1, std::int64_t{1} << random.between(0, 4), random);
    std::int64_t const n = shape.max_tokens;
    std::int64_t const dim = shape.head_dim;
    rows const keys = batch.paged() ? batch.view_in_pages(0, n).keys({0}) : batch.view_of_cells(0, n).keys({0});
    rows const values = batch.paged() ? batch.view_in_pages(0, n).values({0}) : batch.view_of_cells(0, n).values({0});
    // The same content in plain rows of floats.
    std::vector<float> plain[2];
    for (std::int64_t v = 0; v < 2; ++v) {
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        for (std::int64_t t = 0; t < n; ++t) {
          for (std::int64_t d = 0; d < dim; ++d) plain[v].push_back(batch.content(v, 0, 0, h, t, d));
        }
      }
    }
    cache_shape floats = shape;
    floats.type = element_type::f32;
    strided_view<> flat = hugging_face::view(floats, n, plain[0].data(), plain[1].data());
    flat.token_count = n;
    std::vector<float> const queries = random.reals(shape.q_heads * dim);
    std::vector<range_list> const lists{{{0, static_cast<std::int32_t>(n), reason::scored}}};
    std::int64_t const units = (n + 6) / 7;
    struct results {
      std::vector<float> means, bounds, out;
    };
    auto const run = [&](rows const& k, rows const& v) {
      results made{std::vector<float>(static_cast<std::size_t>(units * shape.kv_heads * dim)),
                   {},
                   std::vector<float>(static_cast<std::size_t>(shape.q_heads * dim))};
      bounds_table bounds{nullptr, k.type, shape.kv_heads, units, dim};
      std::vector<std::byte> storage(static_cast<std::size_t>(bounds.bytes()));
      bounds.data = storage.data();
      TestType on(shape);
      on.run([&](auto& exec) {
        pool_mean(k, {7, 0, n}, table<float>{made.means.data(), units, shape.kv_heads * dim, shape.kv_heads * dim}, 0, exec);
        pool_bounds(k, {7, 0, n}, bounds, exec);
        attend(query_heads{queries.data(), shape.q_heads, dim, .3f}, k, v, selection(scope::layer, lists, shape.kv_heads),
               table<float>{made.out.data(), shape.q_heads, dim, dim}, {}, exec);
      });
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        for (std::int64_t u = 0; u < units; ++u) {
          rows const both{.base = bounds.unit(h, u),
                          .type = k.type,
                          .heads = 1,
                          .tokens = 1,
                          .head_dim = 2 * dim,
                          .dim_stride = size_of(k.type)};
          std::vector<float> row(static_cast<std::size_t>(2 * dim));
          both.load({0}, {0}, row);
          made.bounds.insert(made.bounds.end(), row.begin(), row.end());
        }
      }
      return made;
    };
    INFO("round " << round);
    if constexpr (std::same_as<TestType, on_gpu_emulator>) {
      if (keys.pack != 0) {
        REQUIRE_THROWS_AS(run(keys, values), unsupported);
        continue;
      }
    }
    results const got = run(keys, values);
    results const want = run(flat.keys({0}), flat.values({0}));
    for (std::size_t i = 0; i < want.means.size(); ++i) REQUIRE(std::abs(got.means[i] - want.means[i]) < 1e-5);
    for (std::size_t i = 0; i < want.out.size(); ++i) REQUIRE(std::abs(got.out[i] - want.out[i]) < 1e-4);
    REQUIRE(got.bounds == want.bounds);
  }
}

TEST_CASE("keys and values packed into one page are told apart by their bases", "[view]") {
  // One page: keys of 2 tokens x 3 dims, then values of the same.
  std::vector<float> pool;
  for (int i = 0; i < 24; ++i) pool.push_back(static_cast<float>(i));
  std::vector<std::int32_t> const pages{1, 0};
  auto const* const base = reinterpret_cast<std::byte const*>(pool.data());
  byte_strides strides = strides_of(page_layout::hnd, {1, 1, 1, 3, 4, element_type::f32}, 2);
  strides.page = 12 * 4;
  paged_view<> const view{.cache = {1, 1, 1, 3, 4, element_type::f32},
                          .token_count = 4,
                          .key_base = base,
                          .value_base = base + 6 * 4,
                          .key_strides = strides,
                          .value_strides = strides,
                          .page_size = 2,
                          .pages = pages.data()};
  std::vector<float> row(3);
  view.keys({0}).load({0}, {1}, row);
  REQUIRE(row == std::vector<float>{15, 16, 17});
  view.values({0}).load({0}, {2}, row);
  REQUIRE(row == std::vector<float>{6, 7, 8});
}

TEST_CASE("an address beyond 2^32 bytes and 2^31 elements does not wrap", "[view]") {
  constexpr std::int64_t far = (std::int64_t{1} << 33) + 256;  // bytes: above 2^32 elements of 16 bits
  std::byte const* const base = nullptr;
  auto const offset = [&](rows const& r, std::int64_t h, std::int64_t t) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(r.address({h}, {t})) -
                                     reinterpret_cast<std::uintptr_t>(base));
  };
  byte_strides const strides{.layer = 3 * far, .head = far, .token = far / 4, .dim = 2};
  strided_view<> const strided{{4, 3, 3, 64, 1 << 30, element_type::f16}, 1 << 30, base, base, strides, strides};
  REQUIRE(offset(strided.keys({3}), 2, 1000003) == 3 * 3 * far + 2 * far + 1000003 * (far / 4));
  std::vector<std::int32_t> pages(4, 2000000000);
  byte_strides const in_pages = strides_of(page_layout::hnd, {4, 8, 8, 128, 64, element_type::f16}, 16, far);
  paged_view<> const paged{.cache = {4, 8, 8, 128, 64, element_type::f16},
                           .token_count = 64,
                           .key_base = base,
                           .value_base = base,
                           .key_strides = in_pages,
                           .value_strides = in_pages,
                           .page_size = 16,
                           .pages = pages.data()};
  REQUIRE(offset(paged.values({3}), 5, 37) ==
          3 * far + std::int64_t{2000000000} * (8 * 16 * 128 * 2) + 5 * 16 * 128 * 2 + 5 * 128 * 2);
}

/// A reservation of which only the pages that were opened can be read.
class reservation {
 public:
  explicit reservation(std::int64_t bytes) : size_(static_cast<std::size_t>(bytes)) {
    void* const at = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
  }
  ~reservation() {
    if (base_ != nullptr) munmap(base_, size_);
  }
  reservation(reservation const&) = delete;
  reservation& operator=(reservation const&) = delete;
  std::byte* base() const { return base_; }
  float* open(std::int64_t offset) {
    std::int64_t const page = offset / 4096 * 4096;
    REQUIRE(mprotect(base_ + page, 8192, PROT_READ | PROT_WRITE) == 0);
    return reinterpret_cast<float*>(base_ + offset);
  }

 private:
  std::size_t size_;
  std::byte* base_ = nullptr;
};

// Two tokens, 20 GiB apart: were an offset cut to 32 bits anywhere, memory that may not be read would be read.
TEMPLATE_TEST_CASE("pooling, window attention and attend reach rows 20 GiB apart, strided and paged", "[view]",
                   KVPOLICY_TEST_EXECUTORS) {
  constexpr std::int64_t gap = std::int64_t{20} << 30;
  constexpr std::int64_t dim = 24;
  reservation memory(2 * gap);
  REQUIRE(memory.base() != nullptr);
  random_source random(102);
  std::vector<std::vector<float>> content;
  for (std::int64_t t = 0; t < 2; ++t) {
    float* const row = memory.open(t * gap);
    content.push_back(random.reals(dim));
    std::copy(content.back().begin(), content.back().end(), row);
    std::copy(content.back().begin(), content.back().end(), row + dim);  // the value
  }
  std::vector<std::int32_t> const pages{1, 0};
  rows const strided{.base = memory.base(),
                     .type = element_type::f32,
                     .heads = 1,
                     .tokens = 2,
                     .head_dim = dim,
                     .head_stride = dim * 4,
                     .token_stride = gap,
                     .dim_stride = 4};
  rows paged = strided;
  paged.token_stride = dim * 4;
  paged.pages = pages.data();
  paged.page_size = 1;
  paged.page_stride = gap;
  cache_shape const shape{1, 1, 1, dim, 2, element_type::f32};
  std::vector<float> const query = random.reals(dim);
  for (bool const in_pages : {false, true}) {
    rows const& keys = in_pages ? paged : strided;
    rows values = keys;
    values.base += dim * 4;
    auto const& first = content[in_pages ? 1 : 0];
    auto const& second = content[in_pages ? 0 : 1];
    std::vector<float> mean(dim);
    std::vector<float> out(dim);
    std::vector<float> score(1);
    bounds_table bounds{nullptr, element_type::f32, 1, 1, dim};
    std::vector<std::byte> storage(static_cast<std::size_t>(bounds.bytes()));
    bounds.data = storage.data();
    std::vector<range_list> const lists{{{0, 2, reason::scored}}};
    TestType on(shape);
    on.run([&](auto& exec) {
      pool_mean(keys, {2, 0, 2}, table<float>{mean.data(), 1, dim, dim}, 0, exec);
      pool_bounds(keys, {2, 0, 2}, bounds, exec);
      window_attention({query.data(), 1, 1, dim, dim, 1}, keys, {}, table<float>{score.data(), 1, 1, 1}, exec);
      attend(query_heads{query.data(), 1, dim, 1}, keys, values, selection(scope::layer, lists, 1),
             table<float>{out.data(), 1, dim, dim}, {}, exec);
    });
    double a = 0;
    double b = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      a += static_cast<double>(query[d]) * first[d];
      b += static_cast<double>(query[d]) * second[d];
    }
    double const weight = 1 / (1 + std::exp(b - a));
    REQUIRE(std::abs(score[0] - weight) < 1e-5);
    auto const* const high = reinterpret_cast<float const*>(storage.data());
    for (std::size_t d = 0; d < dim; ++d) {
      REQUIRE(std::abs(mean[d] - (first[d] + second[d]) / 2) < 1e-5);
      REQUIRE(high[d] == std::max(first[d], second[d]));
      REQUIRE(std::abs(out[d] - (weight * first[d] + (1 - weight) * second[d])) < 1e-5);
    }
  }
}

}  // namespace
}  // namespace kvpolicy_test
