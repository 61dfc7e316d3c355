// attend_block's products on tiles of bf16 (AMX): what has more than 8 significant bits is cut into two bf16, and the product
// of the two lesser halves is left out.
#include "block_kernels.hpp"

#if defined(__x86_64__) && defined(__linux__)

#if !defined(__clang__)
// g++ 12 takes its own _mm512_undefined for a mistake of ours.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cpuid.h>

#define KVPOLICY_TILES __attribute__((target("avx512f,avx512bw,avx512vl,amx-tile,amx-bf16")))

namespace kvpolicy::simd {
namespace {

constexpr std::int64_t tile_bytes = 1024;  // 16 rows of 32 bf16
constexpr std::int64_t pair_bytes = 256;   // between pairs of rows of 32 queries: high halves, then low ones if there are

struct halves {
  __m512i high;  // the nearest bf16, in the upper half of each lane; an infinity for what is near the largest float
  __m512i low;   // the same of what is left
};

KVPOLICY_TILES inline halves cut(__m512 x) {
  __m512i const mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  auto const rounded = [&](__m512 y) KVPOLICY_TILES {
    return _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(y), _mm512_set1_epi32(0x8000)), mask);
  };
  __m512i const high = rounded(x);
  return {high, rounded(_mm512_sub_ps(x, _mm512_castsi512_ps(high)))};
}

/// Lanes' upper halves, `even` below `odd`.
KVPOLICY_TILES inline __m512i pairs_of(__m512i even, __m512i odd) { return _mm512_or_si512(_mm512_srli_epi32(even, 16), odd); }

