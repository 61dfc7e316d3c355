// simd_exec's attend_block: strips of queries against chunks of keys, each packed once for all that read it.
#include <algorithm>
#include <atomic>
#include <numbers>

#include "block_workspace.hpp"
#include "kvpolicy/exec/host_attend.hpp"
#include "workspace.hpp"

namespace kvpolicy {

using namespace simd;

namespace {

constexpr auto log2e = std::numbers::log2e_v<float>;

constexpr std::int64_t divided_up(std::int64_t n, std::int64_t by) noexcept { return (n + by - 1) / by; }

/// One strip at work.
class strip {
 public:
  strip(block_workspace& work, query_window const& queries, rows const& keys, rows const& values, selection const& kept,
        attention_terms const& terms)
      : w_(work),
        queries_(queries),
        keys_(keys),
        values_(values),
        kept_(kept),
        terms_(terms),
        group_(queries.heads / keys.heads),
        tiles_(divided_up(queries.tokens, tile_queries)) {}

  /// False where a query or a row that is packed has an infinity or a NaN: nothing is written then.
  template <class ForEach>
  bool run(table<float> out, ForEach const& for_each) {
    std::int64_t longest = 0;
    std::int64_t oldest = keys_.tokens;
    for (std::int64_t l = 0; l < lists(); ++l) {
      see(l);
      oldest = std::min<std::int64_t>(oldest, w_.begins(l)[0]);
      longest = std::max<std::int64_t>(longest, w_.ends(l)[at(queries_.tokens - 1)]);
    }
    std::atomic<bool> finite = true;
    auto const expect = [&](bool all) {
      if (!all) finite.store(false, std::memory_order_relaxed);
    };
    for_each(tiles_ * queries_.heads, [&](std::int64_t i) { expect(begin(i % tiles_, i / tiles_)); });
    for (std::int64_t first = oldest / tile_keys * tile_keys; first < longest; first += chunk_keys) {
      std::int64_t const count = std::min(chunk_keys, longest - first);
      std::int64_t const blocks = divided_up(count, tile_keys);
      for_each(blocks * keys_.heads, [&](std::int64_t i) { expect(pack(i / blocks, first, i % blocks)); });
      if (!finite.load(std::memory_order_relaxed)) return false;
      for_each(tiles_ * queries_.heads, [&](std::int64_t i) { attend(i % tiles_, i / tiles_, first, blocks); });
    }
    for_each(tiles_ * queries_.heads, [&](std::int64_t i) { finish(i % tiles_, i / tiles_, out); });
    return true;
  }

 private:
  std::int64_t lists() const noexcept { return std::ssize(kept_.lists()); }
  std::int64_t list_of(std::int64_t head) const noexcept { return kept_.granularity() == scope::head ? head : 0; }
  std::int64_t tokens_of(std::int64_t tile) const noexcept {
    return std::min(tile_queries, queries_.tokens - tile * tile_queries);
  }

  /// Which of a list's tokens each query sees.
  void see(std::int64_t l) {
    std::int64_t const first = keys_.tokens - queries_.tokens;
    range_list const& list = kept_.lists()[static_cast<std::size_t>(l)];
    std::span const end = w_.ends(l);
    std::span const begin = w_.begins(l);
    auto const here = static_cast<std::size_t>(queries_.tokens);
    std::ranges::fill(begin, 0);
    std::ranges::fill(end, 0);
    count_before(list, first + 1, end.first(here));
    if (terms_.window > 0) count_before(list, first + 1 - terms_.window, begin.first(here));
  }

  bool begin(std::int64_t tile, std::int64_t q) {
    tile_room const room = w_.tile(q, tile);
    std::fill_n(room.sums, padded(values_.head_dim) * tile_queries, 0.0f);
    std::fill_n(room.most, tile_queries, no_logit);
    std::fill_n(room.total, tile_queries, 0.0f);
    return w_.kernels.pack_queries(queries_.at(tile * tile_queries, q), queries_.token_stride, tokens_of(tile), keys_.head_dim,
                                   queries_.scale * log2e, room.queries);
  }

  bool pack(std::int64_t head, std::int64_t chunk, std::int64_t block) {
    range_list const& list = kept_.of({head});
    std::int64_t const first = chunk + block * tile_keys;
    std::int64_t const last = std::min<std::int64_t>(first + tile_keys, w_.ends(list_of(head))[at(queries_.tokens - 1)]);
    std::array<std::int64_t, tile_keys> tokens;
    std::int64_t count = 0;
    each_token(list, first, last, [&](std::int64_t t) { tokens[at(count++)] = t; });
    float* const places = w_.places(head, block);
    for (std::int64_t i = 0; i < tile_keys; ++i) places[i] = i < count ? static_cast<float>(tokens[at(i)]) : 0;
    if (count == 0 || last <= w_.begins(list_of(head))[0]) return true;
    auto const packed = [&](rows const& from, auto pack_rows, std::byte* to) {
      std::array<std::byte const*, tile_keys> address;
      if (from.plain()) {
        for (std::int64_t i = 0; i < count; ++i) address[at(i)] = from.address({head}, {tokens[at(i)]});
        return pack_rows(address.data(), count, from.type, from.head_dim, to);
      }
      copy_rows(from, head, std::span(tokens).first(at(count)), widen_, w_.copies(head, block), address.data());
      return pack_rows(address.data(), count, element_type::f32, from.head_dim, to);
    };
    bool const keys_finite = packed(keys_, w_.kernels.pack_keys, w_.packed_keys(head, block));
    return packed(values_, w_.kernels.pack_values, w_.packed_values(head, block)) && keys_finite;
  }

