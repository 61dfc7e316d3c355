// Scorer pivot_attention: scores a token of a head by the attention of the head's pivot (HeteroCache, sec. 4.3).
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kvpolicy/budgets/by_head_role.hpp"
#include "kvpolicy/primitive/attended_set.hpp"
#include "kvpolicy/scorers/window_attention.hpp"

namespace kvpolicy::scorers {

/// Scores a token of a head by the attention of the head's pivot (HeteroCache, sec. 4.3, Algorithm 1 line 37).
/// While decoding, a head that follows another one takes the attention of that head's current query over that head's keys. A
/// head that follows nobody takes its own. At the prompt's end every head takes its own, of the prompt's last queries.
struct pivot_attention {
  static constexpr signals needs = signals::keys | signals::observation_queries | signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  budgets::by_head_role roles{};           ///< says whom each head follows; without heads, nobody follows
  std::int32_t window = 1;                 ///< queries at the prompt's end that count; protect as many tokens
  bool competes = false;                   ///< the one query's own token is scored too, and need not be protected
  smoothing smooth{};                      ///< smooths the attention over neighbouring tokens
  group_merge merged = group_merge::mean;  ///< merges the query heads of a KV head
  bool own = false;                        ///< every head takes its own attention while decoding too

  /// The current step's queries and the last head's attention.
  struct memory : no_memory {
    static constexpr bool hears_steps = true;
    std::vector<float> queries;   ///< `[kv_heads, group, head_dim]`, of the layer and step that choose now
    std::int64_t kv_heads = 0;    ///< of a layer
    float scale = 1;              ///< multiplies q.k
    std::int64_t held = -1;       ///< the KV head whose attention `smoothed` holds; -1: none
    std::vector<float> smoothed;  ///< `[tokens]`
    attended_set_scratch buffers;

    void reserve(std::int64_t tokens) {
      buffers.reserve(tokens);
      smoothed.resize(buffers.weights.size());
    }

    /// Archives nothing: the memory lasts for one step only.
    template <class Archive>
    void archive(Archive& a) {
      static_cast<void>(a);
    }
  };
  memory start(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(!competes || window == 1,
                     "the observed tokens compete, and the window has " + std::to_string(window) + " queries; it must have 1");
    memory made;
    made.queries.resize(static_cast<std::size_t>(shape.q_heads * shape.head_dim));
    made.kv_heads = shape.kv_heads;
    return made;
  }

  /// Copies the current token's queries.
  template <class Input, executor Exec>
  void watch(Input const& input, Exec&) const {
    memory& m = input.memory;
    std::int64_t const dim = input.view.shape().head_dim;
    std::int64_t const group = input.queries.heads / input.heads.count;
    float* to = m.queries.data() + input.heads.first * group * dim;
    for (std::int64_t q = 0; q < input.queries.heads; ++q, to += dim) std::copy_n(input.queries.head(q), dim, to);
    m.scale = input.queries.scale;
    m.held = -1;
  }

  /// Says whether steps read the keys of a head: it is whole, follows itself, or is followed.
  /// @param head  layer * kv_heads + KV head
  /// @param prompt_tokens  tokens of the prompt
  /// @param kv_heads  KV heads of a layer
  /// @return false where a tier may hold the head's keys for good
  bool reads_keys(std::size_t head, std::int64_t prompt_tokens, std::int64_t kv_heads) const {
    if (roles.heads.empty() || own || roles.whole(head, prompt_tokens)) return true;
    std::size_t const first = head - head % static_cast<std::size_t>(kv_heads);
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      std::int64_t const followed = roles.leader(first + static_cast<std::size_t>(h), prompt_tokens, kv_heads);
      if (followed != roles.nobody && first + static_cast<std::size_t>(followed) == head) return true;
    }
    return false;
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    memory& m = input.memory;
    std::int64_t const dim = input.view.shape().head_dim;
    std::int64_t const group = input.view.shape().group();
    auto const columns = static_cast<std::size_t>(out.columns);
    auto const attention = [&](query_heads const& queries, std::int64_t head) {
      m.reserve(out.columns);
      smooth_row(group_attention(queries, input.view.keys(input.layer).of({head, 1}), out.columns, merged, m.buffers, exec),
                 smooth, std::span(m.smoothed).first(columns));
    };
    if (input.prompt != nullptr && competes) {
      m.held = -1;
      query_window const last = input.prompt->queries.last(1);
      for (std::int64_t i = 0; i < out.rows; ++i) {
        std::int64_t const head = input.heads.first + i;
        attention({last.at(0, head * group), group, last.head_stride, last.scale}, head);
        std::copy_n(m.smoothed.begin(), columns, out.row(i));
      }
      return;
    }
    if (input.prompt != nullptr) {
      window_attention seen{.window = window, .smooth = smooth};
      if (merged == group_merge::maximum) seen.smooth.of_group = merged;
      return seen.score(input, out, exec);
    }
    for (std::int64_t i = 0; i < out.rows; ++i) {
      std::int64_t const head = input.heads.first + i;
      auto const of_model = static_cast<std::size_t>(input.layer.value * m.kv_heads + head);
      std::int64_t const followed =
          own || roles.heads.empty() ? roles.nobody : roles.leader(of_model, input.prompt_tokens, m.kv_heads);
      std::int64_t const leader = followed == roles.nobody ? head : followed;
      if (std::exchange(m.held, leader) != leader) {
        // Both have all of the prompt, so their indices are the same.
        attention({m.queries.data() + leader * group * dim, group, dim, m.scale}, leader);
      }
      std::copy_n(m.smoothed.begin(), columns, out.row(i));
    }
  }
};

static_assert(scorer<pivot_attention>);

}  // namespace kvpolicy::scorers
