// Queries to come as a Gaussian: its moments from a prompt's queries, and the log of what a key may expect of it.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/base/rows.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// Of an angle in turns, 0 to 1. sinf and cosf would keep a table for huge angles in local memory.
KVPOLICY_KERNEL float sine(float turns) {
#if defined(__CUDA_ARCH__)
  return sinpif(2 * turns);
#else
  return sinf(turns * 6.28318531f);
#endif
}
KVPOLICY_KERNEL float cosine(float turns) {
#if defined(__CUDA_ARCH__)
  return cospif(2 * turns);
#else
  return cosf(turns * 6.28318531f);
#endif
}

/// plain(q, t, :) = the query before its rotation.
struct unrotate_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "unrotate";
  struct arguments {
    vector_rows queries;  ///< `[tokens, q_heads, head_dim]`
    buffer<float const> inverse_frequency;
    std::int32_t pairs = 0;
    bool halves = true;  ///< rotation::pairing
    std::int64_t first = 0;
    std::int64_t tokens = 0;
    std::int32_t head_dim = 0;
    buffer<float> plain;  ///< `[q_heads, tokens, head_dim]`
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const t = block.x();
    auto const plain = block.global(a.plain);
    std::int64_t const from = t * a.queries.token_stride + block.y() * a.queries.head_stride;
    std::int64_t const to = (block.y() * a.tokens + t) * a.head_dim;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < a.pairs; i += B::threads) {
      std::int32_t const x = a.halves ? i : 2 * i;
      std::int32_t const y = a.halves ? i + a.pairs : 2 * i + 1;
      float const frequency = block.global(a.inverse_frequency)[i];
      // Positions go to millions of radians: the turns before the point are taken off in double precision.
      double const turns = static_cast<double>(a.first + t) * static_cast<double>(frequency) * 0.15915494309189535;
      auto const angle = static_cast<float>(turns - floor(turns));
      float const u = get(block, a.queries, from + x);
      float const v = get(block, a.queries, from + y);
      plain[to + x] = cosine(angle) * u + sine(angle) * v;
      plain[to + y] = cosine(angle) * v - sine(angle) * u;
    }
    for (std::int32_t i = 2 * a.pairs + static_cast<std::int32_t>(block.thread()); i < a.head_dim; i += B::threads) {
      plain[to + i] = get(block, a.queries, from + i);
    }
  }
};

/// mean(q, :) over the tokens: a warp's lanes have a channel each, warps take turns at tokens, added in a fixed order.
struct query_mean_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = "query_mean";
  struct arguments {
    buffer<float const> plain;  ///< `[q_heads, tokens, head_dim]`
    std::int64_t tokens = 0;
    std::int32_t head_dim = 0;
    buffer<float> mean;  ///< `[q_heads, stride]`
    std::int64_t stride = 0;
  };
  template <class B>
  struct shared {
    typename B::template array<float, 512> sums;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const tile = block.tile();
    std::int64_t const channel = block.x() * 32 + tile.lane();
    auto const plain = block.global(a.plain);
    float sum = 0;
    for (std::int64_t t = tile.index(); t < a.tokens && channel < a.head_dim; t += B::threads / 32) {
      float const x = plain[(block.y() * a.tokens + t) * a.head_dim + channel];
      sum += x;
    }
    s.sums[block.thread()] = sum;
    block.sync();
    if (tile.index() != 0 || channel >= a.head_dim) return;
    float all = 0;
    for (unsigned w = 0; w < B::threads / 32; ++w) {
      float const one = s.sums[w * 32 + tile.lane()];
      all += one;
    }
    block.global(a.mean)[block.y() * a.stride + channel] = all / static_cast<float>(a.tokens);
  }
};

