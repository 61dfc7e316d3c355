// Key and value rows of a batch, as kernels read them: any strides, page tables and indices, 8 channels at a time.
#pragma once

#include "kvpolicy/gpu/base/block.hpp"
#include "kvpolicy/gpu/base/element.hpp"

namespace kvpolicy::gpu {

/// One layer's rows of every sequence of a batch. Strides are in elements.
/// Row (s, h, t) begins at `s sequence_stride + h head_stride + t token_stride`. With pages it is row `t % page_size` of page
/// `pages[s page_table_stride + t / page_size]`; with places, of the page that begins at element
/// `places[s page_table_stride + t / page_size]` of memory, without a sequence_stride. With indices, "token" t of head h is
/// token `indices[s index_sequence_stride + h index_stride + t]`.
struct batch_rows {
  void const* base = nullptr;
  std::int64_t elements = 0;  ///< from base on, for the GPU emulator
  element_type type = element_type::f16;
  bool packed = false;  ///< 8 channels of any row are 16-byte loads: contiguous, aligned, head_dim a multiple of 8
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;
  std::int64_t sequence_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t dim_stride = 1;

  buffer<std::int32_t const> pages;
  buffer<std::int64_t const> places;  ///< in place of pages
  std::int64_t page_table_stride = 0;
  std::int32_t page_size = 1;
  std::int32_t page_shift = -1;  ///< log2(page_size) of a power of two, else -1
  std::int64_t page_stride = 0;

  buffer<std::int32_t const> indices;
  std::int64_t index_sequence_stride = 0;
  std::int64_t index_stride = 0;

  row_map rows{};  ///< s above is a sequence's row

  /// Returns the groups of 8 channels in a row.
  constexpr std::int32_t parts() const noexcept { return (head_dim + 7) / 8; }
};

/// A number for each sequence of a batch, on the device; or one number for all of them.
struct per_sequence {
  buffer<std::int32_t const> values;  ///< `[sequences]`; none: `all` counts
  std::int64_t all = 0;

  /// Returns a sequence's number.
  /// @param block  the thread's block
  /// @param sequence  the sequence
  template <class B>
  KVPOLICY_KERNEL std::int64_t of(B& block, unsigned sequence) const {
    if (values.data == nullptr) return all;
    std::int32_t const value = block.global(values)[sequence];
    return value;
  }
};

/// Reads the rows of one sequence.
/// @tparam E  the type of the rows' elements
/// @tparam B  the block
/// @tparam Placed  whether they may have places, as summaries do; it costs registers
template <element_type E, class B, bool Placed = false>
class row_reader {
  using element = stored<E> const;

 public:
  /// Begins reading.
  /// @param block  the thread's block
  /// @param rows  the rows; must outlive the reader
  /// @param sequence  the sequence
  KVPOLICY_KERNEL row_reader(B& block, batch_rows const& rows, unsigned sequence)
      : rows_(rows),
        data_(block.global(buffer<element>{static_cast<element*>(rows.base), rows.elements})),
        pages_(block.global(rows.pages)),
        places_(block.global(rows.places)),
        indices_(block.global(rows.indices)),
        sequence_(rows.rows.of(block, sequence)) {}

  KVPOLICY_KERNEL bool packed() const { return rows_.packed; }
  /// Returns the sequence's token of a row.
  /// @param head,token  the row
  KVPOLICY_KERNEL std::int64_t at(std::int64_t head, std::int64_t token) const {
    if (rows_.indices.data == nullptr) return token;
    std::int32_t const ranked = indices_[sequence_ * rows_.index_sequence_stride + head * rows_.index_stride + token];
    return ranked;
  }

  /// Returns the offset of a row's first element, in elements.
  /// @param head,token  the row
  KVPOLICY_KERNEL std::int64_t offset(std::int64_t head, std::int64_t token) const {
    token = at(head, token);
    std::int64_t at = sequence_ * rows_.sequence_stride + head * rows_.head_stride;
    if (rows_.pages.data != nullptr) {
      auto const t = static_cast<std::int32_t>(token);
      std::int32_t const page = rows_.page_shift >= 0 ? t >> rows_.page_shift : t / rows_.page_size;
      std::int32_t const physical = pages_[sequence_ * rows_.page_table_stride + page];
      at += physical * rows_.page_stride;
      token = t - page * rows_.page_size;
    }
    if constexpr (Placed) {
      if (rows_.places.data != nullptr) {
        auto const page = static_cast<std::int32_t>(token) >> rows_.page_shift;
        std::int64_t const place = places_[sequence_ * rows_.page_table_stride + page];
        at += place;
        token -= page << rows_.page_shift;
      }
    }
    return at + token * rows_.token_stride;
  }

  /// 8 channels of a packed row as they lie, in one or two packs.
  struct raw {
    pack word[E == element_type::f32 ? 2 : 1];
  };
  /// Loads channels [8 part, 8 part + 8) of a packed row.
  /// @param offset  of the row
  /// @param part  which 8 channels
  KVPOLICY_KERNEL raw load_raw(std::int64_t offset, std::int32_t part) const {
    raw made;
    made.word[0] = data_.load(offset + part * 8);
    if constexpr (E == element_type::f32) made.word[1] = data_.load(offset + part * 8 + 4);
    return made;
  }
  /// Converts 8 channels to floats.
  /// @param from  the channels
  /// @param x  receives the floats
  KVPOLICY_KERNEL static void widen(raw const& from, float (&x)[8]) {
    KVPOLICY_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (E == element_type::f32) {
        x[i] = __builtin_bit_cast(float, from.word[0].word[i]);
        x[i + 4] = __builtin_bit_cast(float, from.word[1].word[i]);
      } else {
        x[2 * i] = widened<E>(static_cast<std::uint16_t>(from.word[0].word[i]));
        x[2 * i + 1] = widened<E>(static_cast<std::uint16_t>(from.word[0].word[i] >> 16));
      }
    }
  }

