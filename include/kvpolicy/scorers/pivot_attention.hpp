// Score: what a head's pivot attends to stands for what the head itself would (HeteroCache, sec. 4.3, Algorithm 1 line 37).
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kvpolicy/budgets/by_head_role.hpp"
#include "kvpolicy/primitive/attended_set.hpp"
#include "kvpolicy/scorers/window_attention.hpp"

namespace kvpolicy::scorers {

/// At the prompt's end a head's own attention of the prompt's last queries; while decoding the current query of the head that
/// it follows, over that head's keys. A head that follows nobody is scored by its own.
struct pivot_attention {
  static constexpr signals needs = signals::keys | signals::observation_queries | signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  budgets::by_head_role roles{};
  std::int32_t window = 1;  ///< of the prompt's queries, the last ones; protect as many tokens
  smoothing smooth{};
  group_merge merged = group_merge::mean;
  bool own = false;  ///< each head's own attention while decoding too

  struct memory : no_memory {
    static constexpr bool hears_steps = true;
    std::vector<float> queries;  ///< `[kv_heads, group, head_dim]`: of the layer and step that chooses
    std::int64_t kv_heads = 0;
    float scale = 1;
    std::int64_t held = -1;       ///< whose attention `smoothed` is
    std::vector<float> smoothed;  ///< `[max_tokens]`
    attended_set_scratch buffers;

    /// Of the step that runs alone.
    template <class Archive>
    void archive(Archive& a) {
      static_cast<void>(a);
    }
  };
  memory start(cache_shape const& shape) const {
    memory made;
    made.queries.resize(static_cast<std::size_t>(shape.q_heads * shape.head_dim));
    made.kv_heads = shape.kv_heads;
    made.buffers = attended_set_scratch(shape.max_tokens);
    made.smoothed.resize(made.buffers.weights.size());
    return made;
  }

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

  /// Those that are attended to: heads that are whole, follow themselves, or are followed.
  bool looks_at(std::size_t head, std::int64_t prompt_tokens, std::int64_t kv_heads) const {
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
    if (input.prompt != nullptr) return score_prompt(input, out, exec);
    memory& m = input.memory;
    std::int64_t const dim = input.view.shape().head_dim;
    std::int64_t const group = input.view.shape().group();
    auto const columns = static_cast<std::size_t>(out.columns);
    for (std::int64_t i = 0; i < out.rows; ++i) {
      std::int64_t const head = input.heads.first + i;
      auto const of_model = static_cast<std::size_t>(input.layer.value * m.kv_heads + head);
      std::int64_t const followed =
          own || roles.heads.empty() ? roles.nobody : roles.leader(of_model, input.prompt_tokens, m.kv_heads);
      std::int64_t const leader = followed == roles.nobody ? head : followed;
      if (std::exchange(m.held, leader) != leader) {
        // Both have all of the prompt, so their indices are the same.
        std::span const weights =
            group_attention({m.queries.data() + leader * group * dim, group, dim, m.scale},
                            input.view.keys(input.layer).of({leader, 1}), out.columns, merged, m.buffers, exec);
        smooth_row(weights, smooth, std::span(m.smoothed).first(columns));
      }
      std::copy_n(m.smoothed.begin(), columns, out.row(i));
    }
  }

 private:
  template <class Input, class Exec>
  void score_prompt(Input const& input, table<float> out, Exec& exec) const {
    window_attention const seen{.window = window, .smooth = smooth};
    if (merged == group_merge::mean) return seen.score(input, out, exec);
    seen.score_maximum(input, out, std::span(input.memory.buffers.weights), exec);
  }
};

static_assert(scorer<pivot_attention>);

}  // namespace kvpolicy::scorers
