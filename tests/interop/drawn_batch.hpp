// Random batches of sequences and of lists that were chosen of them, and what every emitter's test asks of a table.
#pragma once

#include <rapidcheck.h>

#include <functional>
#include <map>

#include "conformance/engine_batch.hpp"
#include "conformance/tokens.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/primitive/attend.hpp"

namespace kvpolicy_test {

/// What a drawn list is made of.
enum class granule { pages, pages_and_a_part, tokens };

/// Sequences of no tokens, of one, and with partial pages are frequent. With `head` lists every KV head has its own.
class drawn_batch {
 public:
  drawn_batch(engine which, granule of, bool by_head)
      : random_(static_cast<std::uint64_t>(*rc::gen::inRange(0, 1 << 30))),
        by_head_(by_head),
        page_(which == engine::tensorrt_llm ? std::int64_t{1} << *rc::gen::inRange(0, 4) : *rc::gen::inRange(1, 10)),
        shape_{.layers = *rc::gen::inRange(1, 3),
               .q_heads = 1,
               .kv_heads = *rc::gen::inRange(1, 4),
               .head_dim = *rc::gen::element(1, 5, 8, 16),
               .max_tokens = *rc::gen::inRange(1, 60),
               .type = *rc::gen::element(element_type::f32, element_type::f16, element_type::bf16)},
        cache_(which, with_queries(), *rc::gen::inRange(1, 5), page_, random_) {
    layer_ = random_.between(0, shape_.layers - 1);
    for (std::int64_t s = 0; s < cache_.sequences(); ++s) {
      std::int64_t const n = random_.one_in(5) ? 0 : random_.one_in(5) ? 1 : random_.between(1, shape_.max_tokens);
      tokens_.push_back(n);
      lists_.emplace_back();
      for (std::int64_t h = 0; h < (by_head ? shape_.kv_heads : 1); ++h) lists_.back().push_back(draw(of, n));
    }
    queries_ = random_.reals(cache_.sequences() * shape_.q_heads * shape_.head_dim);
  }

  engine_batch const& cache() const { return cache_; }
  cache_shape const& shape() const { return shape_; }
  std::int64_t page_size() const { return page_; }
  std::int64_t layer() const { return layer_; }
  std::int64_t tokens(std::int64_t s) const { return tokens_[static_cast<std::size_t>(s)]; }
  selection kept(std::int64_t s) const {
    return {by_head_ ? scope::head : scope::layer, lists_[static_cast<std::size_t>(s)], shape_.kv_heads};
  }
  range_list const& list(std::int64_t s, std::int64_t h) const { return kept(s).of({h}); }

  /// As an engine gives them to an emitter; SGLang's own table is of slots.
  std::vector<paged_sequence> sequences(bool slots = false, bool values = false) const {
    std::vector<paged_sequence> made;
    for (std::int64_t s = 0; s < cache_.sequences(); ++s) {
      made.push_back({kept(s), tokens(s), slots ? cache_.slots(s) : cache_.pages(s)});
      if (values) made.back().value_pages = cache_.value_pages(s);
    }
    return made;
  }

  /// The query heads of a KV head of a sequence: the group's first.
  float const* query(std::int64_t s, std::int64_t q_head) const {
    return queries_.data() + (s * shape_.q_heads + q_head) * shape_.head_dim;
  }
  static constexpr float scale = .4f;

  /// The library's own attention over the lists: `[q_heads, head_dim]` of a sequence.
  std::vector<float> attended(std::int64_t s) const {
    std::vector<float> out(static_cast<std::size_t>(shape_.q_heads * shape_.head_dim));
    if (tokens(s) == 0) return out;
    paged_view<> const view = cache_.view_in_pages(s, tokens(s));
    host_exec exec;
    attend(query_heads{query(s, 0), shape_.q_heads, shape_.head_dim, scale}, view.keys({layer_}), view.values({layer_}),
           kept(s), table<float>{out.data(), shape_.q_heads, shape_.head_dim, shape_.head_dim}, {}, exec);
    return out;
  }

