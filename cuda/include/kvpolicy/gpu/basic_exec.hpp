// The four verbs' executor over a device: every primitive as launches, its small tables on the host or on the device.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/gpu/extent.hpp"
#include "kvpolicy/gpu/kernel/entropy.hpp"
#include "kvpolicy/gpu/launch/attend.hpp"
#include "kvpolicy/gpu/launch/prompt.hpp"
#include "kvpolicy/gpu/launch/units.hpp"

namespace kvpolicy::gpu {

/// A device that also reaches what lies on the host.
/// Requires, beside device: `memory`, of the rows that it reads; `in(pointer, count)` and `out(pointer, rows, columns, stride,
/// keep)`, device memory with what is there, or whose content gets there (`keep`: it is read, too); `finish()`, after which it
/// has. Semantics: device memory is taken as it is; all else is copied. Only `finish` waits.
template <class D>
concept staging_device = device<D> && requires(D& d, float* p, std::int64_t n) {
  typename D::memory;
  { d.in(static_cast<float const*>(p), n) } -> std::same_as<buffer<float const>>;
  { d.out(p, n, n, n, true) } -> std::same_as<buffer<float>>;
  d.finish();
};

/// Models executor. What a primitive returns is there when it returns: it waits for the device. For prompts, for policies that
/// have no kernels of their own, and for tests; a captured decode step calls launches instead (cuda/decode.hpp). Contracts are
/// in primitive/. Head sizes up to 256, query groups up to 16: unsupported is thrown past that.
template <staging_device D>
class basic_exec {
 public:
  using memory = typename D::memory;

  template <class... Args>
  explicit basic_exec(Args&&... args) : device_(std::forward<Args>(args)...) {}

  D& device() noexcept { return device_; }

  template <class Memory>
  void pool_mean(basic_rows<Memory> const& keys, pooling const& what, table<float> means, std::int64_t column) {
    if (what.first >= what.last) return;
    call const scope(*this);
    std::int64_t const unit = (what.first - what.origin) / what.unit_size;
    auto const units = (what.last - 1 - what.origin) / what.unit_size + 1 - unit;
    // Only the touched units' part of the table, addressed as if all of it were there.
    float* const first = means.row(unit) + column;
    buffer<float> out = device_.out(first, units, keys.heads * keys.head_dim, means.row_stride, true);
    pooled_tokens folded = tokens_of(what, units);
    folded.unit_base = unit;
    batch_rope_angles rotated{};
    if (what.rotated.angles != nullptr) {
      rotated = {device_.in(what.rotated.angles, tokens_behind(keys, what.last) * 2 * what.rotated.pairs),
                 static_cast<std::int32_t>(what.rotated.pairs), what.rotated.how == rotation::pairing::halves};
    }
    auto const set = [&](auto& a) {
      a.rotated = rotated;
      a.means = out;
      a.unit_stride = means.row_stride;
      a.head_stride = keys.head_dim;
    };
    batch_rows const from = rows_of(keys, what.last);
    if (what.rotated.angles != nullptr) launch_pool<pool_pre_rope_body>(device_, from, folded, 1, set);
    else launch_pool<pool_mean_body>(device_, from, folded, 1, set);
    device_.finish();
  }

  void pool_bounds(basic_rows<memory> const& keys, pooling const& what, bounds_table const& bounds) {
    if (what.first >= what.last) return;
    call const scope(*this);
    launch_pool<pool_bounds_body>(device_, rows_of(keys, what.last), tokens_of(what, touched(what)), 1,
                                  [&](auto& a) { a.bounds = bounds_of(bounds); });
    device_.finish();
  }

  template <class Memory>
  void pool_mean_deviation(basic_rows<Memory> const& keys, pooling const& what, float* moments, bounds_table const& bounds) {
    if (what.first >= what.last) return;
    call const scope(*this);
    std::int64_t const size = bounds.heads * bounds.units * 2 * bounds.head_dim;
    launch_pool<pool_mean_deviation_body>(device_, rows_of(keys, what.last), tokens_of(what, touched(what)), 1, [&](auto& a) {
      a.bounds = bounds_of(bounds);
      a.moments = device_.out(moments, 1, size, size, true);
    });
    device_.finish();
  }

