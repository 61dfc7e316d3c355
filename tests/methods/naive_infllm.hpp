// InfLLM once more, from its equations alone (Xiao et al. 2024), in the project's reading: scorers/representatives.hpp.
#pragma once

#include "kvpolicy/presets/infllm.hpp"
#include "methods/naive_quest.hpp"

namespace kvpolicy_test::methods {

/// How much the queries right behind token m want its key: mean of q.k over the group and over the queries of tokens
/// (m, m + local] that come before token `end`; nothing where there are none.
inline double representative_score(world const& w, std::int64_t l, std::int64_t h, std::int64_t m, std::int64_t local,
                                   std::int64_t end) {
  double sum = 0;
  std::int64_t count = 0;
  for (std::int64_t t = m + 1; t <= m + local && t < end; ++t, ++count) {
    for (std::int64_t g = 0; g < w.group(); ++g) sum += w.dot(l, t, h * w.group() + g, m) / static_cast<double>(w.group());
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

struct representative_tokens {
  ints tokens;
  bool close = false;  ///< fp32 might take others
};

/// Of a block that was whole when the prompt of `prompt` tokens ended: all the prompt's queries may say; of one that closed
/// later: its own block's.
inline representative_tokens representatives_of(world const& w, std::int64_t l, std::int64_t h, std::int64_t block,
                                                presets::infllm const& p, std::int64_t prompt) {
  std::int64_t const first = block * p.block;
  std::int64_t const last = first + p.block;
  reals scores;
  for (std::int64_t m = first; m < last; ++m) {
    scores.push_back(representative_score(w, l, h, m, p.local, last <= prompt ? prompt : last));
  }
  return {best(range(first, last), scores, p.representatives),
          close_call(scores, p.representatives, 1e-5 * largest_size(scores))};
}

/// The mean of the tokens' keys, of one head, in the cache's own type: of keys before their rotary embedding, where they are
/// pre_rope.
inline reals block_vector(world const& w, presets::infllm const& p, std::int64_t l, std::int64_t h, ints const& tokens) {
  reals made;
  for (std::int64_t d = 0; d < w.shape.head_dim; ++d) {
    double sum = 0;
    for (std::int64_t const t : tokens)
      sum += p.pre_rope ? pre_rope(w, l, h, t, d) : static_cast<double>(w.cache.key(l, h, t, d));
    made.push_back(rounded_to(w.shape.type, static_cast<float>(sum / static_cast<double>(tokens.size()))));
  }
  return made;
}

/// The current query's dot product with the block's vectors, mean over the group, summed over KV heads; as if all tokens stood
/// `local` tokens before it, where keys are pre_rope.
inline double block_score(world const& w, presets::infllm const& p, std::int64_t l, std::vector<ints> const& tokens,
                          std::int64_t step) {
  std::int64_t const distance = std::min<std::int64_t>(p.local, w.shape.max_tokens - 1);
  double sum = 0;
  for (std::int64_t h = 0; h < w.shape.kv_heads; ++h) {
    reals const vector = block_vector(w, p, l, h, at(tokens, h));
    for (std::int64_t g = 0; g < w.group(); ++g) {
      float const* const q = w.query(l, step, h * w.group() + g);
      auto const of_query = [&](std::int64_t i) { return static_cast<double>(q[i]); };
      for (std::int64_t d = 0; d < w.shape.head_dim; ++d) {
        double const query = p.pre_rope ? turned_back(w, of_query, step - distance, d) : of_query(d);
        sum += query * at(vector, d) / static_cast<double>(w.group());
      }
    }
  }
  return sum;
}

inline verdict judge_infllm(range_list const& list, world const& w, presets::infllm const& p, std::int64_t l, std::int64_t n,
                            std::int64_t prompt) {
  if (l < p.layers.dense_first) return tokens_of(list) == range(0, n) ? verdict::same : verdict::different;
  std::int64_t const leader = l - (l - p.layers.dense_first) % p.layers.reuse;
  page_plan const plan = plan_pages(n, p.block, p.sink_blocks, p.recent_blocks, page_room(p.tokens, p.ratio, n, p.block));
  reals scores;
  bool close = false;
  for (std::int64_t const u : plan.candidates) {
    std::vector<ints> tokens;
    for (std::int64_t h = 0; h < w.shape.kv_heads; ++h) {
      representative_tokens const of = representatives_of(w, leader, h, u, p, prompt);
      close = close || of.close;
      tokens.push_back(of.tokens);
    }
    scores.push_back(block_score(w, p, leader, tokens, n - 1));
  }
  verdict const v = judge_pages(list, n, p.block, plan, scores, 1e-5 * largest_size(scores));
  return v == verdict::different && close ? verdict::excused : v;
}

}  // namespace kvpolicy_test::methods
