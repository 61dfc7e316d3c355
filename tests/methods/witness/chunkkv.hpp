// ChunkKV, written from the text of a write-up of the paper alone. Clear and slow.
// Token indices are positions in the original prompt, from 0. Token ids are not an input: the text never uses them.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace witness::chunkkv {
enum class score_kind { softmax, raw_logits };          // "attention scores": after or before the softmax
enum class reduce { sum, max };                         // a mean ranks as the sum does, so it isn't a value of its own
enum class head_choice { one_for_layer, per_kv_head };  // the text's A_j has no head index
enum class chunk_pool {
  all_tokens,      // "all tokens are partitioned into C = ceil(T_k / c) chunks"; window tokens compete too
  outside_window,  // all tokens partitioned, but a chunk wholly inside the window isn't ranked (a straddling one sums all its
                   // tokens)
  before_window    // only the T_k - w tokens before the window are partitioned and scored
};
enum class budget_rule {
  floor_k,
  nearest_k,
  ceil_k,     // k = room / c, rounded; room = budget (less w, see budget_includes_window)
  largest_k,  // the most chunks of the ranking whose tokens outside the window still fit the room
  cut_last    // as largest_k, and the next chunk is cut after its first tokens so that the room is full
};

struct settings {
  int chunk_size = 10;                 // c: "default chunk size = 10" (Key Insight; Key Designs 3)
  int window = 0;                      // w: the text gives no value. It must be set; 0 throws
  int n_reuse = 2;                     // N_reuse: "Reuse = 2 ... recommended default" (Ablation Study); 1 = no reuse
  double ratio = 0.10;                 // "10% compression ratio" (TL;DR), used when budget_tokens and top_k are unset
  bool ratio_is_kept = true;           // 10% stays ("extreme compression ratios (10%)"); false: 10% is removed
  int budget_tokens = -1;              // "128 KV" (Main Results); >= 0 replaces ratio
  int top_k = -1;                      // k of "top-k chunks" given directly; >= 0 replaces both
  bool budget_includes_window = true;  // both "form the final compressed KV cache" (Key Designs 3); false: w on top
  budget_rule rule = budget_rule::floor_k;
  chunk_pool pool = chunk_pool::all_tokens;
  head_choice heads = head_choice::one_for_layer;
  score_kind score = score_kind::softmax;
  bool causal = true;                  // window query at position p sees keys 0..p; false: all T_k keys
  reduce over_rows = reduce::sum;      // w window queries -> one A_j
  reduce over_q_heads = reduce::sum;   // query heads of one KV head -> one A_j
  reduce over_kv_heads = reduce::sum;  // KV heads -> one A_j (one_for_layer alone)
  bool short_chunk_first = false;      // where c doesn't divide: the short chunk is the last one; true: the first one
  bool ties_later_first = false;       // equal chunk scores: earlier chunk wins; true: later one
  bool keep_all_if_fits = false;       // the text has no exception for prompts within the budget; true: they stay whole
};

struct layer_input {
  int tokens = 0, kv_heads = 0, q_heads = 0, dim = 0;
  int rows = 0;  // queries given: those of the last `rows` tokens; rows >= min(w, tokens)
  double scale = 1.0;
  std::vector<float> keys;     // [kv_heads][tokens][dim]
  std::vector<float> queries;  // [rows][q_heads][dim]
};

using lists = std::vector<std::vector<int>>;  // per KV head, or exactly one (one_for_layer); each sorted

inline void need(bool ok, char const* what) {
  if (!ok) throw std::invalid_argument(what);
}
inline void fold(std::vector<double>& into, std::vector<double> const& from, reduce how) {
  for (size_t j = 0; j < from.size(); ++j)
    if (j == into.size()) into.push_back(from[j]);  // a key that no earlier row has seen
    else into[j] = how == reduce::sum ? into[j] + from[j] : std::max(into[j], from[j]);
}