  void score_dot(std::span<float const> anchor, table<float const> vectors, std::span<std::int32_t const> units,
                 std::span<float> scores) {
    if (units.empty()) return;
    call const scope(*this);
    auto const dims = static_cast<std::int64_t>(anchor.size());
    std::int64_t const count = std::ssize(units);
    score_dot_body::arguments a{};
    a.anchor = device_.in(anchor.data(), dims);
    a.vectors = device_.in(vectors.data, (vectors.rows - 1) * vectors.row_stride + dims);
    a.vector_stride = vectors.row_stride;
    a.dims = dims;
    a.units = device_.in(units.data(), count);
    a.count.all = count;
    a.scores = device_.out(scores.data(), 1, count, count, false);
    a.stride = count;
    launch_score_dot(device_, a, count, 1);
    device_.finish();
  }

  void score_bounds(query_heads const& queries, bounds_table const& bounds, std::int64_t units, group_merge merged,
                    table<float> scores) {
    if (units <= 0) return;
    call const scope(*this);
    std::int64_t const size = bounds.heads * bounds.units * 2 * bounds.head_dim;
    batch_rows made{};
    made.base = device_.in(bounds.data, size * size_of(bounds.type)).data;
    made.elements = size;
    made.type = bounds.type;
    made.heads = static_cast<std::int32_t>(bounds.heads);
    made.head_dim = static_cast<std::int32_t>(bounds.head_dim);
    made.head_stride = bounds.units * 2 * bounds.head_dim;
    made.token_stride = bounds.head_dim;
    auto const group = static_cast<std::int32_t>(queries.heads / bounds.heads);
    launch_score_bounds(device_, {finished(made), group, units, 1}, [&](auto& a) {
      a.queries = vectors_of(queries, bounds.head_dim);
      a.merged = merged;
      a.count.all = units;
      a.scores = device_.out(scores.data, bounds.heads, units, scores.row_stride, false);
      a.head_stride = scores.row_stride;
    });
    device_.finish();
  }

  void window_attention(query_window const& queries, basic_rows<memory> const& keys, smoothing smooth, table<float> scores) {
    std::int64_t const before = keys.tokens - queries.tokens;
    if (before <= 0) return;
    call const scope(*this);
    launch_window_attention(device_, prompt_of(queries, keys), before, smooth.queries, [&](smooth_sums_body::arguments& a) {
      a.how = static_cast<std::int32_t>(smooth.how);
      a.width = static_cast<std::int32_t>(smooth.width);
      a.of_group = smooth.of_group;
      a.scores = device_.out(scores.data, keys.heads, before, scores.row_stride, false);
      a.score_stride = scores.row_stride;
    });
    device_.finish();
  }

  void seen_attention(query_window const& queries, basic_rows<memory> const& keys, table<float> scores) {
    call const scope(*this);
    launch_window_attention(device_, prompt_of(queries, keys), keys.tokens, group_merge::mean,
                            [&](smooth_sums_body::arguments& a) {
                              a.by_seen = true;
                              a.scores = device_.out(scores.data, keys.heads, keys.tokens, scores.row_stride, false);
                              a.score_stride = scores.row_stride;
                            });
    device_.finish();
  }

  void following_queries(query_window const& queries, std::int64_t begin, basic_rows<memory> const& keys, std::int64_t first,
                         std::int64_t last, std::int64_t local, std::int32_t const* positions, table<float> scores) {
    if (first >= last) return;
    call const scope(*this);
    launch_following_queries(device_, rows_of(keys, keys.tokens), last - first, [&](auto& a) {
      a.queries = vectors_of(queries, keys.head_dim);
      a.begin = begin;
      a.count = queries.tokens;
      a.group = static_cast<std::int32_t>(queries.heads / keys.heads);
      a.first = first;
      a.last = last;
      a.local = local;
      a.positions = device_.in(positions, positions == nullptr ? 0 : last);
      a.scores = device_.out(scores.data, keys.heads, last - first, scores.row_stride, false);
      a.stride = scores.row_stride;
    });
    device_.finish();
  }

  void list_attention(query_heads const& queries, basic_rows<memory> const& keys, std::span<range_list const> lists,
                      table<float> out) {
    call const scope(*this);
    list_weights a{};
    a.queries = vectors_of(queries, keys.head_dim);
    a.scale = queries.scale;
    a.group = static_cast<std::int32_t>(queries.heads / keys.heads);
    a.keys = rows_of(keys, keys.tokens);
    a.lists = lists_of(lists, a.most_tokens);
    if (a.most_tokens == 0) return;
    a.out = device_.out(out.data, keys.heads, a.most_tokens, out.row_stride, true);
    a.head_stride = out.row_stride;
    launch_list_weights(device_, a);
    device_.finish();
  }