/// 16 elements from `first` of a row on; zeros behind its end.
KVPOLICY_TILES inline __m512 load(std::byte const* row, element_type type, std::int64_t first, std::int64_t dims) {
  std::int64_t const left = dims - first;
  if (left <= 0) return _mm512_setzero_ps();
  auto const mask = static_cast<__mmask16>(left >= 16 ? 0xffffu : (1u << left) - 1u);
  if (type == element_type::f32) return _mm512_maskz_loadu_ps(mask, row + first * 4);
  __m256i const half = _mm256_maskz_loadu_epi16(mask, row + first * 2);
  if (type == element_type::f16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/// NaN where the halves are not finite, else 0.
KVPOLICY_TILES inline __m512 spoilt(halves const& x) {
  return _mm512_sub_ps(_mm512_castsi512_ps(x.high), _mm512_castsi512_ps(x.high));
}
KVPOLICY_TILES inline bool finite(__m512 sum) { return _mm512_cmp_ps_mask(sum, _mm512_setzero_ps(), _CMP_EQ_OQ) == 0xffff; }

/// Right-hand sides: `[padded / 2]` pairs of rows.
KVPOLICY_TILES bool pack_queries(float const* first, std::int64_t token_stride, std::int64_t count, std::int64_t dims,
                                 float factor, std::byte* packed) {
  __m512 sum = _mm512_setzero_ps();
  for (std::int64_t pair = 0; pair < padded(dims) / 2; ++pair) {
    for (std::int64_t column = 0; column < tile_queries; column += 16) {
      alignas(64) float values[2][16] = {};
      for (std::int64_t q = column; q < column + 16 && q < count; ++q) {
        for (std::int64_t i = 0; i < 2 && pair * 2 + i < dims; ++i)
          values[i][q - column] = first[q * token_stride + pair * 2 + i] * factor;
      }
      halves const even = cut(_mm512_load_ps(values[0]));
      halves const odd = cut(_mm512_load_ps(values[1]));
      sum = _mm512_add_ps(sum, _mm512_add_ps(spoilt(even), spoilt(odd)));
      std::byte* const at = packed + pair * pair_bytes + column * 4;
      _mm512_store_si512(at, pairs_of(even.high, odd.high));
      _mm512_store_si512(at + pair_bytes / 2, pairs_of(even.low, odd.low));
    }
  }
  return finite(sum);
}

/// Left-hand sides: tiles of 16 keys by 32 channels, high and low: `[tile_keys / 16, padded / 32, 2]`.
KVPOLICY_TILES bool pack_keys(std::byte const* const* rows, std::int64_t count, element_type type, std::int64_t dims,
                              std::byte* packed) {
  __m512 sum = _mm512_setzero_ps();
  std::int64_t const steps = padded(dims) / tile_step;
  std::int64_t const end = (count + tile_step - 1) / tile_step * tile_step;
  for (std::int64_t r = 0; r < end; ++r) {
    for (std::int64_t i = 0; i < padded(dims); i += 16) {
      __m512 const x = r < count ? load(rows[r], type, i, dims) : _mm512_setzero_ps();
      halves const cuts = cut(x);
      sum = _mm512_add_ps(sum, spoilt(cuts));
      std::byte* const at = packed + ((r / 16 * steps + i / tile_step) * 2) * tile_bytes + r % 16 * 64 + i % tile_step * 2;
      _mm256_store_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(_mm512_srli_epi32(cuts.high, 16)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(at + tile_bytes), _mm512_cvtepi32_epi16(_mm512_srli_epi32(cuts.low, 16)));
    }
  }
  return finite(sum);
}

/// Left-hand sides: tiles of 16 channels by 32 tokens: `[padded / 16, tile_keys / 32, 2]`.
KVPOLICY_TILES bool pack_values(std::byte const* const* rows, std::int64_t count, element_type type, std::int64_t dims,
                                std::byte* packed) {
  __m512 sum = _mm512_setzero_ps();
  constexpr std::int64_t steps = tile_keys / tile_step;
  __m512i const lanes_apart = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                                 _mm512_set1_epi32(64));  // bytes between a tile's rows
  std::int64_t const end = (count + tile_step - 1) / tile_step * tile_step;
  for (std::int64_t r = 0; r < end; r += 2) {
    for (std::int64_t i = 0; i < padded(dims); i += 16) {
      __m512 const even = r < count ? load(rows[r], type, i, dims) : _mm512_setzero_ps();
      __m512 const odd = r + 1 < count ? load(rows[r + 1], type, i, dims) : _mm512_setzero_ps();
      halves const a = cut(even);
      halves const b = cut(odd);
      sum = _mm512_add_ps(sum, _mm512_add_ps(spoilt(a), spoilt(b)));
      std::byte* const at = packed + ((i / 16 * steps + r / tile_step) * 2) * tile_bytes + r % tile_step * 2;
      _mm512_i32scatter_epi32(at, lanes_apart, pairs_of(a.high, b.high), 1);
      _mm512_i32scatter_epi32(at + tile_bytes, lanes_apart, pairs_of(a.low, b.low), 1);
    }
  }
  return finite(sum);
}

struct alignas(64) tile_configuration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// The thread is the engine's, which may have tiles of its own configured, and believe that they still are.
thread_local tile_configuration engines;

KVPOLICY_TILES void enter() {
  static constexpr tile_configuration configuration;
  _tile_storeconfig(&engines);
  _tile_loadconfig(&configuration);
}

KVPOLICY_TILES void leave() { _tile_loadconfig(&engines); }

/// Tiles 0 to 3 += (4, 5) times (6, 7).
KVPOLICY_TILES inline void four_products() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

/// c `[32, 32]` (+)= a b: two rows of tiles by two columns, over `steps` of 32. `a_rows` bytes lie between a's rows of tiles.
/// Lesser products come first; a's low halves are zero unless `cuts`, and b has none unless BothCut.
template <bool Adds, bool BothCut>
KVPOLICY_TILES inline void multiply(std::byte const* a, std::int64_t a_rows, std::byte const* b, std::int64_t steps, bool cuts,
                                    float* c) {
  constexpr std::int64_t c_stride = tile_queries * 4;
  if constexpr (Adds) {
    _tile_loadd(0, c, c_stride);
    _tile_loadd(1, c + 16, c_stride);
    _tile_loadd(2, c + 16 * tile_queries, c_stride);
    _tile_loadd(3, c + 16 * tile_queries + 16, c_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t s = 0; s < steps; ++s, a += 2 * tile_bytes, b += 16 * pair_bytes) {
    _tile_loadd(4, a, 64);
    _tile_loadd(5, a + a_rows, 64);
    if constexpr (BothCut) {
      _tile_loadd(6, b + 128, pair_bytes);
      _tile_loadd(7, b + 192, pair_bytes);
      four_products();
    }
    _tile_loadd(6, b, pair_bytes);
    _tile_loadd(7, b + 64, pair_bytes);
    four_products();
    if (!cuts) continue;
    _tile_loadd(4, a + tile_bytes, 64);
    _tile_loadd(5, a + a_rows + tile_bytes, 64);
    four_products();
  }
  _tile_stored(0, c, c_stride);
  _tile_stored(1, c + 16, c_stride);
  _tile_stored(2, c + 16 * tile_queries, c_stride);
  _tile_stored(3, c + 16 * tile_queries + 16, c_stride);
}

KVPOLICY_TILES void products(std::byte const* keys, std::byte const* queries, std::int64_t rows, std::int64_t dims,
                             element_type type, float* logits) {
  std::int64_t const steps = padded(dims) / tile_step;
  std::int64_t const a_rows = steps * 2 * tile_bytes;
  for (std::int64_t r = 0; r < rows; r += 32)
    multiply<false, true>(keys + r / 16 * a_rows, a_rows, queries, steps, type != element_type::bf16,
                          logits + r * tile_queries);
}

KVPOLICY_TILES void accumulate(std::byte const* values, float const* weights, std::int64_t rows, std::int64_t dims,
                               element_type type, float* sums) {
  constexpr std::int64_t a_rows = tile_keys / tile_step * 2 * tile_bytes;
  for (std::int64_t d = 0; d < padded(dims); d += 32) {
    multiply<true, false>(values + d / 16 * a_rows, a_rows, reinterpret_cast<std::byte const*>(weights), rows / tile_step,
                          type != element_type::bf16, sums + d * tile_queries);
  }
}

/// Whether this CPU has the tiles and the kernel lets this process use them.
bool usable() noexcept {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned amx_bf16 = 1u << 22;
  constexpr unsigned amx_tile = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & amx_bf16) == 0 || (d & amx_tile) == 0) return false;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
    return false;
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

block_kernels const* bf16_tiles() noexcept {
  static constexpr block_kernels made{.instruction_set = "AMX_BF16",
                                      .pairs = true,
                                      .enter = enter,
                                      .leave = leave,
                                      .pack_queries = pack_queries,
                                      .pack_keys = pack_keys,
                                      .pack_values = pack_values,
                                      .products = products,
                                      .accumulate = accumulate};
  static bool const there = usable();
  return there ? &made : nullptr;
}

}  // namespace kvpolicy::simd

#else

namespace kvpolicy::simd {
block_kernels const* bf16_tiles() noexcept { return nullptr; }
}  // namespace kvpolicy::simd

#endif
