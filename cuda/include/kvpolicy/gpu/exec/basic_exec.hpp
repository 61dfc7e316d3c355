// The four verbs' executor over a device: every primitive as launches, its small tables on the host or the device.
#pragma once

#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/exec/prompt.hpp"

namespace kvpolicy::gpu {

/// Runs the primitives on a device, and waits for each: what a primitive returns is there when it returns. Models executor.
/// It is for prompts, for policies that have no kernels for every step, and for tests; a captured decode step calls launches
/// instead (gpu/decoder.hpp). The contracts are in primitive/. Throws unsupported for head sizes and query groups that a
/// kernel does not take.
/// @tparam D  the device, such as stream_device
template <detail::staging_device D>
class basic_exec : public detail::prompt_primitives<D> {
  using base = detail::prompt_primitives<D>;

 public:
  using base::base;
  using typename base::memory;

  /// See primitive/attend.hpp.
  void attend(query_window const& queries, basic_rows<memory> const& keys, basic_rows<memory> const& values,
              selection const& kept, attention_terms const& terms, table<float> out, std::span<float> log_sum_exp) {
    call const scope(*this);
    detail::decode_attention a{};
    a.queries = vectors_of(queries, keys.head_dim);
    a.scale = queries.scale;
    a.group = static_cast<std::int32_t>(queries.heads / keys.heads);
    a.keys = rows_of(keys, keys.tokens);
    a.values = rows_of(values, values.tokens);
    a.lists = lists_of(kept.lists(), a.most_tokens);
    a.lists.tokens.all = keys.tokens;
    a.step = static_cast<std::int32_t>(queries.tokens);
    a.brought.all = queries.tokens;
    a.out = rows_for(queries, out);
    a.terms = terms_of(terms, queries.heads);
    std::int64_t const rows = queries.tokens * queries.heads;
    if (!log_sum_exp.empty()) a.log_sum_exp = device_.out(log_sum_exp.data(), 1, rows, rows, false);
    detail::launch_attend(device_, a);
    device_.finish();
  }

  /// See primitive/attend_block.hpp.
  void attend_block(query_window const& queries, basic_rows<memory> const& keys, basic_rows<memory> const& values,
                    selection const& kept, attention_terms const& terms, table<float> out) {
    call const scope(*this);
    detail::prompt_attention what = prompt_of(queries, keys);
    list_keys(what, kept.lists(), terms.window);
    detail::launch_attend_block(device_, keys.type, queries.tokens * queries.heads / keys.heads, keys.heads, [&](auto& a) {
      a.what = what;
      a.values = rows_of(values, values.tokens);
      a.terms = terms_of(terms, queries.heads);
      a.first = keys.tokens - queries.tokens;
      a.out = rows_for(queries, out);
    });
    device_.finish();
  }

 private:
  detail::attend_terms terms_of(attention_terms const& terms, std::int64_t heads) {
    detail::attend_terms made{.soft_cap = terms.soft_cap};
    if (terms.slopes != nullptr) made.slopes = device_.in(terms.slopes, heads);
    if (terms.sinks != nullptr) made.sinks = device_.in(terms.sinks, heads);
    return made;
  }
  vector_rows rows_for(query_window const& queries, table<float> out) {
    std::int64_t const rows = queries.tokens * queries.heads;
    vector_rows made{};
    made.base = device_.out(out.data, rows, out.columns, out.row_stride, false).data;
    made.elements = (rows - 1) * out.row_stride + out.columns;
    made.token_stride = queries.heads * out.row_stride;
    made.head_stride = out.row_stride;
    return made;
  }

  using base::device_;
  using base::list_keys;
  using base::lists_of;
  using base::prompt_of;
  using base::rows_of;
  using base::vectors_of;
  using typename base::call;
};

}  // namespace kvpolicy::gpu