// Overall Architecture (1): attention of one window query on the tokens that it sees.
inline std::vector<double> row_scores(settings const& s, layer_input const& in, int position, int q_head) {
  int const kv = q_head / (in.q_heads / in.kv_heads), row = in.rows - (in.tokens - position);
  int const seen = s.causal ? position + 1 : in.tokens;
  std::vector<double> a(seen);
  for (int j = 0; j < seen; ++j) {
    double dot = 0;
    for (int d = 0; d < in.dim; ++d)
      dot += double(in.queries[(size_t(row) * in.q_heads + q_head) * in.dim + d]) *
             double(in.keys[(size_t(kv) * in.tokens + j) * in.dim + d]);
    a[j] = dot * in.scale;
  }
  if (s.score == score_kind::raw_logits) return a;
  double const top = *std::max_element(a.begin(), a.end());
  double total = 0;
  for (double& x : a) total += x = std::exp(x - top);
  for (double& x : a) x /= total;
  return a;
}

// A_j: one vector over tokens for each KV head, or one for the layer. Rows first, then query heads, then KV heads.
inline std::vector<std::vector<double>> token_scores(settings const& s, layer_input const& in) {
  int const w = std::min(s.window, in.tokens), group = in.q_heads / in.kv_heads;
  std::vector<std::vector<double>> out;
  for (int kv = 0; kv < in.kv_heads; ++kv) {
    std::vector<double> head;
    for (int q = kv * group; q < (kv + 1) * group; ++q) {
      std::vector<double> rows;
      for (int p = in.tokens - w; p < in.tokens; ++p) fold(rows, row_scores(s, in, p, q), s.over_rows);
      fold(head, rows, s.over_q_heads);
    }
    if (s.heads == head_choice::per_kv_head || out.empty()) out.push_back(head);
    else fold(out[0], head, s.over_kv_heads);
  }
  return out;
}

// Overall Architecture (2), Key Designs 1: contiguous chunks of size c, C = ceil(T / c). Chunk i is [edge[i], edge[i+1]).
inline std::vector<int> chunk_edges(settings const& s, int tokens) {
  int const first = s.short_chunk_first && tokens % s.chunk_size ? tokens % s.chunk_size : s.chunk_size;
  std::vector<int> edge{0};
  for (int e = first; e < tokens; e += s.chunk_size) edge.push_back(e);
  if (tokens > 0) edge.push_back(tokens);
  return edge;
}

inline int token_budget(settings const& s, int tokens) {  // rounding down isn't in the text; 1e-9 absorbs 0.29 * 100 < 29
  if (s.budget_tokens >= 0) return s.budget_tokens;
  return int(std::floor((s.ratio_is_kept ? s.ratio : 1.0 - s.ratio) * tokens + 1e-9));
}

// Key Designs 1 and 3 for one A: chunk scores, top-k chunks, the last w tokens joined to them.
inline std::vector<int> select(settings const& s, int tokens, std::vector<double> const& A) {
  int const w = std::min(s.window, tokens), start = tokens - w, budget = token_budget(s, tokens);  // window: [start, tokens)
  std::vector<char> keep(tokens, 0);
  std::fill(keep.begin() + start, keep.end(), 1);  // "always retained", even where budget < w
  if (s.top_k < 0 && s.keep_all_if_fits && tokens <= budget) std::fill(keep.begin(), keep.end(), 1);
  const std::vector<int> edge = chunk_edges(s, s.pool == chunk_pool::before_window ? start : tokens);
  std::vector<int> order;     // the chunks that compete, best first after the sort
  std::vector<double> chunk;  // A_chunk^i = sum of A_j, j in chunk_i
  for (int i = 0; i + 1 < int(edge.size()); ++i) {
    chunk.push_back(std::accumulate(A.begin() + edge[i], A.begin() + edge[i + 1], 0.0));
    if (s.pool != chunk_pool::outside_window || edge[i] < start) order.push_back(i);
  }
  if (s.ties_later_first) std::reverse(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return chunk[a] > chunk[b]; });
  int room = std::max(0, s.budget_includes_window ? budget - w : budget);
  if (s.top_k >= 0 || s.rule <= budget_rule::ceil_k) {  // k fixed beforehand
    int const c = s.chunk_size, add = s.rule == budget_rule::floor_k ? 0 : s.rule == budget_rule::nearest_k ? c / 2 : c - 1;
    int const k = std::min(s.top_k >= 0 ? s.top_k : (room + add) / c, int(order.size()));
    for (int r = 0; r < k; ++r) std::fill(keep.begin() + edge[order[r]], keep.begin() + edge[order[r] + 1], 1);
  } else {  // k found by counting tokens
    for (int i : order) {
      int const fresh = std::max(0, std::min(edge[i + 1], start) - edge[i]);  // tokens that the window doesn't hold
      if (fresh > room && s.rule == budget_rule::largest_k) break;
      int const take = std::min(fresh, room);
      std::fill(keep.begin() + edge[i], keep.begin() + edge[i] + take, 1);
      room -= take;
      if (take < fresh) break;
    }
  }
  std::vector<int> out;
  for (int j = 0; j < tokens; ++j)
    if (keep[j]) out.push_back(j);
  return out;
}