 private:
  cache_shape const& with_queries() {
    shape_.q_heads = shape_.kv_heads * *rc::gen::inRange(1, 4);
    return shape_;
  }
  reason why() { return random_.pick(std::array{reason::sink, reason::scored, reason::recent, reason::open}); }

  range_list draw(granule of, std::int64_t n) {
    range_list made;
    std::int64_t const unit = of == granule::tokens ? 1 : page_;
    std::int64_t const one_in = random_.between(1, 3);
    for (std::int64_t t = 0; t < n; t += unit) {
      std::int64_t const end = std::min(n, t + unit);
      // A list reads its sequence's last page, where heads may not read nothing.
      if (!random_.one_in(one_in) && (of != granule::pages || end < n)) continue;
      std::int64_t const cut = random_.between(t, end);  // pages of two reasons
      append(made, t, cut, why());
      append(made, cut, end, why());
    }
    if (of == granule::pages_and_a_part && !made.empty() && random_.one_in(2)) --made.back().end;
    if (!made.empty() && made.back().size() == 0) made.pop_back();
    return made;
  }

  random_source random_;
  bool by_head_;
  std::int64_t page_;
  cache_shape shape_;
  engine_batch cache_;
  std::int64_t layer_ = 0;
  std::vector<std::int64_t> tokens_;
  std::vector<std::vector<range_list>> lists_;
  std::vector<float> queries_;
};

/// Attention of one query head in float64 over `count` rows, of which element d of key or value i is at key(i, d), value(i, d).
template <class Key, class Value>
std::vector<double> attention(float const* query, std::int64_t dim, double scale, std::int64_t count, Key key, Value value) {
  std::vector<double> logits(static_cast<std::size_t>(count));
  double most = -INFINITY;
  for (std::int64_t i = 0; i < count; ++i) {
    double& logit = logits[static_cast<std::size_t>(i)];
    for (std::int64_t d = 0; d < dim; ++d) logit += static_cast<double>(query[d]) * static_cast<double>(key(i, d));
    logit *= scale;
    most = std::max(most, logit);
  }
  std::vector<double> out(static_cast<std::size_t>(dim));
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    double const weight = std::exp(logits[static_cast<std::size_t>(i)] - most);
    total += weight;
    for (std::int64_t d = 0; d < dim; ++d) out[static_cast<std::size_t>(d)] += weight * static_cast<double>(value(i, d));
  }
  for (double& x : out) x /= count == 0 ? 1 : total;
  return out;
}

/// An engine's attention of sequence s is the library's: head(q) gives one query head's output.
template <class Head>
void expect_same_attention(drawn_batch const& batch, std::int64_t s, Head head) {
  std::vector<float> const want = batch.attended(s);
  std::int64_t const dim = batch.shape().head_dim;
  for (std::int64_t q = 0; q < batch.shape().q_heads; ++q) {
    std::vector<double> const got = head(q);
    for (std::int64_t d = 0; d < dim; ++d) {
      double const off = got[static_cast<std::size_t>(d)] - static_cast<double>(want[static_cast<std::size_t>(q * dim + d)]);
      RC_ASSERT(std::abs(off) < 1e-4);
    }
  }
}

/// Back from a row of a table to tokens: `entry_of(first token)` is the entry that the engine's documents give a page (or a
/// token) of the sequence; the row's last entry covers `last` tokens, all others `covered`.
template <class EntryOf>
std::vector<std::int64_t> tokens_of_row(std::span<std::int32_t const> row, std::int64_t last, std::int64_t covered,
                                        std::int64_t tokens, EntryOf entry_of) {
  std::map<std::int64_t, std::int64_t> first_of;
  for (std::int64_t t = 0; t < tokens; t += covered) first_of[entry_of(t)] = t;
  std::vector<std::int64_t> made;
  for (std::size_t i = 0; i < row.size(); ++i) {
    RC_ASSERT(first_of.contains(row[i]));
    for (std::int64_t n = 0; n < (i + 1 == row.size() ? last : covered); ++n) made.push_back(first_of[row[i]] + n);
  }
  return made;
}

}  // namespace kvpolicy_test