  /// Loads channels [8 part, 8 part + 8) of any row; zeros past head_dim.
  /// @param offset  of the row
  /// @param part  which 8 channels
  /// @param x  receives the channels
  KVPOLICY_KERNEL void load(std::int64_t offset, std::int32_t part, float (&x)[8]) const {
    if (rows_.packed) return widen(load_raw(offset, part), x);
    load_apart(offset, part, x);
  }
  /// Visits channels [8 part, 8 part + 8) of a head's tokens, in order. Packed rows of a page are several at once on their way.
  /// @param head  the head
  /// @param begin,end  the tokens
  /// @param part  which 8 channels
  /// @param each  called with `float (&)[8]`
  /// @tparam AtOnce  how many rows
  template <int AtOnce = 8, class Each>
  KVPOLICY_KERNEL void each_row(std::int64_t head, std::int64_t begin, std::int64_t end, std::int32_t part, Each each) const {
    float x[8];
    if (!rows_.packed) {
      for (std::int64_t t = begin; t < end; ++t) {
        load_apart(offset(head, t), part, x);
        each(x);
      }
      return;
    }
    constexpr int at_once = E == element_type::f32 ? AtOnce / 2 : AtOnce;
    while (begin < end) {
      std::int64_t run = rows_.indices.data != nullptr ? 1 : end - begin;  // rows that are token_stride apart
      if (rows_.pages.data != nullptr) {
        auto const t = static_cast<std::int32_t>(at(head, begin));
        std::int32_t const in_page = rows_.page_shift >= 0 ? t & (rows_.page_size - 1) : t % rows_.page_size;
        if (rows_.page_size - in_page < run) run = rows_.page_size - in_page;
      }
      std::int64_t from = offset(head, begin);
      begin += run;
      for (; run >= at_once; run -= at_once, from += at_once * rows_.token_stride) {
        raw lying[at_once];
        KVPOLICY_UNROLL
        for (int i = 0; i < at_once; ++i) lying[i] = load_raw(from + i * rows_.token_stride, part);
        KVPOLICY_UNROLL
        for (int i = 0; i < at_once; ++i) {
          widen(lying[i], x);
          each(x);
        }
      }
      for (; run > 0; --run, from += rows_.token_stride) {
        widen(load_raw(from, part), x);
        each(x);
      }
    }
  }
  /// Loads one channel of a row.
  /// @param offset  of the row
  /// @param channel  which channel
  KVPOLICY_KERNEL float one(std::int64_t offset, std::int32_t channel) const {
    stored<E> const element_at = data_[offset + channel * rows_.dim_stride];
    return widened<E>(element_at);
  }
  /// Loads 8 channels as load() does, element by element.
  /// @param offset  of the row
  /// @param part  which 8 channels
  /// @param x  receives the channels
  KVPOLICY_KERNEL void load_apart(std::int64_t offset, std::int32_t part, float (&x)[8]) const {
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      x[i] = 0;
      if (part * 8 + i < rows_.head_dim) {
        stored<E> const element_at = data_[offset + (part * 8 + i) * rows_.dim_stride];
        x[i] = widened<E>(element_at);
      }
    }
  }

 private:
  batch_rows const& rows_;
  decltype(std::declval<B&>().global(buffer<element>{})) data_;
  decltype(std::declval<B&>().global(buffer<std::int32_t const>{})) pages_;
  decltype(std::declval<B&>().global(buffer<std::int64_t const>{})) places_;
  decltype(std::declval<B&>().global(buffer<std::int32_t const>{})) indices_;
  unsigned sequence_;
};

/// The longest row of the kernels that take rows above 256 channels: latent ones (MLA).
inline constexpr std::int32_t max_wide_dim = 768;

/// How many threads of a warp share a row: a power of two that holds the row's parts, at most 32.
struct row_lanes {
  std::int32_t lanes = 32;

  /// Chooses the threads for rows of a size.
  /// @param parts  groups of 8 channels in a row
  constexpr explicit row_lanes(std::int32_t parts) noexcept {
    lanes = 1;
    while (lanes < parts && lanes < 32) lanes *= 2;
  }
  constexpr std::int32_t rows_of_warp() const noexcept { return 32 / lanes; }
};

/// Adds up a value over the lanes that share a row.
/// @param tile  the warp
/// @param value  the lane's value
/// @param lanes  how many share a row
/// @return the sum, in every lane
template <class Tile>
KVPOLICY_KERNEL float lane_sum(Tile const& tile, float value, std::int32_t lanes) {
  for (std::int32_t mask = lanes / 2; mask > 0; mask /= 2) value += tile.shfl_xor(value, static_cast<unsigned>(mask));
  return value;
}

}  // namespace kvpolicy::gpu