  void row_norms(basic_rows<memory> const& from, table<float> norms) {
    call const scope(*this);
    launch_row_norms(device_, rows_of(from, from.tokens), from.tokens,
                     device_.out(norms.data, from.heads, from.tokens, norms.row_stride, false), norms.row_stride);
    device_.finish();
  }

  void key_similarity(basic_rows<memory> const& keys, table<float> cosines) {
    call const scope(*this);
    launch_key_similarity(device_, rows_of(keys, keys.tokens), keys.tokens,
                          device_.out(cosines.data, keys.heads, keys.tokens, cosines.row_stride, false), cosines.row_stride);
    device_.finish();
  }

  void query_moments(query_window const& queries, rotation const& rope, std::int64_t first, table<float> mean,
                     table<float> covariance) {
    call const scope(*this);
    unrotate_body::arguments a{};
    a.queries = vectors_of(queries, mean.columns);
    a.inverse_frequency = device_.in(rope.inverse_frequency, rope.pairs);
    a.pairs = static_cast<std::int32_t>(rope.pairs);
    a.halves = rope.how == rotation::pairing::halves;
    a.first = first;
    a.tokens = queries.tokens;
    a.head_dim = static_cast<std::int32_t>(mean.columns);
    buffer<float> const covariances =
        covariance.rows == 0 ? buffer<float>{}
                             : device_.out(covariance.data, covariance.rows, mean.columns, covariance.row_stride, false);
    launch_query_moments(device_, a, queries.heads, device_.out(mean.data, mean.rows, mean.columns, mean.row_stride, false),
                         mean.row_stride, covariances, covariance.row_stride);
    device_.finish();
  }

  void gaussian_attention(basic_rows<memory> const& keys, gaussian_queries const& queries, std::int64_t first,
                          table<float> scores) {
    call const scope(*this);
    gaussian_logits_body<element_type::f32>::arguments a{};
    a.keys = rows_of(keys, keys.tokens);
    a.first = first;
    a.tokens = keys.tokens;
    a.mean = table_in(queries.mean);
    a.mean_stride = queries.mean.row_stride;
    a.covariance = table_in(queries.covariance);
    a.covariance_stride = queries.covariance.row_stride;
    a.scale = queries.scale;
    a.group = static_cast<std::int32_t>(queries.mean.rows / keys.heads);
    launch_gaussian_attention(device_, a, device_.out(scores.data, keys.heads, keys.tokens - first, scores.row_stride, false),
                              scores.row_stride);
    device_.finish();
  }

  void partition_deviation(basic_rows<memory> const& from, partitions const& cut, table<float> spread) {
    if (cut.count <= 0) return;
    call const scope(*this);
    launch_partition_deviation(device_, rows_of(from, cut.first + (cut.count + 1) * cut.size), cut.count, [&](auto& a) {
      a.first = cut.first;
      a.size = cut.size;
      a.spread = device_.out(spread.data, from.heads, cut.count * cut.size, spread.row_stride, false);
      a.stride = spread.row_stride;
    });
    device_.finish();
  }

  void top_k(table<float const> scores, std::span<std::int32_t const> k, table<std::int32_t> indices) {
    std::int64_t most = 0;
    for (std::int32_t const wanted : k.first(static_cast<std::size_t>(scores.rows)))
      most = std::max<std::int64_t>(most, wanted);
    most = std::min(most, scores.columns);
    if (most <= 0) return;
    call const scope(*this);
    top_k_body<1>::arguments a{};
    a.scores = table_in(scores);
    a.score_stride = scores.row_stride;
    a.columns.all = scores.columns;
    a.k.values = device_.in(k.data(), scores.rows);
    a.indices = device_.out(indices.data, scores.rows, most, indices.row_stride, true);
    a.index_stride = indices.row_stride;
    launch_top_k(device_, a, scores.rows, scores.columns);
    device_.finish();
  }

