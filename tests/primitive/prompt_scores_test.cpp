#include "kvpolicy/primitive/prompt_scores.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"

namespace kvpolicy_test {
namespace {

using doubles = std::vector<double>;

doubles row_of(random_rows const& from, std::int64_t h, std::int64_t t, std::int64_t dims) {
  doubles row;
  for (std::int64_t d = 0; d < dims; ++d) row.push_back(from.at(h, t, d));
  return row;
}
double norm_of(doubles const& row) { return std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0)); }

/// A table with a column that nobody may write.
struct guarded {
  std::vector<float> cells;
  table<float> to;
  guarded(std::int64_t rows, std::int64_t columns)
      : cells(static_cast<std::size_t>(rows * (columns + 1)), 7.0f), to{cells.data(), rows, columns, columns + 1} {}
  bool clean() const {
    bool same = true;
    for (std::int64_t r = 0; r < to.rows; ++r) same = same && to.row(r)[to.columns] == 7.0f;
    return same;
  }
};

TEMPLATE_TEST_CASE("row_norms are the rows' Euclidean norms, NaN where a row has one", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(91);
  for (int round = 0; round < 100; ++round) {
    cache_shape const shape = random_shape(random, round % 9 == 0 ? 1100 : 120);
    content const kind =
        random.pick(std::array{content::plain, content::tied, content::nan, content::negative, content::equal});
    random_cache const cache = random_cache_of(shape, random, kind);
    random_rows const from(cache, random, random.one_in(2));
    guarded norms(shape.kv_heads, from.tokens());
    TestType on(shape);
    on.run([&](auto& exec) { row_norms(from.get(), norms.to, exec); });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t t = 0; t < from.tokens(); ++t) {
        double const want = norm_of(row_of(from, h, t, shape.head_dim));
        INFO("round " << round << " head " << h << " token " << t);
        if (std::isnan(want)) REQUIRE(std::isnan(norms.to(h, t)));
        else REQUIRE(std::abs(norms.to(h, t) - want) <= 1e-5 * want);
      }
    }
    REQUIRE(norms.clean());
  }
}

// The mean direction of opposed keys may be next to nothing, and then has no direction in fp32: those heads are left out.
TEMPLATE_TEST_CASE("key_similarity is the cosine with the mean direction of all keys, 0 for a key of zeros", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(92);
  int compared = 0;
  for (int round = 0; round < 120; ++round) {
    cache_shape const shape = random_shape(random, round % 9 == 0 ? 1500 : 120);
    content const kind = random.pick(std::array{content::plain, content::tied, content::negative, content::equal});
    random_cache cache = random_cache_of(shape, random, kind);
    for (std::int64_t t = 0; t < shape.max_tokens; t += 5) {
      for (std::int64_t d = 0; d < shape.head_dim; ++d) cache.set_key(0, 0, t, d, 0);
    }
    random_rows const keys(cache, random);
    guarded cosines(shape.kv_heads, keys.tokens());
    TestType on(shape);
    on.run([&](auto& exec) { key_similarity(keys.get(), cosines.to, exec); });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      doubles mean(static_cast<std::size_t>(shape.head_dim));
      for (std::int64_t t = 0; t < keys.tokens(); ++t) {
        doubles const key = row_of(keys, h, t, shape.head_dim);
        double const norm = norm_of(key);
        for (std::size_t d = 0; d < mean.size() && norm > 0; ++d) mean[d] += key[d] / norm / static_cast<double>(keys.tokens());
      }
      double const size = norm_of(mean);
      if (size < 1e-3) continue;
      ++compared;
      for (std::int64_t t = 0; t < keys.tokens(); ++t) {
        doubles const key = row_of(keys, h, t, shape.head_dim);
        double const norm = norm_of(key);
        double const want = norm == 0 ? 0 : std::inner_product(key.begin(), key.end(), mean.begin(), 0.0) / norm / size;
        INFO("round " << round << " head " << h << " token " << t);
        REQUIRE(std::abs(cosines.to(h, t) - want) <= 1e-4);
        if (norm == 0) REQUIRE(cosines.to(h, t) == 0);
      }
    }
    REQUIRE(cosines.clean());
  }
  REQUIRE(compared > 150);
}

TEMPLATE_TEST_CASE("of nothing but zeros every cosine is 0", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(93);
  cache_shape const shape{1, 2, 2, 5, 30, element_type::f16};
  random_cache cache(shape, layout::transposed, 4, random);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t t = 0; t < 30; ++t) {
      for (std::int64_t d = 0; d < 5; ++d) cache.set_key(0, h, t, d, d % 2 == 0 ? 0.0f : -0.0f);
    }
  }
  guarded cosines(2, 30);
  TestType on(shape);
  on.run([&](auto& exec) { key_similarity(cache.keys(0, 30), cosines.to, exec); });
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t t = 0; t < 30; ++t) REQUIRE(cosines.to(h, t) == 0);
  }
}

