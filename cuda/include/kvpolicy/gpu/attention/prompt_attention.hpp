// What a prompt's last queries attend to: softmax statistics of every query, then the columns' sums. Keys are read twice,
// whatever the window, and no query's weights are kept.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/attention/logit_tile.hpp"
#include "kvpolicy/gpu/attention/softmax_state.hpp"

namespace kvpolicy::gpu::detail {

/// Maximum and sum of every row over one split of the keys.
template <element_type E>
struct window_statistics_body {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "window_statistics";
  struct arguments {
    prompt_attention what;
    std::int64_t keys_of_split = 0;  ///< a multiple of tile_keys
    buffer<float> statistics;        ///< `[heads, rows, splits, 2]`
    std::int32_t splits = 1;
  };
  template <class B>
  struct shared {
    logit_shared<B> tile;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const first_row = static_cast<std::int64_t>(block.x()) * tile_rows;
    std::int64_t const first = block.z() * a.keys_of_split;
    std::int64_t last = first + a.keys_of_split < a.what.tokens ? first + a.keys_of_split : a.what.tokens;
    softmax_state<powers_of_e> states[4];
    for (std::int64_t key = first; key < last; key += tile_keys) {
      float logits[4][2];
      logit_tile<E>(block, s.tile, a.what, block.y(), first_row, key, logits);
      KVPOLICY_UNROLL
      for (int r = 0; r < 4; ++r) states[r].add(logits[r]);
    }
    auto const tile = block.tile();
    KVPOLICY_UNROLL
    for (int r = 0; r < 4; ++r) {
      for (unsigned mask = 16; mask > 0; mask /= 2) states[r].merge_lane(tile, mask);
      std::int64_t const row = first_row + tile.index() * 4 + r;
      if (tile.lane() == 0 && row < a.what.rows()) {
        auto const statistics = block.global(a.statistics);
        std::int64_t const at = ((block.y() * a.what.rows() + row) * a.splits + block.z()) * 2;
        statistics[at] = states[r].most;
        statistics[at + 1] = states[r].total;
      }
    }
  }
};

/// Puts the splits together: maximum, and 1 / sum.
struct merge_statistics_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "merge_statistics";
  struct arguments {
    buffer<float const> splits_of;  ///< `[rows, splits, 2]`
    std::int32_t splits = 1;
    std::int64_t rows = 0;
    buffer<float> statistics;  ///< `[rows, 2]`
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const row = index_in_grid(block);
    if (row >= a.rows) return;
    auto const from = block.global(a.splits_of);
    softmax_state<powers_of_e> state;
    for (std::int32_t i = 0; i < a.splits; ++i) {
      float const most = from[(row * a.splits + i) * 2];
      float const total = from[(row * a.splits + i) * 2 + 1];
      state.merge(most, total);
    }
    auto const statistics = block.global(a.statistics);
    statistics[row * 2] = state.most;
    statistics[row * 2 + 1] = 1 / state.total;
  }
};

