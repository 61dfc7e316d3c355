// What launching code asks of a device: to run a body, and memory to work in. Models: gpu::stream_device, and the tests'
// checked one.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <string>
#include <utility>

#include "kvpolicy/error.hpp"
#include "kvpolicy/gpu/base/rows.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::gpu {

/// Runs kernels in order, asynchronously.
/// Requires: `launch<Body>(grid, arguments)`; `blocks_wanted<Body>()`, how many blocks fill the device; `counters()`, zeros
/// that a launch may count with and leaves as they were; `scratch<T>(count)`, uninitialised device memory that is the caller's
/// until the end of the current `scratch_scope`. Semantics: launches see what launches before them wrote; no call allocates or
/// waits. Throws device_error, which names the kernel and its grid, where a launch fails, and workspace_exceeded where scratch
/// does not suffice.
template <class D>
concept device = requires(D& d) {
  { d.template scratch<float>(std::int64_t{}) } -> std::same_as<buffer<float>>;
  { d.counters() } -> std::same_as<buffer<std::int32_t>>;
  { d.scratch_used() } -> std::convertible_to<std::int64_t>;
  d.release_scratch(std::int64_t{});
};

/// A device that owns memory, too: `allocate<T>(count)` gives an owner whose get() is a buffer, `upload(to, from, count)`
/// copies from the host, after what was launched before; `download(to, from)` copies back, and waits; `in(from, count)` gives
/// what kernels can read of either's memory.
template <class D>
concept owning_device = device<D> && requires(D& d, float const* p) {
  { d.template allocate<float>(std::int64_t{}).get() } -> std::same_as<buffer<float>>;
  d.upload(buffer<float>{}, p, std::int64_t{});
  d.download(static_cast<float*>(nullptr), buffer<float const>{});
  { d.in(p, std::int64_t{}) } -> std::same_as<buffer<float const>>;
};

template <owning_device D, class T>
using array_of = decltype(std::declval<D&>().template allocate<T>(std::int64_t{}));

/// Scratch that is taken while it lives is given back at its end.
template <device D>
class scratch_scope {
 public:
  explicit scratch_scope(D& d) : device_(d), used_(d.scratch_used()) {}
  scratch_scope(scratch_scope const&) = delete;
  scratch_scope& operator=(scratch_scope const&) = delete;
  ~scratch_scope() { device_.release_scratch(used_); }

 private:
  D& device_;
  std::int64_t used_;
};

constexpr std::int64_t divided_up(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

/// Calls `work.template operator()<E>()` for the type. Throws unsupported for types of blocks.
template <class Work>
void with_type(element_type type, Work work) {
  switch (type) {
    case element_type::f32:
      return work.template operator()<element_type::f32>();
    case element_type::f16:
      return work.template operator()<element_type::f16>();
    case element_type::bf16:
      return work.template operator()<element_type::bf16>();
    default:
      throw unsupported(std::string("rows of ") + name_of(type) + " are read on hosts only; use f16, bf16 or f32 on a GPU");
  }
}

/// Calls `work.template operator()<E, Chunks>()` for packed rows of 32 Chunks halves, which tensor cores take; or says false.
template <class Work>
bool with_tensor_rows(batch_rows const& rows, Work work) {
  if (!rows.packed || (rows.type != element_type::f16 && rows.type != element_type::bf16)) return false;
  if (rows.head_dim != 64 && rows.head_dim != 96 && rows.head_dim != 128 && rows.head_dim != 256) return false;
  auto const of_type = [&]<element_type E>() {
    if (rows.head_dim == 64) work.template operator()<E, 2>();
    else if (rows.head_dim == 96) work.template operator()<E, 3>();
    else if (rows.head_dim == 128) work.template operator()<E, 4>();
    else work.template operator()<E, 8>();
  };
  if (rows.type == element_type::f16) of_type.template operator()<element_type::f16>();
  else of_type.template operator()<element_type::bf16>();
  return true;
}

/// How many blocks share a row of `most` elements, `of_block` to each at a time: what there is they take in turns, so that rows
/// that are short, or empty, cost next to nothing, and all rows fill the device.
template <class Body, device D>
std::int32_t blocks_of_row(D& device, std::int64_t most, std::int64_t of_block, std::int64_t rows) {
  std::int64_t const enough = divided_up(device.template blocks_wanted<Body>(), std::max<std::int64_t>(1, rows));
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(divided_up(most, of_block), 1, std::max<std::int64_t>(1, enough)));
}

/// The strides and sizes of a view's rows, as kernels take them. Throws invalid_value where a stride is not of whole elements,
/// and unsupported where channels are packed: kernels read rows whose channels are one stride apart.
template <class Memory>
batch_rows in_elements(basic_rows<Memory> const& from) {
  std::int64_t const size = size_of(from.type);
  auto const elements = [&](std::int64_t bytes) {
    KVPOLICY_EXPECTS(bytes % size == 0,
                     "a stride of " + std::to_string(bytes) + " bytes is no multiple of an element's " + std::to_string(size));
    return bytes / size;
  };
  if (from.pack != 0) {
    throw unsupported("no kernel reads rows in runs of " + std::to_string(from.pack) +
                      " channels; choose on the host, or in a layout that does not pack keys");
  }
  batch_rows made{};
  made.base = from.base;
  made.type = from.type;
  made.heads = static_cast<std::int32_t>(from.heads);
  made.head_dim = static_cast<std::int32_t>(from.head_dim);
  made.head_stride = elements(from.head_stride);
  made.token_stride = elements(from.token_stride);
  made.dim_stride = elements(from.dim_stride);
  if (from.page_size > 0) {
    made.page_size = static_cast<std::int32_t>(from.page_size);
    made.page_stride = elements(from.page_stride);
  }
  return made;
}

/// Sets the fields that follow from others: page_shift and packed.
constexpr batch_rows finished(batch_rows rows) noexcept {
  bool const power = rows.page_size > 0 && (rows.page_size & (rows.page_size - 1)) == 0;
  rows.page_shift = power ? std::countr_zero(static_cast<std::uint32_t>(rows.page_size)) : -1;
  std::int64_t const vector = 16 / size_of(rows.type);
  auto const whole = [&](std::int64_t stride) { return stride % vector == 0; };
  rows.packed = rows.dim_stride == 1 && rows.head_dim % 8 == 0 && std::bit_cast<std::uintptr_t>(rows.base) % 16 == 0 &&
                whole(rows.sequence_stride) && whole(rows.head_stride) && whole(rows.token_stride) && whole(rows.page_stride);
  return rows;
}

/// The longest row and the most query heads to a KV head that kernels hold in registers and shared memory.
inline constexpr std::int32_t max_head_dim = 256;
inline constexpr std::int32_t max_group = 16;

inline void expect_row(char const* kernel, std::int64_t head_dim, std::int64_t group = 1, std::int64_t widest = max_head_dim) {
  if (head_dim > widest || group > max_group) {
    throw unsupported(std::string(kernel) + " has no kernel for a head size of " + std::to_string(head_dim) + " and " +
                      std::to_string(group) + " query heads to a KV head; the most are " + std::to_string(widest) + " and " +
                      std::to_string(max_group));
  }
}

}  // namespace kvpolicy::gpu