/// A rotary embedding as models have it: base 10000, or nothing that turns.
struct embedding {
  std::vector<float> frequency;
  rotation rope;
  embedding(std::int64_t dims, random_source& random) {
    std::int64_t const pairs = random.one_in(5) ? 0 : random.between(0, dims / 2);
    for (std::int64_t i = 0; i < pairs; ++i) {
      frequency.push_back(static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs))));
    }
    rope = {frequency.data(), pairs, random.one_in(2) ? rotation::pairing::halves : rotation::pairing::neighbours};
  }
  /// (x, y) becomes (x cos - y sin, x sin + y cos).
  void rotate(float* query, std::int64_t position) const {
    for (std::int64_t i = 0; i < rope.pairs; ++i) {
      bool const halves = rope.how == rotation::pairing::halves;
      float& a = query[halves ? i : 2 * i];
      float& b = query[halves ? i + rope.pairs : 2 * i + 1];
      double const angle = static_cast<double>(position) * static_cast<double>(frequency[static_cast<std::size_t>(i)]);
      double const x = a;
      double const y = b;
      a = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
      b = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
    }
  }
};

// Queries are drawn without their rotation and turned; what comes out must be the statistics of what was drawn.
TEMPLATE_TEST_CASE("query_moments are the mean and covariance of the queries before their rotation", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(94);
  for (int round = 0; round < 50; ++round) {
    cache_shape shape = random_shape(random, 8);
    shape.head_dim = random.between(1, round % 10 == 0 ? 80 : 20);
    std::int64_t const dims = shape.head_dim;
    std::int64_t const tokens = random.between(1, 150);
    std::int64_t const first = random.pick(std::array<std::int64_t, 3>{0, 4, random.between(0, 120000)});
    embedding const rope(dims, random);
    std::vector<float> const plain = random.reals(tokens * shape.q_heads * dims, 2);
    std::int64_t const head_stride = dims + random.between(0, 3);
    std::int64_t const token_stride = shape.q_heads * head_stride + random.between(0, 3);
    std::vector<float> turned(static_cast<std::size_t>(tokens * token_stride));
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t q = 0; q < shape.q_heads; ++q) {
        float* const query = turned.data() + t * token_stride + q * head_stride;
        std::copy_n(plain.data() + (t * shape.q_heads + q) * dims, dims, query);
        rope.rotate(query, first + t);
      }
    }
    bool const with_covariance = random.one_in(2);
    guarded mean(shape.q_heads, dims);
    guarded covariance(with_covariance ? shape.q_heads * dims : 0, dims);
    TestType on(shape);
    on.run([&](auto& exec) {
      query_moments({turned.data(), tokens, shape.q_heads, token_stride, head_stride, .5f}, rope.rope, first, mean.to,
                    covariance.to, exec);
    });
    for (std::int64_t q = 0; q < shape.q_heads; ++q) {
      auto const value = [&](std::int64_t t, std::int64_t d) {
        return static_cast<double>(plain[static_cast<std::size_t>((t * shape.q_heads + q) * dims + d)]);
      };
      doubles want(static_cast<std::size_t>(dims));
      for (std::int64_t d = 0; d < dims; ++d) {
        for (std::int64_t t = 0; t < tokens; ++t)
          want[static_cast<std::size_t>(d)] += value(t, d) / static_cast<double>(tokens);
        INFO("round " << round << " query head " << q << " channel " << d << " pairs " << rope.rope.pairs << " first "
                      << first);
        REQUIRE(std::abs(mean.to(q, d) - want[static_cast<std::size_t>(d)]) <= 2e-5);
      }
      double worst = 0;
      for (std::int64_t i = 0; i < dims && with_covariance; ++i) {
        for (std::int64_t j = 0; j < dims; ++j) {
          double sum = 0;
          for (std::int64_t t = 0; t < tokens; ++t) {
            sum += (value(t, i) - want[static_cast<std::size_t>(i)]) * (value(t, j) - want[static_cast<std::size_t>(j)]);
          }
          worst = std::max(worst, std::abs(covariance.to(q * dims + i, j) - sum / static_cast<double>(tokens)));
        }
      }
      REQUIRE(worst <= 1e-4);
    }
    REQUIRE(mean.clean());
    REQUIRE(covariance.clean());
  }
}