inline lists compress(settings const& s, layer_input const& in) {  // one layer on its own, without reuse
  need(s.window > 0, "window (w) has no value in the text: set it");
  need(s.chunk_size > 0 && s.n_reuse > 0 && s.ratio >= 0 && s.ratio <= 1, "settings out of range");
  need(in.tokens > 0 && in.dim > 0 && in.kv_heads > 0 && in.q_heads >= in.kv_heads && in.q_heads % in.kv_heads == 0, "shape");
  need(in.rows >= std::min(s.window, in.tokens) && in.rows <= in.tokens, "rows: the last min(w, tokens) queries are needed");
  need(in.keys.size() == size_t(in.kv_heads) * in.tokens * in.dim, "keys size");
  need(in.queries.size() == size_t(in.rows) * in.q_heads * in.dim, "queries size");
  lists out;
  for (auto const& A : token_scores(s, in)) out.push_back(select(s, in.tokens, A));
  return out;
}

// All layers of one sequence. Key Designs 2: "computed only at the first layer every N_reuse layers, with subsequent
// layers directly reusing the indices". Overall Architecture: compression happens "during the prefilling stage" alone.
class sequence {
 public:
  sequence(settings s, int layers) : s_(s), layers_(layers) { need(s.n_reuse > 0, "n_reuse"); }
  int leader(int layer) const { return layer / s_.n_reuse * s_.n_reuse; }
  // A layer's whole prompt, layers in rising order; what's returned stays in memory. A reusing layer reads in.tokens alone.
  lists const& prompt(int layer, layer_input const& in) {
    state& me = layers_.at(layer);
    state const& first = layers_.at(leader(layer));
    need(me.kept.empty(), "one prompt a layer");
    if (leader(layer) == layer) {
      me.kept = compress(s_, in);
    } else {
      need(!first.kept.empty() && first.prompt == in.tokens, "the group's first layer comes first, with as many tokens");
      me.kept = first.kept;  // the prompt's lists: tokens that `first` generated since then are taken off again
      for (auto& l : me.kept) std::erase_if(l, [&](int j) { return j >= in.tokens; });
    }
    me.prompt = me.next = in.tokens;
    return me.kept;
  }
  // One decoding step of a layer: its new token joins the cache and is read with all that was kept.
  lists const& step(int layer) {
    state& me = layers_.at(layer);
    need(!me.kept.empty(), "prompt first");
    for (auto& l : me.kept) l.push_back(me.next);
    me.next += 1;
    return me.kept;
  }
  lists const& kept(int layer) const { return layers_.at(layer).kept; }

 private:
  struct state {
    lists kept;
    int prompt = 0, next = 0;
  };
  settings s_;
  std::vector<state> layers_;
};
}  // namespace witness::chunkkv
