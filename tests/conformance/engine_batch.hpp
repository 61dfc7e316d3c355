// A batch's caches in an engine's layout, written element by element from the tensor's documented shape, independently of how
// the library reads it; and attention over listed rows in float64.
#pragma once

#include <cmath>
#include <initializer_list>
#include <utility>

#include "conformance/random_cache.hpp"
#include "kvpolicy/interop/dense.hpp"
#include "kvpolicy/interop/flashinfer.hpp"
#include "kvpolicy/interop/sglang.hpp"
#include "kvpolicy/interop/tensorrt_llm.hpp"
#include "kvpolicy/interop/vllm.hpp"

namespace kvpolicy_test {

enum class engine {
  flashinfer_nhd,
  flashinfer_hnd,
  flashinfer_nhd_packed,
  flashinfer_hnd_packed,
  vllm,
  vllm_x_packed,
  sglang,
  tensorrt_llm,
  hugging_face,
  llama_cpp,
  llama_cpp_transposed
};
inline constexpr std::array engines{engine::flashinfer_nhd, engine::flashinfer_hnd,      engine::flashinfer_nhd_packed,
                                    engine::vllm,           engine::vllm_x_packed,       engine::flashinfer_hnd_packed,
                                    engine::sglang,         engine::tensorrt_llm,        engine::hugging_face,
                                    engine::llama_cpp,      engine::llama_cpp_transposed};

class engine_batch {
 public:
  /// `room` tokens a sequence. llama.cpp's views are of one sequence.
  engine_batch(engine which, cache_shape const& shape, std::int64_t sequences, std::int64_t page_size, random_source& random)
      : which_(which),
        shape_(shape),
        sequences_(sequences),
        page_(page_size),
        of_sequence_((shape.max_tokens + page_size - 1) / page_size),
        pages_(2 * sequences * of_sequence_ + 3) {
    for (x_ = 16 / size_of(shape.type); shape.head_dim % x_ != 0;) x_ /= 2;
    std::vector<std::int32_t> all(static_cast<std::size_t>(pages_));
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t i = all.size(); i > 1; --i) {
      std::swap(all[i - 1], all[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
    }
    auto const half = static_cast<std::ptrdiff_t>(sequences * of_sequence_);
    key_pages_.assign(all.begin(), all.begin() + half);
    value_pages_ = key_pages_;
    if (which == engine::tensorrt_llm) value_pages_.assign(all.begin() + half, all.begin() + 2 * half);
    for (std::int64_t s = 0; s < sequences; ++s) {
      for (std::int64_t t = 0; t < of_sequence_ * page_size; ++t) {
        slots_.push_back(static_cast<std::int32_t>(page_of(0, s, t) * page_size + t % page_size));
      }
    }
    // Elements of one pool: every page's keys and values, or every sequence's cells. What nobody should read is NaN.
    std::int64_t const tokens = std::max(2 * pages_ * page_size, sequences * shape.max_tokens);
    for (auto& pool : pools_) {
      pool.assign(static_cast<std::size_t>(shape.layers * tokens * shape.kv_heads * shape.head_dim * size_of(shape.type)),
                  std::byte{0xff});
    }
    for (std::int64_t v = 0; v < 2; ++v) {
      for (std::int64_t s = 0; s < sequences; ++s) {
        for (std::int64_t l = 0; l < shape.layers; ++l) {
          for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
            for (std::int64_t t = 0; t < shape.max_tokens; ++t) {
              for (std::int64_t d = 0; d < shape.head_dim; ++d) put(v, s, l, h, t, d, random.real());
            }
          }
        }
      }
    }
  }

