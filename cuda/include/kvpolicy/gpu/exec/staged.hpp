// How the four verbs' primitives reach a device: rows, tables and lists of a call, brought there and back.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/attention/launch_prompt.hpp"
#include "kvpolicy/gpu/base/extent.hpp"
#include "kvpolicy/gpu/base/top_k.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/pooling/launch_pool.hpp"
#include "kvpolicy/gpu/pooling/score_dot.hpp"
#include "kvpolicy/gpu/retain/launch_scores.hpp"

namespace kvpolicy::gpu::detail {

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

template <staging_device D>
class staged {
 public:
  using memory = typename D::memory;

  template <class... Args>
  explicit staged(Args&&... args) : device_(std::forward<Args>(args)...) {}

  D& device() noexcept { return device_; }

 protected:
  /// Scratch and copies of one primitive.
  struct call : scratch_scope<D> {
    explicit call(staged& exec) : scratch_scope<D>(exec.device_) { exec.device_.begin(); }
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
  batch_vectors bounds_of(bounds_table const& bounds) {
    std::int64_t const bytes = bounds.bytes();
    batch_vectors made{};
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
      made.pages = device_.in(from.pages, divided_up(tokens_between(from, 0, tokens).second, from.page_size));
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
      each_token(lists[l], [&](std::int32_t t) { *to++ = t; });
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

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> counts_;
  std::vector<std::int32_t> begins_;
  std::vector<std::int32_t> ends_;
};

}  // namespace kvpolicy::gpu::detail
