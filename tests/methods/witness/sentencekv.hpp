// SentenceKV, from the paper's text alone: one layer, one sequence. Clear and slow.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>
#include <vector>

namespace witness::sentencekv {
using lists = std::vector<std::vector<int>>;

struct settings {                  // the first value of each enum is the literal reading
  int tau = 1024;                  // 4.1: token budget
  double r = 2;                    // 4.1: semantic keeping factor, "typically r=2 or 3"
  int window = 32;                 // 4.1: N
  bool merge_ending_runs = false;  // prompt: ending tokens in a row end one sentence together
  enum class score_kind { softmax_causal, softmax_before_window, scaled_dot } score = score_kind::softmax_causal;
  enum class importance_heads {
    summed,
    per_kv_head
  } importance = importance_heads::summed;                                                // "across all the attention heads"
  enum class keep_scope { whole_prompt, each_sentence } keep = keep_scope::whole_prompt;  // 4.1, A.7 / Alg. 1 line 5, 6.2
  enum class vector_tokens { retained, whole_sentence } vector_of = vector_tokens::retained;            // Eq. 1
  enum class window_tokens { not_kept, always_read, in_buckets } window_use = window_tokens::not_kept;  // silent
  bool window_in_keep_count = false;  // unless not_kept: the window is part of floor(r tau)
  bool window_in_budget = true;       // always_read: the window is part of tau
  enum class query_from { every_step, at_sentence_end, after_sentence_end, current_query } query = query_from::every_step;
  enum class before_first {
    running_mean,
    window_queries
  } first = before_first::running_mean;  // for the *_sentence_end readings
  bool current_joins_first = true;       // Alg. 1 lines 14-15: q_t is in the mean of its own step
  bool ending_opens_next = false;        // a generated ending token (and its query) belongs to the sentence after it
  enum class similarity_heads { per_kv_head, per_query_head, summed } similarity = similarity_heads::per_kv_head;
  enum class group_rule { sum, max } group = group_rule::sum;                    // several query heads: silent
  enum class overflow { cut, stop, skip, whole } over = overflow::cut;           // the bucket that passes tau
  enum class cut_order { importance, first, last } cut = cut_order::importance;  // which of its tokens: silent
  enum class generated { never, current_token, current_sentence, all, as_buckets } generated_use = generated::never;
  bool generated_in_budget = true;  // generated tokens that are always read are part of tau
};
struct prompt_input {
  int kv_heads = 1, q_heads = 1, dim = 1, rows = 0;  // rows: queries of the prompt's last `rows` tokens, >= min(N, L)
  float scale = 1;
  std::vector<int> ids;              // L token ids
  std::vector<float> keys, queries;  // [kv_heads][L][dim], [rows][q_heads][dim]
};
struct step_output {
  lists read, kept, ranking;
};  // per KV head (read, ranking: per query head if so set); ranking: sentences
struct bucket {
  int sentence;
  lists tokens;
  std::vector<std::vector<double>> mean;
};  // per KV head; mean {} where no token

// 4.1 "split the input text into sentences according to punctuation": the sentence of each token; the ending token closes it.
inline std::vector<int> segment(std::vector<int> const& ids, std::set<int> const& endings, bool merge_runs) {
  std::vector<int> number(ids.size());
  for (std::size_t i = 0, now = 0; i < ids.size(); ++i) {
    number[i] = int(now);
    if (endings.count(ids[i]) && !(merge_runs && i + 1 < ids.size() && endings.count(ids[i + 1]))) ++now;
  }
  return number;
}
class sequence : settings {
 public:
  std::vector<std::vector<double>> alpha;  // [kv_heads][L - N]
  std::vector<int> sentence_of;            // [L]
  std::vector<bucket> buckets;             // only sentences with a retained token
  lists retained;                          // per KV head, sorted
  sequence(settings const& s, std::set<int> const& endings, prompt_input const& in)
      : settings(s),
        endings_(endings),
        p(in),
        L(int(in.ids.size())),
        N(std::min(s.window, L)),
        M(L - N),
        open_from(L),
        q_sum(std::size_t(in.q_heads) * in.dim),
        window_mean(q_sum) {
    if (p.q_heads % p.kv_heads || p.rows < N) throw std::invalid_argument("heads or rows");
    for (int row = p.rows - N; row < p.rows; ++row)
      for (std::size_t i = 0; i < q_sum.size(); ++i) window_mean[i] += p.queries[row * q_sum.size() + i] / double(N);
    sentence_of = segment(p.ids, endings, merge_ending_runs);
    next_sentence = L ? sentence_of.back() + 1 : 0;
    measure();
    select();
    for (int c = 0; c < next_sentence; ++c) {  // Eq. 1
      lists kept(p.kv_heads), whole(p.kv_heads);
      for (int h = 0; h < p.kv_heads; ++h)
        for (int i : retained[h])
          if (sentence_of[i] == c) kept[h].push_back(i);
      for (int h = 0; h < p.kv_heads; ++h)
        for (int i = 0; i < L; ++i)
          if (sentence_of[i] == c) whole[h].push_back(i);
      add_bucket(c, kept, vector_of == vector_tokens::retained ? kept : whole);
    }
  }
  // One turn of Alg. 1 lines 13-22: token x_t, its query [q_heads][dim] and its key [kv_heads][dim]. Its index is L + t - 1.
  step_output step(int id, std::vector<float> const& q, std::vector<float> const& k) {
    bool const ends = endings_.count(id) > 0, by_query_head = similarity == similarity_heads::per_query_head;
    if (ends && ending_opens_next) close();
    int const at = L + int(new_keys.size());
    new_keys.push_back(k);
    if (current_joins_first) append(q);  // line 14
    if (query == query_from::at_sentence_end && ends && !ending_opens_next && q_count) last_mean = mean_query();
    auto const q_bar = representation(q);  // line 15
    step_output out;
    for (int x = 0; x < (by_query_head ? p.q_heads : p.kv_heads); ++x) read_for(x, by_query_head, q_bar, at, out);
    if (!current_joins_first) append(q);
    if (ends && !ending_opens_next) close();  // lines 20-22
    for (int h = 0; h < p.kv_heads; ++h) {
      std::set<int> held(retained[h].begin(), retained[h].end());
      if (window_use != window_tokens::not_kept)
        for (int i = M; i < L; ++i) held.insert(i);
      bool const all = generated_use == generated::all || generated_use == generated::as_buckets;
      if (all || generated_use == generated::current_sentence)
        for (int i = all ? L : open_from; i <= at; ++i) held.insert(i);
      out.kept.emplace_back(held.begin(), held.end());
    }
    return out;
  }

