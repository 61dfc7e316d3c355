// Eviction step by step: what the last step's attention says of the tokens that were there then, and the list without the least
// of them.
#pragma once

#include "kvpolicy/gpu/base/radix.hpp"

namespace kvpolicy::gpu::detail {

/// Each list without what the last step evicts, in place. One block a list and sequence.
struct evict_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = "evict";
  struct arguments {
    buffer<std::int32_t> ids;  ///< `[sequences, lists, stride]` tokens, ascending
    std::int64_t stride = 0;
    buffer<std::int32_t> named;  ///< `[sequences, lists]`
    std::int32_t lists = 1;
    per_sequence tokens;    ///< at the last step, whose own token is behind the named ones; 0: there was none
    per_sequence most;      ///< tokens that a list may keep
    per_sequence sink_end;  ///< of the protected tokens
    per_sequence recent_begin;
    buffer<float const> weights;  ///< `[sequences, kv_heads, weight_stride]`, of the last step, by place in the list
    std::int64_t weight_stride = 0;
    std::int32_t heads = 1;
    buffer<float> sums;  ///< `[sequences, kv_heads, stride]` by token, which the weights are added to; or none
    bool mean = false;   ///< rank by the mean over the queries that saw the token
    per_sequence first_query;
  };
  template <class B>
  struct shared {
    radix_shared<B> radix;
    typename B::template reduce_storage<std::int32_t> reduce;
    typename B::template array<std::int32_t, 1> free;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    unsigned const sequence = block.y();
    auto const tokens = static_cast<std::int32_t>(a.tokens.of(block, sequence));
    if (tokens == 0) return;
    std::int64_t const list = static_cast<std::int64_t>(sequence) * a.lists + block.x();
    auto const ids = block.global(a.ids);
    auto const weights = block.global(a.weights);
    auto const sums = block.global(a.sums);
    std::int64_t const at = list * a.stride;
    std::int32_t const named = block.global(a.named)[list];
    std::int32_t const count = named + 1;
    auto const sink_end = static_cast<std::int32_t>(a.sink_end.of(block, sequence));
    auto const recent_begin = static_cast<std::int32_t>(a.recent_begin.of(block, sequence));
    auto const first_query = static_cast<std::int32_t>(a.first_query.of(block, sequence));
    auto const thread = static_cast<std::int32_t>(block.thread());
    block.sync();  // every thread has read what thread 0 writes below

    auto const token_at = [&](std::int32_t i) {
      if (i >= named) return tokens - 1;
      std::int32_t const token = ids[at + i];
      return token;
    };
    auto const is_free = [&](std::int32_t token) { return token >= sink_end && token < recent_begin; };
    auto const key_at = [&](std::int32_t i, std::int32_t token) {
      float score = 0;
      if (a.sums.data != nullptr) {
        float const sum = sums[at + token];
        std::int32_t const seen = tokens - (token > first_query ? token : first_query);
        score = a.mean ? sum / static_cast<float>(seen) : sum;
      } else {
        for (std::int32_t h = 0; h < a.heads; ++h) {
          float const weight = weights[(static_cast<std::int64_t>(sequence) * a.heads + h) * a.weight_stride + i];
          score = h == 0 ? weight : score + weight;
        }
      }
      return sortable_key(score);
    };
    std::int32_t free = 0;
    for (std::int32_t i = thread; i < count; i += B::threads) {
      std::int32_t const token = token_at(i);
      free += is_free(token) ? 1 : 0;
      if (a.sums.data == nullptr) continue;
      float const weight = weights[list * a.weight_stride + i];
      float const sum = sums[at + token];
      sums[at + token] = sum + weight;
    }
    free = block.reduce(s.reduce, free, [](std::int32_t x, std::int32_t y) { return x + y; });
    if (thread == 0) s.free[0] = free;
    block.sync();
    free = s.free[0];
    auto wanted = static_cast<std::int32_t>(a.most.of(block, sequence)) - (count - free);
    wanted = wanted < 0 ? 0 : wanted < free ? wanted : free;
    radix_threshold threshold{0xffffffffu, 0};
    if (wanted > 0) {
      threshold = select_threshold(block, s.radix, wanted, [&](auto visit) {
        for (std::int32_t i = thread; i < count; i += B::threads) {
          std::int32_t const token = token_at(i);
          if (is_free(token)) visit(key_at(i, token), 1);
        }
      });
    }
    std::int32_t const written = keep_in_order(
        block, s.radix, count, threshold,
        [&](std::int32_t i) {
          std::int32_t const token = token_at(i);
          bool const candidate = is_free(token) && wanted > 0;
          return ordered_item{token, !is_free(token), candidate, candidate ? key_at(i, token) : 0};
        },
        [&](std::int32_t token, std::int32_t nth) { ids[at + nth] = token; });
    if (thread == 0) block.global(a.named)[list] = written;
  }
};

}  // namespace kvpolicy::gpu::detail
