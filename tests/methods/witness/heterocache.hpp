// HeteroCache from the paper's text alone. "Alg" = Algorithm 1 (App A), by line. Token ids are positions 0,1,2,... of the
// sequence.
#pragma once
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>
namespace witness::heterocache {
enum class role { anchor, volatile_, pivot, satellite };    // Sec 4.1
enum class over_steps { median, mean, one_step, prefill };  // how T values become one (prefill: edges only)
enum class over_samples { mean_of_samples, pool_steps };    // App B.1 "statistical average across this dataset"
enum class median_rule { mean_of_middle, lower, upper };
enum class rounding { floor, nearest, ceil };                      // even counts, counts: silent
enum class group_rule { mean_weights, mean_logits, max_weights };  // App C.1 GQA
enum class isolated { singleton_pivot, by_stability };             // body: clusters divide H_similar | C.2 "remaining heads"
enum class monitor { every_W, sliding };
enum class length_rule { eq8, alg14 };                        // Alg 25-33 | Eq 10 at each step
enum class candidates { all, prompt_only, all_then_prompt };  // tokens I_s is taken from (Alg 37, 38)
using nums = std::vector<double>;
using ids = std::vector<int>;
using rows_f = std::vector<std::vector<float>>;
struct settings {
  double tau_stable = 0.5, tau_sim = 0.5, tau_drift = 0.5, rho = 0.5;  // Sec 5.1 (Qwen: tau_stable 0.4; rho 0.3 or 0.5)
  int W = 0, pool_kernel = 0;  // Eq 10 | App B.2, C.1; the paper has no values: must be set (kernel: odd, where pooling is on)
  bool pool_calibration = true, pool_online = false, pool_counts_padding = false;
  int calib_k = 1000;
  double calib_k_ratio = 0;        // App B.2 "top-1K" | C.4 "one-fifth of the length" (0.2), used when > 0
  bool calib_prompt_only = false;  // App B.2 "all historical keys"
  over_steps stable_rule = over_steps::median, sim_rule = over_steps::median, edge_rule = over_steps::median;
  int one_step = -1;  // index of the "representative decoding step" (App B.4); -1 = the last
  over_samples samples = over_samples::mean_of_samples;
  median_rule median = median_rule::mean_of_middle;
  bool sim_counts_self = false;                     // Eq 3 prints max over h' in l; its sentence says "all other heads"
  bool strict_scores = false, strict_edges = true;  // Eq 4, 5 print >=; App C.2 "exceeding" | edges: App C.1 "exceeds"
  bool cluster_all_heads = false;                   // App C.2 "all attention heads"; body and Alg 7: H_similar
  isolated lone = isolated::singleton_pivot;
  bool effective_degree = true;  // App C.2; false: degree in the whole graph, fixed
  bool ties_low = true;          // equal scores or degrees: the lower index first (silent)
  length_rule lengths = length_rule::eq8;
  rounding round = rounding::floor;                             // L_base and l_i as counts (silent)
  bool round_base_at_definition = false, clamp_length = false;  // rounded L_base enters Eq 8, 9 too | l_i <= L (silent)
  double stability_floor = 1e-6;
  group_rule group = group_rule::mean_weights;  // w = 1/S at S = 0 (silent) | App C.1
  int observation_rows = 1;  // trailing prompt queries of Attn_prefill; 0 = all given (silent; B.2 "last query token")
  monitor when = monitor::every_W;
  candidates from = candidates::all;
  bool prompt_attention = false;  // Alg 30, 37: attention over the prompt's tokens alone, as the authors' code has it
  bool late_keys = true;          // Alg 30: the window's queries against C_GPU as at step t; false: as at step k
  bool reset_window = false, monitor_prompt_only = false;  // sliding: empty window after retrieval | K_t of prompt tokens only
  bool keep_generated = false;  // Alg 38 assigns the satellite's whole cache; true: generated tokens stay as well
  int serve_delay = 1;          // a list made at step t serves from step t + delay (Alg 22 is before 38: 1)
};
inline int count_of(double x, rounding r) {
  return std::max(0, (int)(r == rounding::floor  ? std::floor(x + 1e-9)
                           : r == rounding::ceil ? std::ceil(x - 1e-9)
                                                 : std::floor(x + 0.5)));
}
inline double median_of(nums v, median_rule m) {
  std::sort(v.begin(), v.end());
  size_t n = v.size(), lo = (n - 1) / 2, hi = n / 2;
  return m == median_rule::lower ? v.at(lo) : m == median_rule::upper ? v.at(hi) : (v.at(lo) + v.at(hi)) / 2;
}
inline ids top(nums const& v, int k, bool ties_low) {  // K(.) of Eq 1, sorted by id
  ids o(v.size());
  for (size_t i = 0; i < o.size(); i++) o[i] = (int)i;
  std::sort(o.begin(), o.end(), [&](int a, int b) { return v[a] != v[b] ? v[a] > v[b] : ties_low ? a < b : a > b; });
  o.resize(std::min<size_t>(o.size(), std::max(0, k)));
  std::sort(o.begin(), o.end());
  return o;
}
inline double common(ids const& a, ids const& b) {
  double c = 0;
  for (int x : a) c += std::binary_search(b.begin(), b.end(), x);
  return c;
}
inline double overlap(ids const& a, ids const& b) {
  size_t m = std::min(a.size(), b.size());
  return m ? common(a, b) / (double)m : 0.0;
}  // Eq 1
inline nums pooled(nums const& v, settings const& s) {  // App C.1 1D average, stride 1, same length
  if (s.pool_kernel < 1 || s.pool_kernel % 2 == 0) throw std::invalid_argument("pool_kernel");
  int n = (int)v.size(), half = s.pool_kernel / 2;
  nums o(n);
  for (int i = 0; i < n; i++) {
    int a = std::max(0, i - half), b = std::min(n - 1, i + half);
    for (int j = a; j <= b; j++) o[i] += v[j];
    o[i] /= s.pool_counts_padding ? s.pool_kernel : b - a + 1;
  }
  return o;
}
// ---- Part 1: calibration attention to roles (Sec 3, 4.1, App C.1, C.2), one layer
struct calib_sample {
  rows_f prefill;
  std::vector<rows_f> steps;
};  // last token's weights: [q_heads][prompt], [T][q_heads][tokens then]
struct layer_roles {
  std::vector<role> roles;
  ids pivot;
  nums stable, sim;
};  // pivot[h]: head's pivot (a pivot's own: itself), else -1
inline std::vector<ids> active_sets(rows_f const& a, int kv_heads, int prompt, settings const& s) {
  std::vector<ids> out;
  int g = (int)a.size() / kv_heads;
  for (int h = 0; h < kv_heads; h++) {
    nums v(a[0].size(), 0.0);
    for (int q = h * g; q < (h + 1) * g; q++)
      for (size_t i = 0; i < v.size(); i++)
        v[i] = s.group == group_rule::max_weights ? std::max<double>(v[i], a[q].at(i)) : v[i] + a[q].at(i) / (double)g;
    if (s.pool_calibration) v = pooled(v, s);
    if (s.calib_prompt_only) v.resize(prompt);
    out.push_back(top(v, s.calib_k_ratio > 0 ? count_of(s.calib_k_ratio * prompt, s.round) : s.calib_k, s.ties_low));
  }
  return out;
}
inline double summary(std::vector<nums> v, over_steps r, settings const& s) {  // [samples][T] to one number
  if (s.samples == over_samples::pool_steps) {
    nums all;
    for (auto& x : v) all.insert(all.end(), x.begin(), x.end());
    v = {all};
  }
  double sum = 0;
  for (auto& x : v) {
    double m = 0;
    for (double y : x) m += y / (double)x.size();
    sum += r == over_steps::median     ? median_of(x, s.median)
           : r == over_steps::one_step ? x.at(s.one_step < 0 ? x.size() - 1 : s.one_step)
                                       : m;
  }
  return sum / (double)v.size();
}
inline layer_roles make_roles(std::vector<calib_sample> const& data, int H, settings const& s) {  // H = kv_heads
  std::vector<std::vector<nums>> st(H), si(H), pw(H * H);  // [head or pair][sample][step]
  for (auto& d : data) {
    int prompt = (int)d.prefill.at(0).size();
    auto base = active_sets(d.prefill, H, prompt, s);
    for (auto* v : {&st, &si, &pw})
      for (auto& x : *v) x.emplace_back();
    for (auto& step : d.steps)
      for (int h = 0; h < H; h++) {
        auto K = active_sets(step, H, prompt, s);
        double m = 0;
        st[h].back().push_back(overlap(K[h], base[h]));  // Eq 2
        for (int o = 0; o < H; o++) {
          if (o != h || s.sim_counts_self) m = std::max(m, overlap(K[h], K[o]));  // Eq 3
          pw[h * H + o].back().push_back(s.edge_rule == over_steps::prefill ? overlap(base[h], base[o]) : overlap(K[h], K[o]));
        }
        si[h].back().push_back(m);
      }
  }
  layer_roles r;
  std::vector<char> edge(H * H, 0), node(H), open(H);
  auto passes = [](double x, double tau, bool strict) { return strict ? x > tau : x >= tau; };
  for (int h = 0; h < H; h++) {
    r.stable.push_back(summary(st[h], s.stable_rule, s));
    r.sim.push_back(summary(si[h], s.sim_rule, s));
    r.pivot.push_back(-1);
    node[h] = open[h] = s.cluster_all_heads || passes(r.sim[h], s.tau_sim, s.strict_scores);                 // Eq 4, Alg 5
    r.roles.push_back(passes(r.stable[h], s.tau_stable, s.strict_scores) ? role::anchor : role::volatile_);  // Eq 5, Alg 6
  }
  for (int a = 0; a < H; a++)
    for (int b = 0; b < H; b++)  // App C.1 graph
      edge[a * H + b] =
          a != b && node[a] && node[b] && passes(summary(pw[a * H + b], s.edge_rule, s), s.tau_sim, s.strict_edges);
  for (;;) {  // Alg 7, App C.2 greedy star clustering
    int best = -1, deg = -1;
    for (int a = 0; a < H; a++)
      if (open[a]) {
        int d = 0, live = 0;
        for (int b = 0; b < H; b++)
          if (edge[a * H + b]) {
            live += open[b];
            d += open[b] || !s.effective_degree;
          }
        if (s.lone == isolated::by_stability && live == 0) continue;  // has nobody left to stand for
        if (d > deg || (d == deg && !s.ties_low)) {
          best = a;
          deg = d;
        }
      }
    if (best < 0) return r;
    r.roles[best] = role::pivot;
    r.pivot[best] = best;
    open[best] = 0;
    for (int b = 0; b < H; b++)
      if (edge[best * H + b] && open[b]) {
        r.roles[b] = role::satellite;
        r.pivot[b] = best;
        open[b] = 0;
      }  // Eq 6
  }
}
// ---- Budgets (Sec 4.2): `model` holds every layer, since N is "the total number of heads"
struct budget {
  double l_base = 0;
  std::vector<ids> l;
};  // l[layer][head]; 0 for full heads (they have no l_i)
inline bool is_full(role r) { return r == role::volatile_ || r == role::pivot; }
inline budget make_budget(std::vector<layer_roles> const& model, int L, settings const& s) {
  budget b;
  double N = 0, full = 0, wsum = 0;
  auto w = [&](layer_roles const& r, size_t h) { return 1.0 / std::max(r.stable[h], s.stability_floor); };
  for (auto& r : model)
    for (size_t h = 0; h < r.roles.size(); h++) {
      N++;
      if (is_full(r.roles[h])) full++;
      else wsum += w(r, h);
    }
  if (N > full) b.l_base = (s.rho * N - full) * L / (N - full);  // Eq 7
  if (s.round_base_at_definition) b.l_base = count_of(b.l_base, s.round);
  double total = s.lengths == length_rule::eq8 ? (N - full) * b.l_base : b.l_base;  // Eq 8 | Alg 14
  for (auto& r : model) {
    b.l.emplace_back();
    for (size_t h = 0; h < r.roles.size(); h++) {
      int n = is_full(r.roles[h]) ? 0 : count_of(total * w(r, h) / wsum, s.round);
      b.l.back().push_back(s.clamp_length ? std::min(n, L) : n);
    }
  }
  return b;
}
// ---- Part 2: one layer of one sequence (Sec 4.3, Alg 17-46)
struct geometry {
  int kv_heads, q_heads, dim;
  double scale;
};
struct step_result {
  std::vector<ids> reads, kept;
  ids fired;
};  // by KV head: read now; in GPU or CPU after the step. Pivots with r_t = 1
class sequence {
  struct late {
    int due, head, made;
    ids list;
  };
  settings s;
  geometry g;
  layer_roles r;
  double l_base;
  ids l;
  rows_f K, Q;
  ids Qn;
  int n = 0, L = 0, t = 0;  // keys by head; Q_buffer (Alg 24), token count at each query
  std::vector<ids> gpu, base;
  std::vector<nums> win;
  std::vector<late> pending;
  static nums soft(nums v) {
    double mx = *std::max_element(v.begin(), v.end()), z = 0;
    for (double& y : v) z += y = std::exp(y - mx);
    for (double& y : v) y /= z;
    return v;
  }
  nums attend(float const* q, int h, int m) const {  // Attention(q, first m tokens of head h), group by App C.1
    int gs = g.q_heads / g.kv_heads;
    nums out(m, 0.0), mean(m, 0.0);
    for (int j = h * gs; j < (h + 1) * gs; j++) {
      nums x(m, 0.0);
      for (int i = 0; i < m; i++)
        for (int d = 0; d < g.dim; d++) x[i] += g.scale * q[j * g.dim + d] * K[h][(size_t)i * g.dim + d];
      nums p = soft(x);
      for (int i = 0; i < m; i++) {
        mean[i] += x[i] / gs;
        out[i] = s.group == group_rule::max_weights ? std::max(out[i], p[i]) : out[i] + p[i] / gs;
      }
    }
    return s.group == group_rule::mean_logits ? soft(mean) : out;
  }
  ids pick(nums v, int k, bool prompt_only) const {
    if (s.pool_online) v = pooled(v, s);
    if (prompt_only) v.resize(L);
    return top(v, k, s.ties_low);
  }
  static void add(ids& v, int a, int b) {
    for (; a < b; a++)
      if (!std::binary_search(v.begin(), v.end(), a)) v.insert(std::lower_bound(v.begin(), v.end(), a), a);
  }
  void serve(late const& u, int from) {
    gpu[u.head] = u.list;
    if (s.keep_generated) add(gpu[u.head], L, u.made);
    add(gpu[u.head], from, n);
  }                         // Alg 38
  void watch(ids& fired) {  // Alg 25-44
    bool block = s.when == monitor::every_W;
    if (block && t % s.W) return;
    for (int p = 0; p < g.kv_heads; p++)
      if (r.roles[p] == role::pivot && count_of(l_base, s.round) > 0) {
        ids Kt;
        if (block) win[p].clear();
        for (size_t k = 0; k < Q.size(); k++) {  // Alg 28-33; sliding: Q holds this step's query alone
          Kt = pick(attend(Q[k].data(), p,
                           s.prompt_attention ? L
                           : s.late_keys      ? n
                                              : Qn[k]),
                    count_of(l_base, s.round), s.monitor_prompt_only);
          win[p].push_back(common(Kt, base[p]) / l_base);
        }  // Eq 9, Alg 31
        if ((int)win[p].size() > s.W) win[p].erase(win[p].begin());
        if ((int)win[p].size() < s.W || !(median_of(win[p], s.median) < s.tau_drift)) continue;  // Eq 10, Alg 34
        fired.push_back(p);
        for (int h = 0; h < g.kv_heads; h++)
          if (r.roles[h] == role::satellite && r.pivot[h] == p) {  // Alg 36-39
            ids I = pick(attend(Q.back().data(), p, s.prompt_attention ? L : n), l[h], s.from == candidates::prompt_only);
            if (s.from == candidates::all_then_prompt) I.erase(std::lower_bound(I.begin(), I.end(), L), I.end());
            pending.push_back({t + s.serve_delay, h, n, I});
          }
        base[p] = Kt;
        if (s.reset_window) win[p].clear();  // Alg 40
      }
    Q.clear();
    Qn.clear();  // Alg 43
  }