// Logits stay below 10 or so: probabilities agree within 1e-4 of themselves.
TEMPLATE_TEST_CASE("gaussian_attention is the softmax of the expected exponentials, mean over the group", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(95);
  for (int round = 0; round < 60; ++round) {
    cache_shape shape = random_shape(random, round % 9 == 0 ? 700 : 90);
    shape.head_dim = random.between(1, round % 10 == 0 ? 80 : 24);
    std::int64_t const dims = shape.head_dim;
    random_cache const cache = random_cache_of(shape, random);
    random_rows const keys(cache, random);
    std::int64_t const n = keys.tokens();
    std::int64_t const first = random.between(0, std::min<std::int64_t>(n - 1, 6));
    bool const with_covariance = !random.one_in(3);
    gaussian_queries queries{};
    queries.scale = 1 / std::sqrt(static_cast<float>(dims));
    std::vector<float> const mean = random.reals(shape.q_heads * (dims + 1), 2);
    queries.mean = {mean.data(), shape.q_heads, dims, dims + 1};
    // A a^T + identity / 2, as covariances are: symmetric and positive.
    std::vector<float> covariance(static_cast<std::size_t>(with_covariance ? shape.q_heads * dims * (dims + 2) : 0));
    for (std::int64_t q = 0; q < shape.q_heads && with_covariance; ++q) {
      std::vector<float> const a = random.reals(dims);
      for (std::int64_t i = 0; i < dims; ++i) {
        for (std::int64_t j = 0; j < dims; ++j) {
          covariance[static_cast<std::size_t>((q * dims + i) * (dims + 2) + j)] =
              a[static_cast<std::size_t>(i)] * a[static_cast<std::size_t>(j)] + (i == j ? .5f : 0);
        }
      }
    }
    queries.covariance = {covariance.data(), with_covariance ? shape.q_heads * dims : 0, dims, dims + 2};
    guarded scores(shape.kv_heads, n - first);
    TestType on(shape);
    on.run([&](auto& exec) { gaussian_attention(keys.get(), queries, first, scores.to, exec); });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      doubles want(static_cast<std::size_t>(n - first));
      for (std::int64_t q = h * shape.group(); q < (h + 1) * shape.group(); ++q) {
        doubles logits;
        for (std::int64_t t = first; t < n; ++t) {
          doubles const key = row_of(keys, h, t, dims);
          double const scale = queries.scale;
          double logit = 0;
          for (std::int64_t i = 0; i < dims; ++i) {
            logit += scale * queries.mean(q, i) * key[static_cast<std::size_t>(i)];
            for (std::int64_t j = 0; j < dims && with_covariance; ++j) {
              logit += scale * scale / 2 * key[static_cast<std::size_t>(i)] * queries.covariance(q * dims + i, j) *
                       key[static_cast<std::size_t>(j)];
            }
          }
          logits.push_back(logit);
        }
        doubles const weights = naive::softmax(logits);
        for (std::size_t t = 0; t < want.size(); ++t) want[t] += weights[t] / static_cast<double>(shape.group());
      }
      for (std::int64_t t = 0; t < n - first; ++t) {
        INFO("round " << round << " head " << h << " token " << first + t << " of " << n);
        REQUIRE(std::abs(scores.to(h, t) - want[static_cast<std::size_t>(t)]) <= 1e-4 * want[static_cast<std::size_t>(t)]);
      }
    }
    REQUIRE(scores.clean());
  }
}

// A channel that does not vary in the next partition has no scale: its tokens' spread is no number, on every executor.
TEMPLATE_TEST_CASE("partition_deviation is the deviation over channels in the scale of the next partition", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(96);
  int compared = 0;
  for (int round = 0; round < 90; ++round) {
    cache_shape const shape = random_shape(random, round % 9 == 0 ? 1500 : 150);
    std::int64_t const dims = shape.head_dim;
    random_cache const cache = random_cache_of(shape, random, random.one_in(6) ? content::tied : content::plain);
    random_rows const from(cache, random, random.one_in(2));
    std::int64_t const n = from.tokens();
    std::int64_t const first = random.between(0, std::min<std::int64_t>(n - 1, 5));
    partitions cut{.first = first, .size = random.between(1, random.one_in(2) ? 6 : 60)};
    cut.count = std::max<std::int64_t>(0, (n - first) / cut.size - 1);
    guarded spread(shape.kv_heads, cut.count * cut.size);
    TestType on(shape);
    on.run([&](auto& exec) { partition_deviation(from.get(), cut, spread.to, exec); });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t t = 0; t < cut.count * cut.size; ++t) {
        std::int64_t const next = first + (t / cut.size + 1) * cut.size;
        doubles scaled;
        double most = 0;
        bool flat = dims == 1;
        for (std::int64_t d = 0; d < dims; ++d) {
          double low = naive::infinity;
          double high = -naive::infinity;
          for (std::int64_t s = next; s < next + cut.size; ++s) {
            low = std::min(low, from.at(h, s, d));
            high = std::max(high, from.at(h, s, d));
          }
          flat = flat || low == high;
          scaled.push_back((from.at(h, first + t, d) - low) / (high - low));
          most = std::max(most, std::abs(scaled.back()));
        }
        INFO("round " << round << " head " << h << " token " << first + t << " partitions " << cut.count << " of " << cut.size);
        if (flat) {
          REQUIRE(std::isnan(spread.to(h, t)));
          continue;
        }
        double const mean = std::accumulate(scaled.begin(), scaled.end(), 0.0) / static_cast<double>(dims);
        double square = 0;
        for (double const x : scaled) square += (x - mean) * (x - mean);
        REQUIRE(std::abs(spread.to(h, t) - std::sqrt(square / static_cast<double>(dims - 1))) <= 1e-4 * most);
        ++compared;
      }
    }
    REQUIRE(spread.clean());
  }
  REQUIRE(compared > 3000);
}

}  // namespace
}  // namespace kvpolicy_test