  void attend(query_heads const& queries, basic_rows<memory> const& keys, basic_rows<memory> const& values,
              selection const& kept, attention_terms const& terms, table<float> out, std::span<float> log_sum_exp) {
    if (!terms.plain()) {
      if (!log_sum_exp.empty()) throw unsupported("attention with soft caps, slopes or sinks gives no log-sum-exp on a GPU");
      attention_terms unwindowed = terms;
      unwindowed.window = 0;
      return attend_block({queries.data, 1, queries.heads, 0, queries.head_stride, queries.scale}, keys, values, kept,
                          unwindowed, out);
    }
    call const scope(*this);
    decode_attention a{};
    a.queries = vectors_of(queries, keys.head_dim);
    a.scale = queries.scale;
    a.group = static_cast<std::int32_t>(queries.heads / keys.heads);
    a.keys = rows_of(keys, keys.tokens);
    a.values = rows_of(values, values.tokens);
    a.lists = lists_of(kept.lists(), a.most_tokens);
    a.out.base = device_.out(out.data, queries.heads, keys.head_dim, out.row_stride, false).data;
    a.out.elements = (queries.heads - 1) * out.row_stride + keys.head_dim;
    a.out.head_stride = out.row_stride;
    if (!log_sum_exp.empty()) a.log_sum_exp = device_.out(log_sum_exp.data(), 1, queries.heads, queries.heads, false);
    launch_attend(device_, a);
    device_.finish();
  }

  void attend_block(query_window const& queries, basic_rows<memory> const& keys, basic_rows<memory> const& values,
                    selection const& kept, attention_terms const& terms, table<float> out) {
    call const scope(*this);
    prompt_attention what = prompt_of(queries, keys);
    list_keys(what, kept.lists(), terms.window);
    launch_attend_block(device_, keys.type, queries.tokens * queries.heads / keys.heads, keys.heads, [&](auto& a) {
      a.what = what;
      a.values = rows_of(values, values.tokens);
      a.soft_cap = terms.soft_cap;
      if (terms.slopes != nullptr) a.slopes = device_.in(terms.slopes, queries.heads);
      if (terms.sinks != nullptr) a.sinks = device_.in(terms.sinks, queries.heads);
      a.first = keys.tokens - queries.tokens;
      std::int64_t const rows = queries.tokens * queries.heads;
      a.out.base = device_.out(out.data, rows, keys.head_dim, out.row_stride, false).data;
      a.out.elements = (rows - 1) * out.row_stride + keys.head_dim;
      a.out.token_stride = queries.heads * out.row_stride;
      a.out.head_stride = out.row_stride;
    });
    device_.finish();
  }

  uncertainty entropy(std::span<float const> logits) {
    call const scope(*this);
    uncertainty found;
    entropy_body::arguments a{};
    a.vocabulary = std::ssize(logits);
    a.logits.base = const_cast<float*>(device_.in(logits.data(), a.vocabulary).data);
    a.logits.elements = a.vocabulary;
    a.entropy = device_.out(&found.entropy, 1, 1, 1, false);
    a.varentropy = device_.out(&found.varentropy, 1, 1, 1, false);
    device_.template launch<entropy_body>({1, 1, 1}, a);
    device_.finish();
    return found;
  }

 private:
  /// Scratch and copies of one primitive.
  struct call : scratch_scope<D> {
    explicit call(basic_exec& exec) : scratch_scope<D>(exec.device_) { exec.device_.begin(); }
  };