 public:
  sequence(settings s_, geometry g_, layer_roles r_, double l_base_, ids l_) : s(s_), g(g_), r(r_), l_base(l_base_), l(l_) {
    if (s.W < 1) throw std::invalid_argument("W");
  }
  // Alg 17-20. keys [kv_heads][L_][dim]; queries [rows][q_heads][dim] of the last `rows` prompt tokens. Returns the GPU's
  // tokens by head.
  std::vector<ids> prompt(std::vector<float> const& keys, int L_, std::vector<float> const& queries, int rows) {
    *this = sequence(s, g, r, l_base, l);
    L = n = L_;
    int use = s.observation_rows ? s.observation_rows : rows;
    size_t hd = (size_t)L * g.dim;
    if (use > rows) throw std::invalid_argument("observation_rows");
    gpu.resize(g.kv_heads);
    base.resize(g.kv_heads);
    win.resize(g.kv_heads);
    for (int h = 0; h < g.kv_heads; h++) {
      K.emplace_back(keys.begin() + h * hd, keys.begin() + (h + 1) * hd);
      nums a(L, 0.0);
      for (int x = rows - use; x < rows; x++) {
        nums v = attend(&queries[(size_t)x * g.q_heads * g.dim], h, L - rows + x + 1);
        for (size_t i = 0; i < v.size(); i++) a[i] += v[i] / use;
      }
      gpu[h] = pick(a, is_full(r.roles[h]) ? L : l[h], false);
      if (r.roles[h] == role::pivot) base[h] = pick(a, count_of(l_base, s.round), false);  // Alg 19
    }
    return gpu;
  }
  step_result step(std::vector<float> const& key,
                   std::vector<float> const& query) {  // key [kv_heads][dim], query [q_heads][dim]
    t++;
    step_result out;
    for (size_t i = 0; i < pending.size();)
      if (pending[i].due <= t) {
        serve(pending[i], pending[i].made);
        pending.erase(pending.begin() + i);
      } else i++;
    for (int h = 0; h < g.kv_heads; h++) {
      K[h].insert(K[h].end(), key.begin() + h * g.dim, key.begin() + (h + 1) * g.dim);
      gpu[h].push_back(n);
    }  // Alg 22
    n++;
    Q.push_back(query);
    Qn.push_back(n);
    if (s.serve_delay > 0) out.reads = gpu;  // Alg 22 reads before Alg 25-44
    watch(out.fired);
    if (s.serve_delay == 0) {
      for (auto& u : pending) serve(u, n - 1);
      pending.clear();
      out.reads = gpu;
    }                // own token always read
    out.kept = gpu;  // satellites: C_CPU as well (Alg 18)
    for (int h = 0; h < g.kv_heads; h++)
      if (r.roles[h] == role::satellite) add(out.kept[h], 0, s.from == candidates::all ? n : L);
    return out;
  }
};
}  // namespace witness::heterocache
