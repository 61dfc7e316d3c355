// CHESS (Context-aware Hierarchical Efficient Semantic Selection), written from the paper's text alone. Clear and slow.
// Key-based: no query, token id or attention scale enters (Sec. 3.2). One page set serves all layers and heads (Eq. 1).
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>
namespace witness::chess {
enum class ranked { zeroed, minus_infinity, survivors };  // what Quantile sees at the chunk and page levels
enum class threshold { quantile_linear, quantile_lower, quantile_higher, quantile_nearest, top_ceil, top_floor, top_round };
enum class candidates { all_pages, outside_window, outside_safety };  // pages that the descent ranks
enum class open_page { is_page, not_a_page };  // the partly filled last page; not_a_page: it is always read, never ranked
enum class window_unit { pages, tokens };      // what `window` counts; tokens: anchor = mean of the last `window` tokens
enum class renewal { on_trigger, every_step, every_n_pages };  // Sec. 3.3; Sec. 3 and 7; App. C's baseline
enum class before_trigger { select_after_prompt, full_cache };
enum class between { window_slides, frozen_and_growing };
enum class judged { kv_page, block_of_generated, sliding };  // the tokens that one mean and variance cover
enum class belongs { output_of_token, sampled_token };       // a step's entropy belongs to the token read or to the one drawn
enum class varentropy { variance_of_entropy, mean_token_varentropy };
enum class combine { both, either };
struct settings {
  int page_size = 32;                              // B, Sec. 5.1
  int pages_per_chunk = 0, chunks_per_grid = 0;    // N_c, N_g: the paper states no value; must be set
  int sink_pages = -1, window = 0;                 // no value in the paper; must be set
  double rho_g = 0.5, rho_c = 0.2, rho_p = 0.1;    // Table 1 Aggressive. Moderate .8 .7 .7, Conservative .9 .9 .9
  double tau_entropy = NAN, tau_varentropy = NAN;  // Sec. 5.1: 99th percentiles of a calibration, values not printed
  double percentile = 0.99;
  int static_pages = 6;                        // Sec. 5.1, for calibrate(); App. C, for renewal::every_n_pages
  ranked ranking = ranked::zeroed;             // Alg. 1 lines 11, 12, 16, 17
  threshold cut = threshold::quantile_linear;  // Alg. 1 lines 7, 12, 17
  candidates ranked_pages = candidates::all_pages;
  open_page last_page = open_page::is_page;
  window_unit unit = window_unit::pages;
  bool left_out_in_means = false;  // outside_*: pages that are not ranked still enter their chunks' and grids' means
  bool page_mean_over_members = false, group_mean_over_members = false;  // Eq. 1, 2 print 1/B, 1/N_c, 1/N_g for all units
  renewal when = renewal::on_trigger;
  before_trigger start = before_trigger::select_after_prompt;
  between reads = between::window_slides;          // what is read between two renewals
  bool sees_current_token = false;                 // Eq. 1 needs all layers' keys: known only after the token's step
  judged window_of_uncertainty = judged::kv_page;  // Fig. 4 "per KV Cache Page"
  bool judge_mixed_page = true;                    // kv_page: judge a page that also holds tokens without an entropy
  belongs entropy_of = belongs::output_of_token;
  varentropy second = varentropy::variance_of_entropy;
  bool sample_variance = false;  // true: divide by n - 1
  combine rule = combine::both;
  bool trigger_at_equality = false;      // Fig. 4 "upper-right region"; true: >= instead of >
  bool exclude_uncertain_pages = false;  // Fig. 4 "excluded by our method": such pages leave the ranking
};
struct layer_keys {
  int kv_heads = 0, tokens = 0, dim = 0;
  std::vector<float> k;
};  // [kv_heads][tokens][dim], as cached
struct uncertainty {
  double entropy = 0, varentropy = 0;
};  // of one next-token distribution, in nats
using vec = std::vector<double>;
inline double dot(vec const& a, vec const& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }
inline double snap(double x) { return std::abs(x - std::round(x)) < 1e-9 ? std::round(x) : x; }  // 0.3000..04 * 10 is 3
inline uncertainty of_logits(std::vector<float> const& z) {
  double top = *std::max_element(z.begin(), z.end()), sum = 0;
  for (float x : z) sum += std::exp(x - top);
  uncertainty u;
  for (float x : z) {
    double l = x - top - std::log(sum);
    u.entropy -= std::exp(l) * l;
    u.varentropy += std::exp(l) * l * l;
  }
  u.varentropy = std::max(0.0, u.varentropy - u.entropy * u.entropy);
  return u;
}
inline double quantile(vec v, double q, threshold how = threshold::quantile_linear) {
  std::sort(v.begin(), v.end());
  double at = snap(q * double(v.size() - 1));
  if (how == threshold::quantile_nearest) at = std::nearbyint(at);  // halves to even
  double lo = v[std::size_t(std::floor(at))], hi = v[std::size_t(std::ceil(at))], f = at - std::floor(at);
  if (how == threshold::quantile_lower || std::isinf(lo) || f == 0) return lo;
  return how == threshold::quantile_higher ? hi : lo + (hi - lo) * f;
}
inline double calibrate(vec const& pages, settings const& c) { return quantile(pages, c.percentile); }  // Sec. 3.3, 5.1
// One level of Algorithm 1: lines 6-8, 9-13 or 14-18. `active` is P_active; all true at the grid level. Returns the mask.
inline std::vector<char> level(vec const& score, std::vector<char> const& active, double rho, settings const& c) {
  std::vector<int> idx, order;
  vec v;
  for (int i = 0; i < int(score.size()); ++i) {
    if (c.ranking == ranked::survivors && !active[i]) continue;
    order.push_back(int(idx.size())), idx.push_back(i);
    v.push_back(active[i] ? score[i] : c.ranking == ranked::minus_infinity ? -INFINITY : 0.0);
  }
  std::vector<char> mask(score.size(), 0);
  if (c.cut < threshold::top_ceil && !v.empty()) {
    double tau = quantile(v, 1 - rho, c.cut);
    for (int j : order) mask[idx[j]] = v[j] >= tau && active[idx[j]];
    return mask;
  }  // else Sec. 3.2 "the top rho fraction"; of equal scores the earlier unit
  double x = snap(rho * double(v.size()));
  x = c.cut == threshold::top_ceil ? std::ceil(x) : c.cut == threshold::top_floor ? std::floor(x) : std::round(x);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return v[a] > v[b]; });
  for (int r = 0; r < int(x) && r < int(v.size()); ++r) mask[idx[order[r]]] = active[idx[order[r]]];
  return mask;
}
class sequence {
 public:
  explicit sequence(settings const& s) : c(s) {
    if (c.page_size < 1 || c.pages_per_chunk < 1 || c.chunks_per_grid < 1 || c.sink_pages < 0 || c.window < 1)
      throw std::invalid_argument("chess: page_size, pages_per_chunk, chunks_per_grid, sink_pages, window must be set");
    if (c.when == renewal::on_trigger && (std::isnan(c.tau_entropy) || std::isnan(c.tau_varentropy)))
      throw std::invalid_argument("chess: the thresholds must be set");
  }
  // prompt: all layers, all its tokens.  step: one decoding step over the new token's keys (tokens = 1 in each layer);
  // returns the tokens that it reads, in every layer and head, the new one included
  void prompt(std::vector<layer_keys> const& layers) {
    append(layers), pending = c.start == before_trigger::select_after_prompt;
  }
  std::vector<int> step(std::vector<layer_keys> const& layers) {
    bool const now = pending || c.when == renewal::every_step;
    if (now && !c.sees_current_token) renew();
    append(layers);
    if (now && c.sees_current_token) renew();
    if (c.when == renewal::every_n_pages && ++steps >= c.static_pages * c.page_size) pending = true;
    return read();
  }
  // After a step: its output distribution's uncertainty. A trigger takes effect at the next step. (Sec. 3.3)
  void observe(uncertainty u) {
    int pos = int(keys.size()) - (c.entropy_of == belongs::output_of_token ? 1 : 0), B = c.page_size;
    seen.push_back({pos, u});
    vec h, w;  // entropies, token varentropies of the judged tokens
    bool const page = c.window_of_uncertainty == judged::kv_page, block = c.window_of_uncertainty == judged::block_of_generated;
    if ((page && (pos + 1) % B != 0) || (block && seen.size() % B != 0)) return;
    for (int i = page ? 0 : std::max(0, int(seen.size()) - B); i < int(seen.size()); ++i)
      if (!page || seen[i].first / B == pos / B) h.push_back(seen[i].second.entropy), w.push_back(seen[i].second.varentropy);
    if (int(h.size()) < B && !(page && c.judge_mixed_page)) return;
    double n = double(h.size()), var = 0;
    mean_entropy = std::accumulate(h.begin(), h.end(), 0.0) / n;
    for (double x : h) var += (x - mean_entropy) * (x - mean_entropy);
    var /= c.sample_variance ? std::max(1.0, n - 1) : n;
    spread = c.second == varentropy::variance_of_entropy ? var : std::accumulate(w.begin(), w.end(), 0.0) / n;
    auto over = [&](double x, double tau) { return x > tau || (c.trigger_at_equality && x == tau); };
    bool a = over(mean_entropy, c.tau_entropy), b = over(spread, c.tau_varentropy);
    if (!(c.rule == combine::both ? a && b : a || b)) return;
    if (page) uncertain.insert(pos / B);
    pending = pending || c.when == renewal::on_trigger;
  }
  int tokens() const { return int(keys.size()); }  // all stay in memory: pages are re-indexed, none is dropped (Sec. 4.1)
  std::set<int> const& selected_pages() const { return selected; }  // P_selected, without the safety pages
  int renewals() const { return count; }
  double mean_entropy = 0, spread = 0;  // of the last judged page or window
 private:
  settings c;
  std::vector<vec> keys;                          // per token: Eq. 1's Flatten over layers and heads
  std::vector<std::pair<int, uncertainty>> seen;  // by token position
  std::set<int> selected, uncertain;              // page numbers
  bool pending = false, have = false;
  int count = 0, steps = 0, frozen_from = 0;
  void append(std::vector<layer_keys> const& layers) {
    for (int t = 0; t < layers.at(0).tokens; ++t) {
      vec flat;
      for (auto const& l : layers)
        for (int h = 0; h < l.kv_heads; ++h)
          for (int d = 0; d < l.dim; ++d) flat.push_back(l.k.at((std::size_t(h) * l.tokens + t) * l.dim + d));
      keys.push_back(flat);
    }
  }
  int pages() const { return (tokens() + (c.last_page == open_page::is_page ? c.page_size - 1 : 0)) / c.page_size; }
  int recent() const  // the first page of W, "the most recent W pages" (Sec. 3.2)
  {
    return std::max(0, c.unit == window_unit::pages ? pages() - c.window : (tokens() - c.window) / c.page_size);
  }
  vec mean(int from, int to, double divisor) const {
    vec v(keys.at(0).size(), 0.0);
    for (int t = from; t < to; ++t)
      for (std::size_t d = 0; d < v.size(); ++d) v[d] += keys[t][d] / divisor;
    return v;
  }
  vec page_vector(int p) const {  // Eq. 1
    int const from = p * c.page_size, to = std::min(tokens(), from + c.page_size);
    return mean(from, to, c.page_mean_over_members ? to - from : c.page_size);
  }
  static void add(vec& to, vec const& v) {
    to.resize(v.size(), 0.0);
    for (std::size_t d = 0; d < v.size(); ++d) to[d] += v[d];
  }
  std::map<int, vec> group(std::map<int, vec> const& units, int size) const {  // Eq. 2
    std::map<int, vec> sum;
    std::map<int, int> members;
    for (auto const& [i, v] : units) add(sum[i / size], v), ++members[i / size];
    for (auto& [g, v] : sum)
      for (double& x : v) x /= c.group_mean_over_members ? members[g] : size;
    return sum;
  }
  // scores one level's units (Eq. 4), descends from the kept parents, returns the kept units
  std::set<int> descend(std::map<int, vec> const& units, vec const& anchor, std::set<int> const* parents, int size,
                        double rho) {
    vec s;
    std::vector<char> active;
    std::set<int> kept;
    for (auto const& [i, v] : units) s.push_back(dot(anchor, v)), active.push_back(!parents || parents->count(i / size));
    int j = 0;
    for (auto const& mask = level(s, active, rho, c); auto const& [i, v] : units)
      if (mask[j++]) kept.insert(i);
    return kept;
  }
  void renew() {
    pending = false, have = true, steps = 0, ++count, frozen_from = recent(), selected.clear();
    vec anchor;  // Eq. 3
    for (int p = recent(); p < pages(); ++p) add(anchor, page_vector(p));
    for (double& x : anchor) x /= pages() - recent();
    if (c.unit == window_unit::tokens) anchor = mean(std::max(0, tokens() - c.window), tokens(), std::min(tokens(), c.window));
    std::map<int, vec> vp, all;
    for (int p = 0; p < pages(); ++p) {
      if (c.left_out_in_means) all[p] = page_vector(p);
      if (c.ranked_pages != candidates::all_pages && p >= recent()) continue;
      if (c.ranked_pages == candidates::outside_safety && p < c.sink_pages) continue;
      if (!c.exclude_uncertain_pages || !uncertain.count(p)) vp[p] = page_vector(p);
    }
    auto vc = group(c.left_out_in_means ? all : vp, c.pages_per_chunk), vg = group(vc, c.chunks_per_grid);
    if (c.left_out_in_means) {  // units that hold no ranked page are not ranked either
      auto const ranked_c = group(vp, c.pages_per_chunk), ranked_g = group(ranked_c, c.chunks_per_grid);
      std::erase_if(vc, [&](auto const& u) { return !ranked_c.count(u.first); });
      std::erase_if(vg, [&](auto const& u) { return !ranked_g.count(u.first); });
    }
    auto const grids = descend(vg, anchor, nullptr, 1, c.rho_g);                  // Alg. 1 lines 6-8
    auto const chunks = descend(vc, anchor, &grids, c.chunks_per_grid, c.rho_c);  // lines 9-13
    selected = descend(vp, anchor, &chunks, c.pages_per_chunk, c.rho_p);          // lines 14-19
  }
  std::vector<int> read() const {  // "the union of P_selected and these safety pages" (Sec. 3.2)
    std::vector<int> out;
    int const from = c.reads == between::frozen_and_growing ? frozen_from : recent();
    for (int t = 0, p = 0; t < tokens(); ++t, p = t / c.page_size)
      if (!have || selected.count(p) || p < c.sink_pages || p >= from) out.push_back(t);
    return out;
  }
};
}  // namespace witness::chess