  static std::int64_t touched(pooling const& what) noexcept {
    return (what.last - 1 - what.origin) / what.unit_size + 1 - (what.first - what.origin) / what.unit_size;
  }
  static pooled_tokens tokens_of(pooling const& what, std::int64_t units) noexcept {
    pooled_tokens made{};
    made.last.all = what.last;
    made.newest = what.last - what.first;
    made.unit_size = static_cast<std::int32_t>(what.unit_size);
    made.origin = what.origin;
    made.units = units;
    return made;
  }
  batch_bounds bounds_of(bounds_table const& bounds) {
    std::int64_t const bytes = bounds.bytes();
    batch_bounds made{};
    made.base = device_.out(bounds.data, 1, bytes, bytes, true).data;
    made.elements = bytes / size_of(bounds.type);
    made.head_stride = bounds.units * 2 * bounds.head_dim;
    return made;
  }
  buffer<float const> table_in(table<float const> from) {
    return device_.in(from.data, from.rows == 0 ? 0 : (from.rows - 1) * from.row_stride + from.columns);
  }
  vector_rows vectors_of(query_heads const& queries, std::int64_t dim) {
    std::int64_t const size = (queries.heads - 1) * queries.head_stride + dim;
    vector_rows made{};
    made.base = const_cast<float*>(device_.in(queries.data, size).data);
    made.elements = size;
    made.head_stride = queries.head_stride;
    return made;
  }
  vector_rows vectors_of(query_window const& queries, std::int64_t dim) {
    std::int64_t const size =
        queries.tokens == 0 ? 0 : (queries.tokens - 1) * queries.token_stride + (queries.heads - 1) * queries.head_stride + dim;
    vector_rows made{};
    made.base = const_cast<float*>(device_.in(queries.data, size).data);
    made.elements = size;
    made.token_stride = queries.token_stride;
    made.head_stride = queries.head_stride;
    return made;
  }
  prompt_attention prompt_of(query_window const& queries, basic_rows<memory> const& keys) {
    prompt_attention made{};
    made.queries = vectors_of(queries, keys.head_dim);
    made.scale = queries.scale;
    made.group = static_cast<std::int32_t>(queries.heads / keys.heads);
    made.window = queries.tokens;
    made.tokens = keys.tokens;
    made.keys = rows_of(keys, keys.tokens);
    return made;
  }

  /// The first `tokens` of a sequence's rows.
  template <class Memory>
  batch_rows rows_of(basic_rows<Memory> const& from, std::int64_t tokens) {
    std::int64_t const size = size_of(from.type);
    KVPOLICY_EXPECTS(from.page_table_stride == 0, "rows with a page table for each head are for host executors; use one table");
    batch_rows made = in_elements(from);
    made.elements = extent_of(from, tokens) / size;
    if constexpr (std::same_as<Memory, device_memory>) made.base = from.base;
    else made.base = device_.in(from.base, made.elements * size).data;
    if (from.indices != nullptr) {
      made.index_stride = from.index_stride;
      made.indices = device_.in(from.indices, from.index_stride == 0 ? tokens : (from.heads - 1) * from.index_stride + tokens);
    }
    if (from.pages != nullptr) {
      made.pages = device_.in(from.pages, divided_up(tokens_behind(from, tokens), from.page_size));
    }
    return finished(made);
  }

  /// Which keys a block's queries see: the listed ones up to their own, and of these a window.
  void list_keys(prompt_attention& what, std::span<range_list const> lists, std::int64_t window) {
    std::int64_t const first = what.tokens - what.window;
    token_lists const listed = lists_of(lists, what.tokens);
    auto const queries = static_cast<std::size_t>(what.window);
    begins_.assign(lists.size() * queries, 0);
    ends_.resize(begins_.size());
    for (std::size_t l = 0; l < lists.size(); ++l) {
      count_before(lists[l], first + 1, std::span(ends_).subspan(l * queries, queries));
      if (window > 0) count_before(lists[l], first + 1 - window, std::span(begins_).subspan(l * queries, queries));
    }
    what.listed = {listed.units, listed.stride, device_.in(begins_.data(), std::ssize(begins_)),
                   device_.in(ends_.data(), std::ssize(ends_)), listed.lists};
  }

  /// Ranges as tokens.
  token_lists lists_of(std::span<range_list const> lists, std::int64_t& most) {
    most = 0;
    for (range_list const& list : lists) most = std::max(most, token_count(list));
    tokens_.assign(lists.size() * static_cast<std::size_t>(most), 0);
    counts_.clear();
    for (std::size_t l = 0; l < lists.size(); ++l) {
      auto to = tokens_.begin() + static_cast<std::ptrdiff_t>(l) * most;
      for (token_range const& range : lists[l]) {
        for (std::int32_t t = range.begin; t < range.end; ++t) *to++ = t;
      }
      counts_.push_back(static_cast<std::int32_t>(token_count(lists[l])));
    }
    token_lists made{};
    made.units = device_.in(tokens_.data(), std::ssize(tokens_));
    made.stride = most;
    made.tokens.all = most;
    made.named = device_.in(counts_.data(), std::ssize(counts_));
    made.lists = static_cast<std::int32_t>(lists.size());
    return made;
  }

  D device_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> counts_;
  std::vector<std::int32_t> begins_;
  std::vector<std::int32_t> ends_;
};

}  // namespace kvpolicy::gpu