  void attend(std::int64_t tile, std::int64_t q, std::int64_t chunk, std::int64_t blocks) {
    alignas(64) float logits[tile_keys * tile_queries];
    std::int64_t const head = q / group_;
    tile_room const room = w_.tile(q, tile);
    std::int64_t const from = tile * tile_queries;
    std::span const begins = w_.begins(list_of(head)).subspan(at(from), at(tile_queries));
    std::span const ends = w_.ends(list_of(head)).subspan(at(from), at(tile_queries));
    alignas(64) float places[tile_queries];
    for (std::int64_t i = 0; i < tile_queries; ++i) places[i] = static_cast<float>(keys_.tokens - queries_.tokens + from + i);
    query_tile const seen{.queries = room.queries,
                          .sums = room.sums,
                          .most = room.most,
                          .total = room.total,
                          .begin = begins.data(),
                          .end = ends.data(),
                          .soft_cap = terms_.soft_cap * log2e,
                          .slope = terms_.slopes == nullptr ? 0 : terms_.slopes[q] * log2e,
                          .places = places};
    // Queries see more with every token: the first and the last of them are the edges. Those behind the last see nothing.
    std::int64_t const all_from = begins[at(tokens_of(tile) - 1)];
    std::int64_t const all_to = ends[0];
    std::int64_t const any_from = begins[0];
    std::int64_t const any_to = ends[at(tokens_of(tile) - 1)];
    w_.kernels.enter();
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::int64_t const first = chunk + b * tile_keys;
      std::int64_t const last = std::min(first + tile_keys, any_to);
      if (last <= first || first + tile_keys <= any_from || any_to <= any_from) continue;
      std::int64_t const rows_here = divided_up(last - first, tile_step) * tile_step;
      bool const masked = first < all_from || first + rows_here > all_to;
      // What is packed as f32 was copied; the type says whether lesser halves can be other than 0.
      w_.kernels.products(w_.packed_keys(head, b), room.queries, rows_here, keys_.head_dim, packed_type(keys_), logits);
      w_.weigh(seen, logits, rows_here, first, masked, w_.places(head, b), values_.head_dim, w_.kernels.pairs);
      w_.kernels.accumulate(w_.packed_values(head, b), logits, rows_here, values_.head_dim, packed_type(values_), room.sums);
    }
    w_.kernels.leave();
  }

  static element_type packed_type(rows const& from) noexcept { return from.plain() ? from.type : element_type::f32; }

  void finish(std::int64_t tile, std::int64_t q, table<float> out) {
    tile_room const room = w_.tile(q, tile);
    for (std::int64_t i = 0; i < tokens_of(tile); ++i) {
      float total = room.total[i];
      float factor = 1;
      if (terms_.sinks != nullptr) {
        float const sink = terms_.sinks[q] * log2e;
        float const most = std::max(sink, room.most[i]);
        factor = std::exp2(room.most[i] - most);
        total = total * factor + std::exp2(sink - most);
      }
      float* const to = out.row((tile * tile_queries + i) * queries_.heads + q);
      for (std::int64_t d = 0; d < values_.head_dim; ++d)
        to[d] = total == 0 ? 0 : room.sums[d * tile_queries + i] * factor / total;
    }
  }

  static constexpr std::size_t at(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

  block_workspace& w_;
  query_window const& queries_;
  rows const& keys_;
  rows const& values_;
  selection const& kept_;
  attention_terms const& terms_;
  widen_function widen_ = best_widen();
  std::int64_t group_;
  std::int64_t tiles_;
};

void attend_in_steps(query_window const& queries, rows const& keys, rows const& values, selection const& kept,
                     attention_terms const& terms, table<float> out, simd_exec& exec) {
  for (std::int64_t first = 0; first < queries.tokens; first += most_step_tokens) {
    query_window some = queries;
    some.data = queries.at(first, 0);
    some.tokens = std::min(most_step_tokens, queries.tokens - first);
    rows before = keys;
    before.tokens = keys.tokens - queries.tokens + first + some.tokens;
    exec.attend(some, before, values, kept, terms,
                {out.row(first * queries.heads), some.tokens * queries.heads, out.columns, out.row_stride}, {});
  }
}

}  // namespace

char const* simd_exec::block_instruction_set() noexcept { return best_block_kernels().instruction_set; }

void simd_exec::attend_block(query_window const& queries, rows const& keys, rows const& values, selection const& kept,
                             attention_terms const& terms, table<float> out) {
  workspace& w = *work_;
  w.check(keys, queries.heads);
  w.check(values, queries.heads);
  KVPOLICY_EXPECTS(queries.tokens <= keys.tokens, "a block of " + std::to_string(queries.tokens) + " queries over " +
                                                      std::to_string(keys.tokens) + " rows; each has a row of its own");
  auto const for_each = [&](std::int64_t items, auto&& body) { w.for_each(items, everyone, body); };
  for (std::int64_t first = 0; first < queries.tokens; first += strip_tokens) {
    query_window some = queries;
    some.data = queries.at(first, 0);
    some.tokens = std::min(strip_tokens, queries.tokens - first);
    rows keys_here = keys;
    rows values_here = values;
    keys_here.tokens = values_here.tokens = keys.tokens - queries.tokens + first + some.tokens;
    table<float> const to{out.row(first * queries.heads), some.tokens * queries.heads, out.columns, out.row_stride};
    bool const windowed = terms.window != 0;
    bool done = false;
    if (windowed || some.tokens > most_step_tokens)
      done = strip(w.tiled, some, keys_here, values_here, kept, terms).run(to, for_each);
    // What no query sees may not matter, and a product with a NaN does: such rows are left to attention that goes row by row.
    if (!done && !windowed) attend_in_steps(some, keys_here, values_here, kept, terms, to, *this);
    else if (!done) host::attend(some, keys_here, values_here, kept, terms, to, {});
  }
}

}  // namespace kvpolicy
