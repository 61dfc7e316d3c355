// Tables with a row for each head and an entry for each token or unit, which grow with the sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// `[rows, room, width]`: entries of `width` elements, side by side in each row. Rows have room for as many entries as were
/// asked for, and for none at first.
template <class T>
class token_table {
 public:
  token_table() = default;
  token_table(std::int64_t rows, std::int64_t width) noexcept : rows_(rows), width_(width) {}

  /// Entries of a row.
  std::int64_t room() const noexcept { return room_; }
  /// Elements from one row to the next.
  std::int64_t stride() const noexcept { return room_ * width_; }
  T* data() noexcept { return data_.data(); }
  T* row(std::int64_t r) noexcept { return data_.data() + r * stride(); }
  T const* row(std::int64_t r) const noexcept { return data_.data() + r * stride(); }
  T* entry(std::int64_t r, std::int64_t i) noexcept { return row(r) + i * width_; }
  /// The first `columns` elements of `count` rows.
  table<T> rows(std::int64_t first, std::int64_t count, std::int64_t columns) noexcept {
    return {row(first), count, columns, stride()};
  }

  /// Makes room for at least so many entries. Those that were there stay, others are T{}.
  void reserve(std::int64_t entries) {
    if (entries <= room_) return;
    std::vector<T> grown(static_cast<std::size_t>(rows_ * entries * width_));
    for (std::int64_t r = 0; r < rows_; ++r) std::copy_n(row(r), stride(), grown.data() + r * entries * width_);
    data_ = std::move(grown);
    room_ = entries;
  }

  template <class Archive>
  void archive(Archive& a) {
    a(room_, data_);
    if constexpr (Archive::reads) {
      if (room_ < 0 || std::ssize(data_) / std::max<std::int64_t>(1, rows_ * width_) != room_ ||
          std::ssize(data_) != rows_ * width_ * room_)
        Archive::refuse();
    }
  }

 private:
  std::int64_t rows_ = 0;
  std::int64_t width_ = 1;
  std::int64_t room_ = 0;
  std::vector<T> data_;
};

}  // namespace kvpolicy
