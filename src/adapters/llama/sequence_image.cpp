#include "sequence_image.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "kvpolicy/error.hpp"
#include "nodes.hpp"

namespace kvpolicy::llama {
namespace {

[[noreturn]] void refuse(std::string const& why) {
  throw unsupported("a sequence's state of another form than this version of llama.cpp writes: " + why);
}

/// Reads numbers one after the other.
class reader {
 public:
  explicit reader(std::span<std::uint8_t const> bytes) : bytes_(bytes) {}

  template <class T>
  T next() {
    T value{};
    std::memcpy(&value, skip(sizeof value), sizeof value);
    return value;
  }
  std::uint8_t const* skip(std::size_t count) {
    if (count > bytes_.size() - at_) refuse("it ends early");
    at_ += count;
    return bytes_.data() + at_ - count;
  }
  std::int64_t at() const noexcept { return static_cast<std::int64_t>(at_); }

 private:
  std::span<std::uint8_t const> bytes_;
  std::size_t at_ = 0;
};

template <class T>
void append(std::vector<std::uint8_t>& to, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  auto const* const from = reinterpret_cast<std::uint8_t const*>(&value);
  to.insert(to.end(), from, from + sizeof value);
}

}  // namespace

sequence_image::sequence_image(llama_context* context, llama_seq_id of, cache_shape const& shape) : shape_(shape) {
  bytes_.resize(llama_state_seq_get_size(context, of));
  if (llama_state_seq_get_data(context, bytes_.data(), bytes_.size(), of) != bytes_.size())
    throw error("llama.cpp does not write the state of sequence " + std::to_string(of));
  reader from(bytes_);
  from.skip(8);  // what llama.cpp knows its states by
  if (auto const streams = from.next<std::uint32_t>(); streams != 1)
    refuse(std::to_string(streams) + " streams; set kv_unified for several sequences");
  front_ = from.at();
  auto const cells = from.next<std::uint32_t>();
  if (cells == 0) return;
  std::vector<llama_pos> positions;
  for (std::uint32_t c = 0; c < cells; ++c) {
    positions.push_back(from.next<llama_pos>());
    auto const owners = from.next<std::uint32_t>();
    if (owners > 1) refuse("cells of " + std::to_string(owners) + " sequences");
    if (owners == 1) sequence_ = from.next<std::int32_t>();
  }
  order_.resize(cells);
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::stable_sort(order_, {}, [&](std::int32_t c) { return positions[static_cast<std::size_t>(c)]; });
  last_ = positions[static_cast<std::size_t>(order_.back())];
  between_ = from.at();
  if (from.next<std::uint32_t>() != 0) refuse("values by channel; enable flash attention");
  if (auto const layers = from.next<std::uint32_t>(); layers != shape.layers)
    refuse(std::to_string(layers) + " layers, where the model's graph has " + std::to_string(shape.layers));
  for (std::int64_t p = 0; p < 2 * shape.layers; ++p) {
    plane made{.begin = from.at()};
    auto const type = static_cast<ggml_type>(from.next<std::int32_t>());
    std::optional<element_type> const known = element_of(type);
    if (!known) refuse(std::string("rows of ") + ggml_type_name(type));
    made.type = *known;
    made.step = static_cast<std::int64_t>(ggml_type_size(type));
    made.row = static_cast<std::int64_t>(from.next<std::uint64_t>());
    if (made.row != static_cast<std::int64_t>(ggml_row_size(type, shape.kv_heads * shape.head_dim)))
      refuse("rows of " + std::to_string(made.row) + " bytes for " + std::to_string(shape.kv_heads) + " heads of " +
             std::to_string(shape.head_dim) + " channels");
    made.rows = from.at();
    from.skip(static_cast<std::size_t>(made.row) * cells);
    planes_.push_back(made);
  }
  if (from.at() != std::ssize(bytes_)) refuse(std::to_string(std::ssize(bytes_) - from.at()) + " bytes behind the rows");
}

rows sequence_image::rows_of(plane const& of) const {
  rows made{.base = reinterpret_cast<std::byte const*>(bytes_.data()) + of.rows,
            .type = of.type,
            .heads = shape_.kv_heads,
            .tokens = tokens(),
            .head_dim = shape_.head_dim,
            .head_stride = of.row / shape_.kv_heads,
            .token_stride = of.row,
            .dim_stride = of.step};
  if (std::ranges::is_sorted(order_)) return made;
  made.pages = order_.data();
  made.page_size = 1;
  made.page_stride = of.row;
  return made;
}

std::vector<std::uint8_t> sequence_image::header_of(std::int64_t kept) const {
  std::vector<std::uint8_t> made(bytes_.begin(), bytes_.begin() + front_);
  append(made, static_cast<std::uint32_t>(kept));
  for (std::int64_t i = 0; i < kept; ++i) {
    append(made, static_cast<llama_pos>(last_ + 1 - kept + i));
    append(made, std::uint32_t{1});
    append(made, sequence_);
  }
  made.insert(made.end(), bytes_.begin() + between_, bytes_.begin() + planes_.front().begin);
  return made;
}

std::uint8_t* sequence_image::append_plane(std::vector<std::uint8_t>& to, std::int64_t nth, std::int64_t kept) const {
  plane const& from = planes_[static_cast<std::size_t>(nth)];
  to.insert(to.end(), bytes_.begin() + from.begin, bytes_.begin() + from.rows);
  to.resize(to.size() + static_cast<std::size_t>(from.row * kept));
  return to.data() + to.size() - from.row * kept;
}

void sequence_image::copy_row(std::uint8_t* to, std::int64_t nth, std::int64_t cell, std::int64_t head,
                              std::int64_t token) const {
  plane const& from = planes_[static_cast<std::size_t>(nth)];
  std::int64_t const size = from.row / shape_.kv_heads;
  std::memcpy(to + cell * from.row + head * size,
              bytes_.data() + from.rows + order_[static_cast<std::size_t>(token)] * from.row + head * size,
              static_cast<std::size_t>(size));
}

}  // namespace kvpolicy::llama
