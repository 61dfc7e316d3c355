// A sequence's state as llama.cpp writes it: its cells, and each layer's rows of keys and values.
#pragma once

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvpolicy/rows.hpp"

namespace kvpolicy::llama {

class sequence_image {
 public:
  /// Reads a sequence of a context whose layers have heads of this shape. Throws unsupported for a state of another form.
  sequence_image(llama_context* context, llama_seq_id of, cache_shape const& shape);

  std::int64_t tokens() const noexcept { return static_cast<std::int64_t>(order_.size()); }
  /// The last token's position.
  llama_pos last() const noexcept { return last_; }
  /// Rows of a layer, tokens in the order of their positions. Valid while the image is.
  rows keys(layer_id layer) const { return rows_of(planes_[static_cast<std::size_t>(layer.value)]); }
  rows values(layer_id layer) const { return rows_of(planes_[static_cast<std::size_t>(shape_.layers + layer.value)]); }

  /// The same sequence with `kept` cells at its last positions; `token_of(layer, head, i)` is the token whose rows the i-th
  /// has.
  template <class TokenOf>
  std::vector<std::uint8_t> with(std::int64_t kept, TokenOf token_of) const {
    std::vector<std::uint8_t> made = header_of(kept);
    made.reserve(bytes_.size());
    for (std::int64_t p = 0; p < std::ssize(planes_); ++p) {
      layer_id const layer{p % shape_.layers};
      std::uint8_t* const to = append_plane(made, p, kept);
      for (std::int64_t i = 0; i < kept; ++i) {
        for (std::int64_t h = 0; h < shape_.kv_heads; ++h) copy_row(to, p, i, h, token_of(layer, head_id{h}, i));
      }
    }
    return made;
  }
  std::span<std::uint8_t const> bytes() const noexcept { return bytes_; }

 private:
  /// Rows of a layer's keys or values, one a cell.
  struct plane {
    std::int64_t begin = 0;  ///< of its description, in the bytes
    std::int64_t row = 0;    ///< bytes
    std::int64_t rows = 0;   ///< where they begin
    std::int64_t step = 0;   ///< bytes from one element, or block, to the next
    element_type type{};
  };

  rows rows_of(plane const& of) const;
  std::vector<std::uint8_t> header_of(std::int64_t kept) const;
  std::uint8_t* append_plane(std::vector<std::uint8_t>& to, std::int64_t nth, std::int64_t kept) const;
  void copy_row(std::uint8_t* to, std::int64_t nth, std::int64_t cell, std::int64_t head, std::int64_t token) const;

  cache_shape shape_;
  std::vector<std::uint8_t> bytes_;
  std::int64_t front_ = 0;           ///< bytes before the number of cells
  std::int64_t between_ = 0;         ///< where what stands between cells and rows begins
  std::vector<plane> planes_;        ///< `[2, layers]` keys, then values
  std::vector<std::int32_t> order_;  ///< cell of each token
  llama_pos last_ = -1;              ///< position
  std::int32_t sequence_ = 0;        ///< as cells name it
};

}  // namespace kvpolicy::llama