/// sums(q, t) = sum over the window's queries of query head q's weight for token t, in the order of the queries; or the
/// largest.
template <element_type E>
struct window_sums_body {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "window_sums";
  struct arguments {
    prompt_attention what;
    buffer<float const> statistics;  ///< `[heads, rows, 2]`
    std::int64_t columns = 0;        ///< tokens [0, columns) are wanted
    buffer<float> sums;              ///< `[q_heads, stride]`
    std::int64_t stride = 0;
    bool largest = false;
  };
  template <class B>
  struct shared {
    logit_shared<B> tile;
    typename B::template array<float, tile_rows * tile_keys> weights;
    typename B::template array<float, 16 * tile_keys> sums;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const first_key = static_cast<std::int64_t>(block.x()) * tile_keys;
    std::int32_t const pairs = a.what.group * tile_keys;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < pairs; i += B::threads) s.sums[i] = 0;
    auto const tile = block.tile();
    auto const statistics = block.global(a.statistics);
    std::int64_t const rows = a.what.rows();
    for (std::int64_t first_row = 0; first_row < rows; first_row += tile_rows) {
      float logits[4][2];
      logit_tile<E>(block, s.tile, a.what, block.y(), first_row, first_key, logits);
      KVPOLICY_UNROLL
      for (int r = 0; r < 4; ++r) {
        std::int64_t const row = first_row + tile.index() * 4 + r;
        float most = 0;
        float share = 0;
        if (row < rows) {
          most = statistics[(block.y() * rows + row) * 2];
          share = statistics[(block.y() * rows + row) * 2 + 1];
        }
        KVPOLICY_UNROLL
        for (int c = 0; c < 2; ++c) {
          s.weights[(tile.index() * 4 + r) * tile_keys + 32 * c + tile.lane()] =
              row < rows ? expf(logits[r][c] - most) * share : 0;
        }
      }
      block.sync();
      for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < pairs; i += B::threads) {
        std::int32_t const g = i / tile_keys;
        std::int64_t const begin = g * a.what.window > first_row ? g * a.what.window - first_row : 0;
        std::int64_t const behind = (g + 1) * a.what.window - first_row;
        float sum = s.sums[i];
        for (std::int64_t r = begin; r < tile_rows && r < behind; ++r) {
          float const weight = s.weights[r * tile_keys + (i - g * tile_keys)];
          if (!a.largest) sum += weight;
          else if (weight > sum) sum = weight;
        }
        s.sums[i] = sum;
      }
      block.sync();
    }
    auto const sums = block.global(a.sums);
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < pairs; i += B::threads) {
      std::int32_t const g = i / tile_keys;
      std::int64_t const t = first_key + (i - g * tile_keys);
      if (t >= a.columns) continue;
      float const sum = s.sums[i];
      sums[(block.y() * a.what.group + g) * a.stride + t] = sum;
    }
  }
};

/// scores(h, t): the group's sums, divided by how many queries they are of, smoothed over neighbours.
struct smooth_sums_body : no_shared {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "smooth_sums";
  struct arguments {
    buffer<float const> sums;  ///< `[q_heads, stride]`
    std::int64_t stride = 0;
    std::int32_t group = 1;
    std::int64_t columns = 0;
    std::int64_t window = 0;
    std::int64_t tokens = 0;
    bool by_seen = false;  ///< divide by the queries that see the token, not by the window
    bool largest = false;  ///< divide by neither: they are no sums, but the largest weights
    std::int32_t how = 0;  ///< smoothing::kind
    std::int32_t width = 1;
    bool of_group = false;      ///< merge the query heads before the smoothing
    bool largest_head = false;  ///< by their maximum
    buffer<float> scores;       ///< `[heads, score_stride]`
    std::int64_t score_stride = 0;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const t = index_in_grid(block);
    if (t >= a.columns) return;
    auto const sums = block.global(a.sums);
    std::int64_t const reach = a.how == 0 ? 0 : a.width / 2;
    std::int64_t const first = t > reach ? t - reach : 0;
    std::int64_t const last = t + reach + 1 < a.columns ? t + reach + 1 : a.columns;
    std::int64_t const head = static_cast<std::int64_t>(block.y()) * a.group;
    float result = 0;
    for (std::int32_t g = 0; g < (a.of_group ? 1 : a.group); ++g) {
      float smoothed = a.how == 2 ? -__builtin_huge_valf() : 0;
      for (std::int64_t i = first; i < last; ++i) {
        float value = sums[(head + g) * a.stride + i];
        if (a.largest_head && !(value >= 0)) value = 0;
        for (std::int32_t other = 1; a.of_group && other < a.group; ++other) {
          float const more = sums[(head + other) * a.stride + i];
          if (!a.largest_head) value += more;
          else if (more > value) value = more;
        }
        if (a.how != 2) smoothed += value;
        else if (!(value <= smoothed)) smoothed = value;
      }
      result += smoothed;
    }
    std::int64_t const see_it = a.tokens - t < a.window ? a.tokens - t : a.window;
    float const queries = a.largest ? 1.0f : static_cast<float>(a.by_seen ? see_it : a.window);
    float const width = a.how == 1 ? static_cast<float>(a.width) : 1.0f;
    float const heads = a.largest_head ? 1.0f : static_cast<float>(a.group);
    block.global(a.scores)[block.y() * a.score_stride + t] = result / (heads * queries * width);
  }
};

}  // namespace kvpolicy::gpu::detail