/// covariance(q d + i, j) over the tokens: 16 x 16 of it a block.
struct query_covariance_body {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "query_covariance";
  struct arguments {
    buffer<float const> plain;  ///< `[q_heads, tokens, head_dim]`
    std::int64_t tokens = 0;
    std::int32_t head_dim = 0;
    buffer<float const> mean;  ///< `[q_heads, mean_stride]`
    std::int64_t mean_stride = 0;
    buffer<float> covariance;  ///< `[q_heads * head_dim, stride]`
    std::int64_t stride = 0;
    std::int32_t tiles = 1;  ///< ceil(head_dim / 16)
  };
  template <class B>
  struct shared {
    typename B::template array<float, 32 * 16> left;
    typename B::template array<float, 32 * 16> right;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const thread = static_cast<std::int32_t>(block.thread());
    std::int32_t const i0 = static_cast<std::int32_t>(block.x()) / a.tiles * 16;
    std::int32_t const j0 = static_cast<std::int32_t>(block.x()) % a.tiles * 16;
    auto const plain = block.global(a.plain);
    auto const mean = block.global(a.mean);
    float sum = 0;
    for (std::int64_t base = 0; base < a.tokens; base += 32) {
      for (std::int32_t item = thread; item < 32 * 16; item += B::threads) {
        std::int64_t const t = base + item / 16;
        std::int32_t const i = i0 + item % 16;
        std::int32_t const j = j0 + item % 16;
        float x = 0;
        float y = 0;
        if (t < a.tokens && i < a.head_dim) {
          float const value = plain[(block.y() * a.tokens + t) * a.head_dim + i];
          float const middle = mean[block.y() * a.mean_stride + i];
          x = value - middle;
        }
        if (t < a.tokens && j < a.head_dim) {
          float const value = plain[(block.y() * a.tokens + t) * a.head_dim + j];
          float const middle = mean[block.y() * a.mean_stride + j];
          y = value - middle;
        }
        s.left[item] = x;
        s.right[item] = y;
      }
      block.sync();
      for (std::int32_t t = 0; t < 32; ++t) {
        float const x = s.left[t * 16 + thread / 16];
        float const y = s.right[t * 16 + thread % 16];
        sum += x * y;
      }
      block.sync();
    }
    std::int32_t const i = i0 + thread / 16;
    std::int32_t const j = j0 + thread % 16;
    if (i >= a.head_dim || j >= a.head_dim) return;
    block.global(a.covariance)[(static_cast<std::int64_t>(block.y()) * a.head_dim + i) * a.stride + j] =
        sum / static_cast<float>(a.tokens);
  }
};

/// logits(q, t - first) = scale mean.k + scale^2 / 2 k^T covariance k. A warp has 8 tokens, so that a row of the covariance is
/// read once for them.
template <element_type E>
struct gaussian_logits_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "gaussian_logits";
  static constexpr int tokens_of_block = 32;
  struct arguments {
    batch_rows keys;
    std::int64_t first = 0;
    std::int64_t tokens = 0;
    buffer<float const> mean;  ///< `[q_heads, mean_stride]`
    std::int64_t mean_stride = 0;
    buffer<float const> covariance;  ///< `[q_heads * head_dim, covariance_stride]`, or none
    std::int64_t covariance_stride = 0;
    float scale = 1;
    std::int32_t group = 1;
    buffer<float> logits;  ///< `[q_heads, stride]`
    std::int64_t stride = 0;
  };
  template <class B>
  struct shared {
    typename B::template array<float, tokens_of_block * 257> keys;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int32_t const dim = a.keys.head_dim;
    std::int64_t const base = a.first + block.x() * tokens_of_block;
    std::int64_t const q = block.y();
    auto const head = static_cast<std::int64_t>(block.y()) / a.group;
    row_reader<E, B> const keys(block, a.keys, 0);
    std::int32_t const parts = a.keys.parts();
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < tokens_of_block * parts; i += B::threads) {
      std::int32_t const t = i / parts;
      std::int32_t const part = i - t * parts;
      float x[8] = {};
      if (base + t < a.tokens) keys.load(keys.offset(head, base + t), part, x);
      KVPOLICY_UNROLL
      for (int c = 0; c < 8; ++c) s.keys[t * 257 + part * 8 + c] = x[c];
    }
    block.sync();
    auto const tile = block.tile();
    auto const lane = static_cast<std::int32_t>(tile.lane());
    std::int32_t const first = static_cast<std::int32_t>(tile.index()) * 8;
    auto const mean = block.global(a.mean);
    auto const covariance = block.global(a.covariance);
    float const half = a.scale * a.scale / 2;
    float sum[8] = {};
    for (std::int32_t j = lane; j < dim; j += 32) {
      float near[8] = {};  // (covariance k)_j, for 8 tokens; the matrix is symmetric
      for (std::int32_t i = 0; i < dim && a.covariance.data != nullptr; ++i) {
        float const c = covariance[(q * dim + i) * a.covariance_stride + j];
        KVPOLICY_UNROLL
        for (int t = 0; t < 8; ++t) {
          float const key = s.keys[(first + t) * 257 + i];
          near[t] += c * key;
        }
      }
      float const middle = mean[q * a.mean_stride + j];
      KVPOLICY_UNROLL
      for (int t = 0; t < 8; ++t) {
        float const key = s.keys[(first + t) * 257 + j];
        sum[t] += key * (a.scale * middle + half * near[t]);
      }
    }
    KVPOLICY_UNROLL
    for (int t = 0; t < 8; ++t) {
      float const logit = lane_sum(tile, sum[t], 32);
      if (lane == 0 && base + first + t < a.tokens) block.global(a.logits)[q * a.stride + (base - a.first) + first + t] = logit;
    }
  }
};

}  // namespace kvpolicy::gpu::detail
