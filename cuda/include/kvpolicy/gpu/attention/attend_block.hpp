// A block of queries' attention, keys and values read once for all query heads of a KV head.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/attention/attend_split.hpp"
#include "kvpolicy/gpu/attention/logit_tile.hpp"
#include "kvpolicy/gpu/attention/softmax_state.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// Tiles of 32 rows and 64 keys, with a running softmax. A warp has 4 rows; its lanes have 2 keys each for the weights, and
/// channels lane, lane + 32, ... for the sums.
template <element_type E>
struct attend_block_body {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "attend_block";
  struct arguments {
    prompt_attention what;  ///< of listed keys
    batch_rows values;
    attend_terms terms;
    std::int64_t first = 0;  ///< the first query's token
    vector_rows out;         ///< `[window, q_heads, head_dim]`
  };
  template <class B>
  struct shared {
    logit_shared<B> tile;
    typename B::template array<float, tile_rows * tile_keys> weights;
  };

  /// The keys that any row of a tile sees, and those that all of them see.
  struct tile_sees {
    std::int64_t any_begin;
    std::int64_t any_end = 0;
    std::int64_t all_begin = 0;
    std::int64_t all_end;

    template <class B>
    KVPOLICY_KERNEL tile_sees(B& block, arguments const& a, std::int64_t list, std::int64_t first_row)
        : any_begin(a.what.tokens), all_end(a.what.tokens) {
      auto const begins = block.global(a.what.listed.begins);
      auto const ends = block.global(a.what.listed.ends);
      for (std::int64_t row = first_row; row < first_row + tile_rows && row < a.what.rows(); ++row) {
        std::int64_t const at = list * a.what.window + row % a.what.window;
        std::int32_t const begin = begins[at];
        std::int32_t const end = ends[at];
        any_begin = begin < any_begin ? begin : any_begin;
        any_end = end > any_end ? end : any_end;
        all_begin = begin > all_begin ? begin : all_begin;
        all_end = end < all_end ? end : all_end;
      }
    }
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const tile = block.tile();
    auto const lane = static_cast<std::int32_t>(tile.lane());
    unsigned const head = block.y();
    std::int64_t const first_row = static_cast<std::int64_t>(block.x()) * tile_rows;
    std::int64_t const row0 = first_row + tile.index() * 4;
    auto const tokens = block.global(a.what.listed.tokens);
    std::int64_t const list = a.what.listed.of(head);
    row_reader<E, B> const values(block, a.values, 0);

    tile_sees const sees(block, a, list, first_row);
    softmax_state<powers_of_e, 8> states[4];
    for (std::int64_t key = sees.any_begin / tile_keys * tile_keys; key < sees.any_end; key += tile_keys) {
      float logits[4][2];
      logit_tile<E>(block, s.tile, a.what, head, first_row, key, logits);
      KVPOLICY_UNROLL
      for (int r = 0; r < 4; ++r) {
        float more = states[r].most;
        KVPOLICY_UNROLL
        for (int c = 0; c < 2; ++c) {
          logits[r][c] = with_terms(block, a, head, row0 + r, key + 32 * c + lane, logits[r][c]);
          more = logits[r][c] > more ? logits[r][c] : more;
        }
        for (unsigned mask = 16; mask > 0; mask /= 2) {
          float const other = tile.shfl_xor(more, mask);
          more = other > more ? other : more;
        }
        float const kept = states[r].raise(more);
        float here = 0;
        KVPOLICY_UNROLL
        for (int c = 0; c < 2; ++c) {
          float const weight = states[r].weight(logits[r][c]);
          s.weights[(tile.index() * 4 + r) * tile_keys + 32 * c + lane] = weight;
          here += weight;
        }
        states[r].total = states[r].total * kept + lane_sum(tile, here, 32);
        KVPOLICY_UNROLL
        for (int c = 0; c < 8; ++c) states[r].sum[c] *= kept;
      }
      tile.sync();
      bool const seen_by_all = key >= sees.all_begin && key + tile_keys <= sees.all_end;
      KVPOLICY_UNROLL
      for (int chunk = 0; chunk < 4; ++chunk) {
        if (chunk * tile_channels >= a.values.head_dim) break;
        constexpr std::int32_t parts = tile_channels / 8;
        for (auto i = static_cast<std::int32_t>(block.thread()); i < tile_keys * parts; i += B::threads) {
          std::int32_t const k = i / parts;
          std::int32_t const part = chunk * parts + (i - k * parts);
          float x[8] = {};
          if (key + k < sees.any_end && part * 8 < a.values.head_dim) {
            std::int32_t const token = tokens[list * a.what.listed.stride + key + k];
            values.load(values.offset(head, token), part, x);
          }
          KVPOLICY_UNROLL
          for (int c = 0; c < 8; ++c) s.tile.keys[k * (tile_channels + 1) + (i - k * parts) * 8 + c] = x[c];
        }
        block.sync();
        for (std::int32_t k = 0; k < tile_keys; ++k) {
          float const near = s.tile.keys[k * (tile_channels + 1) + lane];
          float const far = s.tile.keys[k * (tile_channels + 1) + lane + 32];
          KVPOLICY_UNROLL
          for (int r = 0; r < 4; ++r) {
            float const weight = s.weights[(tile.index() * 4 + r) * tile_keys + k];
            if (!seen_by_all && weight == 0) continue;  // a NaN that is not seen does not matter
            states[r].sum[2 * chunk] += weight * near;
            states[r].sum[2 * chunk + 1] += weight * far;
          }
        }
        block.sync();
      }
    }
    write(block, a, row0, states);
  }

 private:
  template <class B>
  KVPOLICY_KERNEL static void write(B& block, arguments const& a, std::int64_t row0,
                                    softmax_state<powers_of_e, 8> (&states)[4]) {
    auto const lane = static_cast<std::int32_t>(block.tile().lane());
    KVPOLICY_UNROLL
    for (int r = 0; r < 4; ++r) {
      std::int64_t const row = row0 + r;
      if (row >= a.what.rows()) continue;
      std::int64_t const q_head = block.y() * a.what.group + row / a.what.window;
      if (a.terms.sinks.data != nullptr) {
        float const sink = block.global(a.terms.sinks)[q_head];
        states[r].merge(sink, 1);
      }
      KVPOLICY_UNROLL
      for (int c = 0; c < 8; ++c) {
        std::int32_t const channel = 32 * c + lane;
        if (channel >= a.values.head_dim) continue;
        put(block, a.out, row % a.what.window * a.out.token_stride + q_head * a.out.head_stride + channel,
            states[r].total == 0 ? 0.0f : states[r].sum[c] / states[r].total);
      }
    }
  }

  template <class B>
  KVPOLICY_KERNEL static float with_terms(B& block, arguments const& a, unsigned head, std::int64_t row, std::int64_t key,
                                          float logit) {
    if (logit == -__builtin_huge_valf() || row >= a.what.rows()) return logit;
    if (a.terms.soft_cap != 0) logit = a.terms.soft_cap * tanhf(logit / a.terms.soft_cap);
    if (a.terms.slopes.data == nullptr) return logit;
    float const slope = block.global(a.terms.slopes)[head * a.what.group + row / a.what.window];
    std::int32_t const token = block.global(a.what.listed.tokens)[a.what.listed.of(head) * a.what.listed.stride + key];
    return logit + slope * static_cast<float>(token - (a.first + row % a.what.window));
  }
};

}  // namespace kvpolicy::gpu::detail
