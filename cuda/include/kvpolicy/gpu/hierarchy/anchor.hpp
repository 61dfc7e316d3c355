// What a choice works with: the coarser levels' means, and the anchor that units are ranked by.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/hierarchy/descent.hpp"

namespace kvpolicy::gpu::detail {

/// A level's means, from those of the next finer one.
struct level_means {
  buffer<float> means;  ///< `[sequences, stride, dims]`
  std::int64_t stride = 0;
  std::int32_t fan_out = 1;
  buffer<std::int32_t const> first;  ///< of the finer units that are taken in now, of each sequence
  buffer<std::int32_t const> last;
};

/// Brings chunks and grids up to date where a choice is due, and sets anchor(s, c): the mean of the recent pages' channel;
/// standardised: its difference from the mean of all pages, by their variance. The first blocks of a sequence have a channel of
/// the anchor a thread; a thread of the others has a channel of the coarsest level's units in turn, and of all below them.
struct prepare_descent_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "prepare_descent";
  struct arguments {
    buffer<float const> pages;  ///< means: `[sequences, page_stride, dims]`
    std::int64_t page_stride = 0;
    std::int64_t dims = 0;
    per_sequence here;  ///< pages
    buffer<std::int32_t const> due;
    std::int32_t recent = 1;
    bool standardised = false;
    float min_deviation = 0;
    buffer<float> anchor;  ///< `[sequences, dims]`
    level_means level[2];  ///< chunks, grids
    std::int32_t levels = 0;
    std::int64_t anchor_blocks = 1;  ///< of a sequence
    std::int64_t blocks = 1;         ///< behind those, if there are levels
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const s = block.y();
    std::int32_t const due = block.global(a.due)[s];
    if (due == 0) return;
    if (block.x() < a.anchor_blocks) {
      std::int64_t const channel = index_in_grid(block);
      if (channel < a.dims) set_anchor(block, a, s, channel);
      return;
    }
    level_means const& top = a.level[a.levels - 1];
    std::int32_t const begin = block.global(top.first)[s];
    std::int32_t const end = block.global(top.last)[s];
    std::int64_t const first = begin / top.fan_out;
    std::int64_t const items = (divided(end, top.fan_out) - first) * a.dims;
    std::int64_t const behind = block.x() - a.anchor_blocks;
    for (std::int64_t i = behind * B::threads + block.thread(); i < items; i += a.blocks * B::threads) {
      std::int64_t const unit = first + i / a.dims;
      std::int64_t const channel = i % a.dims;
      if (a.levels == 2) {
        level_means const& chunks = a.level[0];
        std::int32_t const changed = block.global(chunks.first)[s];
        std::int32_t const pages = block.global(chunks.last)[s];
        for (std::int64_t c = unit * top.fan_out; c < (unit + 1) * top.fan_out && c < end; ++c) {
          if (c >= changed / chunks.fan_out) set_mean(block, a, s, chunks, a.pages, a.page_stride, c, channel, pages);
        }
        set_mean(block, a, s, top, buffer<float const>(chunks.means), chunks.stride, unit, channel, end);
      } else {
        set_mean(block, a, s, top, a.pages, a.page_stride, unit, channel, end);
      }
    }
  }

 private:
  static KVPOLICY_KERNEL std::int64_t divided(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

  /// A unit's mean is a running one, in the order of its finer units.
  template <class B>
  KVPOLICY_KERNEL static void set_mean(B& block, arguments const& a, std::int64_t s, level_means const& to,
                                       buffer<float const> from, std::int64_t from_stride, std::int64_t unit,
                                       std::int64_t channel, std::int64_t finer) {
    // Not through the read-only path: chunks were written by this thread.
    auto const means = block.global(buffer<float>{const_cast<float*>(from.data), from.size});
    float mean = 0;
    float count = 0;
    for (std::int64_t f = unit * to.fan_out; f < (unit + 1) * to.fan_out && f < finer; ++f) {
      float const x = means[(s * from_stride + f) * a.dims + channel];
      count += 1;
      mean = count == 1 ? x : mean + (x - mean) * (1 / count);
    }
    block.global(to.means)[(s * to.stride + unit) * a.dims + channel] = mean;
  }

  template <class B>
  KVPOLICY_KERNEL static void set_anchor(B& block, arguments const& a, std::int64_t s, std::int64_t channel) {
    std::int64_t const pages = a.here.of(block, block.y());
    if (pages == 0) return;
    auto const means = block.global(a.pages);
    std::int64_t const from = s * a.page_stride * a.dims + channel;
    std::int64_t const recent = a.recent < pages ? a.recent : pages;
    float sum = 0;
    for (std::int64_t p = pages - recent; p < pages; ++p) {
      float const x = means[from + p * a.dims];
      sum += x;
    }
    float anchor = sum / static_cast<float>(recent);
    if (a.standardised) {
      float mean = 0;
      float squares = 0;
      KVPOLICY_UNROLL_4
      for (std::int64_t p = 0; p < pages; ++p) {
        float const x = means[from + p * a.dims];
        float const before = p == 0 ? x : mean;
        mean = before + (x - before) / static_cast<float>(p + 1);
        squares += (x - before) * (x - mean);
      }
      float const deviation = sqrtf(squares / static_cast<float>(pages));
      anchor = deviation > a.min_deviation * fabsf(mean) ? (anchor - mean) / (deviation * deviation) : 0;
    }
    block.global(a.anchor)[s * a.dims + channel] = anchor;
  }
};

}  // namespace kvpolicy::gpu::detail