  cache_shape const& shape() const { return shape_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t page_size() const { return page_; }
  std::int64_t pages_in_all() const { return pages_; }

  /// The engine's own tables of a sequence.
  std::span<std::int32_t const> pages(std::int64_t s) const { return of(key_pages_, s, of_sequence_); }
  std::span<std::int32_t const> value_pages(std::int64_t s) const { return of(value_pages_, s, of_sequence_); }
  std::span<std::int32_t const> slots(std::int64_t s) const { return of(slots_, s, of_sequence_ * page_); }

  bool paged() const {
    return which_ != engine::hugging_face && which_ != engine::llama_cpp && which_ != engine::llama_cpp_transposed;
  }
  paged_view<> view_in_pages(std::int64_t s, std::int64_t tokens) const {
    paged_view<> made{};
    std::byte const* const keys = pools_[0].data();
    std::byte const* const values = pools_[1].data();
    std::int64_t const layer = pages_ * page_ * shape_.kv_heads * shape_.head_dim * size_of(shape_.type);
    bool const nhd = which_ == engine::flashinfer_nhd || which_ == engine::flashinfer_nhd_packed;
    page_layout const how = nhd ? page_layout::nhd : page_layout::hnd;
    switch (which_) {
      case engine::flashinfer_nhd:
      case engine::flashinfer_hnd:
        made = flashinfer::view(how, shape_, page_, keys, values, layer);
        break;
      case engine::flashinfer_nhd_packed:
      case engine::flashinfer_hnd_packed:
        made = flashinfer::packed_view(how, shape_, page_, keys, 2 * layer);
        break;
      case engine::vllm:
        made = vllm::view(shape_, page_, keys, 2 * layer);
        break;
      case engine::vllm_x_packed:
        made = vllm::x_packed_view(shape_, page_, x_, keys, values, layer);
        break;
      case engine::sglang:
        made = sglang::view(shape_, keys, values, layer);
        made.pages = slots(s).data();
        made.token_count = tokens;
        return made;
      default:
        made = tensorrt_llm::view(shape_, page_, keys, layer);
        made.value_pages = value_pages(s).data();
    }
    made.pages = pages(s).data();
    made.token_count = tokens;
    return made;
  }
  strided_view<> view_of_cells(std::int64_t s, std::int64_t tokens) const {
    std::int64_t const cells = shape_.max_tokens;
    std::int64_t const layer = sequences_ * cells * shape_.kv_heads * shape_.head_dim * size_of(shape_.type);
    strided_view<> made =
        which_ == engine::hugging_face
            ? hugging_face::view(shape_, cells, pools_[0].data(), pools_[1].data(), s, layer)
            : llama_cpp::view(shape_, cells, pools_[0].data(), pools_[1].data(), which_ == engine::llama_cpp_transposed, layer);
    made.token_count = tokens;
    return made;
  }

  /// What element of a sequence's keys (0) or values (1) is.
  float content(std::int64_t v, std::int64_t s, std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t d) const {
    return get(v, place(v, s, l, h, t, d));
  }
  /// An element of the keys' or values' tensor, as an engine's kernel addresses it.
  float get(std::int64_t v, std::int64_t element) const {
    std::byte const* const at = pools_[one_pool() ? 0 : static_cast<std::size_t>(v)].data() + element * size_of(shape_.type);
    if (shape_.type == element_type::f32) {
      float value = 0;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    std::uint16_t half = 0;
    std::memcpy(&half, at, sizeof half);
    return shape_.type == element_type::f16 ? half_to_float(half) : bfloat_to_float(half);
  }
  std::int64_t x() const { return x_; }

 private:
  std::span<std::int32_t const> of(std::vector<std::int32_t> const& all, std::int64_t s, std::int64_t size) const {
    return std::span(all).subspan(static_cast<std::size_t>(s * size), static_cast<std::size_t>(size));
  }
  std::int64_t page_of(std::int64_t v, std::int64_t s, std::int64_t t) const {
    return (v == 0 ? key_pages_ : value_pages_)[static_cast<std::size_t>(s * of_sequence_ + t / page_)];
  }
  bool one_pool() const {
    return which_ == engine::vllm || which_ == engine::tensorrt_llm || which_ == engine::flashinfer_nhd_packed ||
           which_ == engine::flashinfer_hnd_packed;
  }

  struct axis {
    std::int64_t index = 0;
    std::int64_t size = 0;
  };
  static std::int64_t at(std::initializer_list<axis> axes) {
    std::int64_t element = 0;
    for (axis const& a : axes) element = element * a.size + a.index;
    return element;
  }
  /// Row-major, by each engine's shape.
  std::int64_t place(std::int64_t v, std::int64_t s, std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t d) const {
    std::int64_t const n = t % page_;
    axis const layer{l, shape_.layers}, page{page_of(v, s, t), pages_}, head{h, shape_.kv_heads}, slot{n, page_},
        dim{d, shape_.head_dim};
    switch (which_) {
      case engine::flashinfer_nhd:
        return at({layer, page, slot, head, dim});
      case engine::flashinfer_hnd:
      case engine::tensorrt_llm:
        return at({layer, page, head, slot, dim});
      case engine::flashinfer_nhd_packed:
        return at({layer, page, {v, 2}, slot, head, dim});
      case engine::flashinfer_hnd_packed:
        return at({layer, page, {v, 2}, head, slot, dim});
      case engine::vllm:
        return at({layer, page, head, slot, {v * shape_.head_dim + d, 2 * shape_.head_dim}});
      case engine::vllm_x_packed:
        if (v == 1) return at({layer, page, head, dim, slot});
        return at({layer, page, head, {d / x_, shape_.head_dim / x_}, slot, {d % x_, x_}});
      case engine::sglang:
        return at({layer, {page.index * page_ + n, pages_ * page_}, head, dim});
      case engine::hugging_face:
        return at({layer, {s, sequences_}, head, {t, shape_.max_tokens}, dim});
      case engine::llama_cpp:
        return at({layer, {t, shape_.max_tokens}, head, dim});
      case engine::llama_cpp_transposed:
        if (v == 1) return at({layer, head, dim, {t, shape_.max_tokens}});
        return at({layer, {t, shape_.max_tokens}, head, dim});
    }
    return 0;
  }

  void put(std::int64_t v, std::int64_t s, std::int64_t l, std::int64_t h, std::int64_t t, std::int64_t d, float value) {
    std::byte* const at =
        pools_[one_pool() ? 0 : static_cast<std::size_t>(v)].data() + place(v, s, l, h, t, d) * size_of(shape_.type);
    if (shape_.type == element_type::f32) {
      std::memcpy(at, &value, sizeof value);
      return;
    }
    std::uint16_t const bits = shape_.type == element_type::f16 ? float_to_half(value) : float_to_bfloat(value);
    std::memcpy(at, &bits, sizeof bits);
  }

  engine which_;
  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t page_;
  std::int64_t of_sequence_;  ///< pages
  std::int64_t pages_;        ///< of the pool
  std::int64_t x_ = 1;
  std::vector<std::int32_t> key_pages_;
  std::vector<std::int32_t> value_pages_;
  std::vector<std::int32_t> slots_;
  std::array<std::vector<std::byte>, 2> pools_;
};

}  // namespace kvpolicy_test