 private:
  std::set<int> endings_;
  prompt_input p;
  int L, N, M, open_from, q_count = 0, next_sentence = 0;  // M = L - N; open_from: start of the generated sentence under way
  std::vector<double> q_sum, window_mean, last_mean;       // Q_s (with q_count); last_mean: of the last whole sentence
  std::vector<std::vector<float>> new_keys;
  int kv(int q) const { return q / (p.q_heads / p.kv_heads); }
  float const* key(int h, int i) const {
    return i < L ? &p.keys[(std::size_t(h) * L + i) * p.dim] : &new_keys[i - L][std::size_t(h) * p.dim];
  }
  double dot(auto const* a, auto const* b) const {
    double s = 0;
    for (int d = 0; d < p.dim; ++d) s += double(a[d]) * b[d];
    return s;
  }
  void measure() {  // 4.1 "Token importance measurement"
    alpha.assign(p.kv_heads, std::vector<double>(M, 0.0));
    for (int w = 0; w < N; ++w)
      for (int q = 0; q < p.q_heads; ++q) {
        float const* row = &p.queries[(std::size_t(p.rows - N + w) * p.q_heads + q) * p.dim];
        std::vector<double> a(score == score_kind::softmax_causal ? M + w + 1 : M);
        for (std::size_t i = 0; i < a.size(); ++i) a[i] = p.scale * dot(row, key(kv(q), int(i)));
        if (score != score_kind::scaled_dot && !a.empty()) {  // softmax
          double top = *std::max_element(a.begin(), a.end()), sum = 0;
          for (double v : a) sum += std::exp(v - top);
          for (double& v : a) v = std::exp(v - top) / sum;
        }
        for (int h = 0; h < p.kv_heads; ++h)
          if (importance == importance_heads::summed || h == kv(q))
            for (int i = 0; i < M; ++i) alpha[h][i] += a[i];
      }
  }
  void
  select() {  // 4.1 "top floor(r tau) tokens with the highest alpha_i values across all sentence buckets"; ties: the earlier
    int count = int(std::floor(r * tau));
    if (window_use != window_tokens::not_kept && window_in_keep_count) count = std::max(0, count - N);
    retained.assign(p.kv_heads, {});
    for (int h = 0; h < p.kv_heads; ++h) {
      std::vector<int> order(M), taken(L + 1, 0);  // taken: by sentence, or all in [0]
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return alpha[h][a] > alpha[h][b]; });
      for (int i : order)
        if (taken[keep == keep_scope::each_sentence ? sentence_of[i] : 0]++ < count) retained[h].push_back(i);
      if (window_use == window_tokens::in_buckets)
        for (int i = M; i < L; ++i) retained[h].push_back(i);
      std::sort(retained[h].begin(), retained[h].end());
    }
  }
  void add_bucket(int number, lists const& tokens, lists const& averaged) {
    bucket b{number, tokens, std::vector<std::vector<double>>(p.kv_heads)};
    for (int h = 0; h < p.kv_heads; ++h)
      for (int d = 0; d < p.dim && !averaged[h].empty(); ++d) {
        b.mean[h].push_back(0.0);
        for (int i : averaged[h]) b.mean[h][d] += key(h, i)[d] / double(averaged[h].size());
      }
    if (std::any_of(tokens.begin(), tokens.end(), [](auto& t) { return !t.empty(); })) buckets.push_back(b);
  }
  void append(std::vector<float> const& q) {
    ++q_count;
    for (std::size_t i = 0; i < q.size(); ++i) q_sum[i] += q[i];
  }
  std::vector<double> mean_query() const {
    auto m = q_sum;
    for (double& v : m) v /= q_count;
    return m;
  }               // Eq. 2
  void close() {  // a sentence boundary: Alg. 1 line 21
    if (q_count) last_mean = mean_query();
    q_count = 0;
    q_sum.assign(q_sum.size(), 0.0);
    std::vector<int> t;
    for (; open_from < L + int(new_keys.size()); ++open_from) t.push_back(open_from);
    const lists own(p.kv_heads, t);
    if (generated_use == generated::as_buckets) add_bucket(next_sentence++, own, own);
  }
  std::vector<double> representation(std::vector<float> const& q) const {
    bool const by_sentence = query == query_from::at_sentence_end || query == query_from::after_sentence_end;
    if (by_sentence && !last_mean.empty()) return last_mean;
    if (by_sentence && first == before_first::window_queries) return window_mean;
    return query == query_from::current_query || q_count == 0 ? std::vector<double>(q.begin(), q.end()) : mean_query();
  }
  // 4.2 "Semantic similarity and token retrieval", for reader x: a KV head, or a query head.
  void read_for(int x, bool by_query_head, std::vector<double> const& q_bar, int at, step_output& out) const {
    int const h = by_query_head ? kv(x) : x;
    std::vector<std::pair<double, int>> ranked;  // similarity, bucket
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      double sum = 0, best = -HUGE_VAL;
      for (int q = 0; q < p.q_heads; ++q) {
        if ((by_query_head ? q != x : similarity != similarity_heads::summed && kv(q) != h) || buckets[b].mean[kv(q)].empty())
          continue;
        double const s = dot(&q_bar[std::size_t(q) * p.dim], buckets[b].mean[kv(q)].data());  // S(q, k_s,h) = q^T k_s,h
        sum += s;
        best = std::max(best, s);
      }
      if (!buckets[b].tokens[h].empty()) ranked.emplace_back(group == group_rule::sum ? sum : best, int(b));
    }
    std::stable_sort(ranked.begin(), ranked.end(), [](auto& a, auto& b) { return a.first > b.first; });  // ties: the earlier
    std::vector<int> read, paid, names;  // always read: beside tau, and as part of it
    auto const g = generated_use;
    int const from = g == generated::never ? at + 1 : g == generated::current_token ? at : g == generated::all ? L : open_from;
    for (int i = window_use == window_tokens::always_read ? M : L; i < L; ++i) (window_in_budget ? paid : read).push_back(i);
    for (int i = from; i <= at; ++i) (generated_in_budget ? paid : read).push_back(i);
    if (int(paid.size()) > tau) paid.erase(paid.begin(), paid.end() - tau);  // only the newest tau of them
    int room = tau - int(paid.size());
    read.insert(read.end(), paid.begin(), paid.end());
    for (auto const& one : ranked) {  // "in descending order ... until we reach our token budget"
      auto t = buckets[one.second].tokens[h];
      names.push_back(buckets[one.second].sentence);
      if (int(t.size()) > room) {
        if (over == overflow::stop) room = 0;
        if (over == overflow::skip || room == 0) continue;
        auto value = [&](int i) { return i < M ? alpha[h][i] : HUGE_VAL; };  // tokens without alpha come first
        if (cut == cut_order::importance)
          std::stable_sort(t.begin(), t.end(), [&](int a, int b) { return value(a) > value(b); });
        if (cut == cut_order::last) std::reverse(t.begin(), t.end());
        if (over == overflow::cut) t.resize(room);
      }
      read.insert(read.end(), t.begin(), t.end());
      room = std::max(0, room - int(t.size()));
    }
    std::sort(read.begin(), read.end());
    out.read.push_back(read);
    out.ranking.push_back(names);
  }
};
}  // namespace witness::sentencekv
