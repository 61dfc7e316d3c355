#include "chosen_tokens.hpp"

#include <cmath>
#include <cstring>

#include "kvpolicy/primitive/attend.hpp"
#include "nodes.hpp"

namespace kvpolicy::llama {
namespace {

bool is_filled_with(ggml_tensor const* t, float value) noexcept {
  t = behind_copies(t);
  if (t->op != GGML_OP_FILL) return false;
  float filled = 0;
  std::memcpy(&filled, t->op_params, sizeof filled);
  return filled == value;
}

/// Cells that a row of the mask leaves, counted from `base`.
template <class Bits>
void add_seen(Bits const* row, std::int64_t cells, std::int64_t base, range_list& to) {
  for (std::int64_t c = 0; c < cells; ++c)
    if (static_cast<Bits>(row[c] << 1U) == 0) append(to, base + c, base + c + 1, reason::scored);  // 0 or -0
}

}  // namespace

std::optional<std::int64_t> chosen_at_most(ggml_tensor const* attention) noexcept {
  if (attention->src[3] == nullptr || attention_parameters(attention).max_bias != 0) return std::nullopt;
  ggml_tensor const* const sum = behind_copies(attention->src[3]);
  if (sum->op != GGML_OP_ADD || behind_copies(sum->src[1])->op != GGML_OP_NONE) return std::nullopt;
  ggml_tensor const* const set = behind_copies(sum->src[0]);  // zeros, where indices say, into minus infinities
  if (set->op != GGML_OP_SET_ROWS || set->src[2] == nullptr) return std::nullopt;
  if (!is_filled_with(set->src[0], 0) || !is_filled_with(set->src[2], -INFINITY)) return std::nullopt;
  return set->src[1]->ne[0];
}

void chosen_tokens::attend(ggml_tensor* attention, simd_exec& exec) {
  rows const keys = all_rows_of(attention->src[1]);
  rows const values = all_rows_of(attention->src[2]);
  graph_queries const queries{attention->src[0]};
  ggml_tensor const* const mask = attention->src[3];
  attention_parameters const said(attention);
  ggml_tensor const* const sinks = attention->src[4];
  attention_terms const terms{.soft_cap = said.soft_cap,
                              .sinks = sinks != nullptr ? static_cast<float const*>(sinks->data) : nullptr};
  ggml_tensor const* cells = attention->src[1];         // a view that begins at the first stream's first cell
  if (cells->op == GGML_OP_CPY) cells = cells->src[0];  // of an f32 cache attention gets a copy
  std::int64_t const per_stream = queries.tensor->ne[1];
  std::int64_t const dim = values.head_dim;
  for (std::int64_t t = 0; t < queries.tokens(); ++t) {
    std::int64_t const stream = t / per_stream;
    std::size_t const place = cells->view_offs + static_cast<std::size_t>(stream) * cells->nb[3];
    char const* const row = static_cast<char const*>(mask->data) + static_cast<std::size_t>(t % per_stream) * mask->nb[1] +
                            static_cast<std::size_t>(stream) * mask->nb[3];
    auto const base = static_cast<std::int64_t>(place / cells->nb[1]);
    list_.front().clear();
    if (mask->type == GGML_TYPE_F32) add_seen(reinterpret_cast<std::uint32_t const*>(row), cells->ne[1], base, list_.front());
    else add_seen(reinterpret_cast<std::uint16_t const*>(row), cells->ne[1], base, list_.front());
    query_heads const of_token{.data = queries.at(t, 0),
                               .heads = queries.heads(),
                               .head_stride = queries.heads() > 1 ? queries.at(t, 1) - queries.at(t, 0) : keys.head_dim,
                               .scale = said.scale};
    float* const out = static_cast<float*>(attention->data) + t * queries.heads() * dim;
    kvpolicy::attend(of_token, keys, values, selection(scope::layer, list_, keys.heads), terms,
                     table<float>{out, queries.heads(), dim, dim}, {}, exec);
  }
}

}  // namespace kvpolicy::llama
