// Any descriptors in any order of calls: each is refused, or read where its memory is and nowhere else.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kvpolicy.h"

namespace {

constexpr std::array policies{"quest:tokens=24,page=4",
                              "snapkv:tokens=16,window=4",
                              "h2o:tokens=16",
                              "tova:tokens=12",
                              "chess:tokens=16,page=4,sink_pages=1,recent_pages=1",
                              "infllm:tokens=24,block=4,local=2,representatives=2,sink_blocks=1,recent_blocks=1",
                              "sentencekv:tokens=20,window=4,longest=8",
                              "expected_attention:ratio=0.5,future=4",
                              "lagkv:ratio=0.5,lag=4",
                              "snapkv:tokens=20,window=4+quest:tokens=12,page=4",
                              "full",
                              "streaming_llm:tokens=12",
                              "adakv:ratio=0.4,window=4",
                              "keydiff:ratio=0.4",
                              "chunkkv:ratio=0.4,window=4,chunk=3",
                              "infllm:tokens=0"};

class input {
 public:
  input(std::uint8_t const* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  std::uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::int64_t below(std::int64_t n) { return byte() % n; }
  /// Mostly small; now and then at an edge.
  std::int64_t number() {
    std::uint8_t const kind = byte();
    if (kind < 200) return static_cast<std::int8_t>(byte());
    std::int64_t wide = 0;
    for (int i = 0; i < 8; ++i) wide = static_cast<std::int64_t>(static_cast<std::uint64_t>(wide) << 8 | byte());
    constexpr std::array<std::int64_t, 4> edges{INT64_MAX, INT64_MIN, INT64_MAX / 2, std::int64_t{1} << 32};
    return kind < 230 ? edges[kind % 4] : wide;
  }

 private:
  std::uint8_t const* data_;
  std::size_t left_;
};

/// A descriptor, its arrays, and memory of exactly the size that it describes, where that can be.
struct described {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::unique_ptr<std::byte[]> memory;
  kvpolicy_tensor tensor{};
  bool real = true;  ///< what a call may read is there
  bool given = true;

  kvpolicy_tensor const* get() const { return given ? &tensor : nullptr; }
};

constexpr __int128 most_bytes = 1 << 16;

/// A good dense tensor, then a few of its fields changed.
described describe(input& in, std::vector<std::int64_t> const& shape, kvpolicy_dtype dtype) {
  described d;
  d.shape = shape;
  d.shape.resize(6, 1);
  d.strides.assign(6, 1);
  for (std::size_t i = shape.size() - 1; i-- > 0;) d.strides[i] = d.strides[i + 1] * shape[i + 1];
  kvpolicy_tensor& t = d.tensor;
  t = {nullptr, {1, 0}, static_cast<std::int32_t>(shape.size()), dtype, d.shape.data(), nullptr, 0};
  std::uint8_t const how = in.byte();
  if ((how & 1) != 0) t.strides = d.strides.data();
  for (int edits = (how >> 1) % 4; edits > 0; --edits) {
    std::size_t const axis = static_cast<std::size_t>(in.below(4));
    switch (in.below(12)) {
      case 0:
        d.shape[axis] = in.number();
        break;
      case 1:
        d.strides[axis] = in.number();
        break;
      case 2:
        std::swap(d.strides[axis], d.strides[static_cast<std::size_t>(in.below(4))]);
        break;
      case 3:
        t.byte_offset = static_cast<std::uint64_t>(in.number());
        break;
      case 4:
        t.byte_offset = in.byte();
        break;
      case 5:
        t.device.type = static_cast<std::int32_t>(in.below(4));
        break;
      case 6:
        t.ndim = static_cast<std::int32_t>(in.number());
        break;
      case 7:
        t.dtype = {in.byte(), in.byte(), static_cast<std::uint16_t>(in.byte() % 3)};
        break;
      case 8:
        t.shape = nullptr;
        break;
      case 9:
        d.given = false;
        break;
      case 10:
        d.strides[axis] ^= 1;
        break;
      default:
        d.shape[axis] ^= 1;
        break;
    }
  }
  // The memory that it describes, by the format's definition.
  __int128 end = 1;
  bool empty = false;
  bool sane = t.shape != nullptr && t.ndim >= 0 && t.ndim <= 4;
  __int128 dense = 1;
  for (std::int32_t i = t.ndim - 1; sane && i >= 0; --i) {
    auto const at = static_cast<std::size_t>(i);
    empty = empty || d.shape[at] <= 0;
    sane = d.shape[at] >= 0 && d.shape[at] < most_bytes;
    if (!sane) break;
    __int128 const stride = t.strides == nullptr ? dense : d.strides[at];
    dense *= d.shape[at];
    if (d.shape[at] > 1) sane = sane && stride >= 0 && stride < most_bytes;
    if (sane && d.shape[at] > 1) end += stride * (d.shape[at] - 1);
  }
  sane = sane && t.byte_offset < static_cast<std::uint64_t>(most_bytes);
  if (empty) end = 0;
  __int128 const bytes = end * (t.dtype.bits / 8) + static_cast<__int128>(t.byte_offset);
  d.real = sane && bytes <= most_bytes;
  auto const size = static_cast<std::size_t>(d.real ? bytes : 8);
  d.memory = std::make_unique<std::byte[]>(size);
  for (std::size_t i = 0; i < size; ++i) d.memory[i] = static_cast<std::byte>(i * 37 % 61 + (i % 2 == 1 ? 1 : 0));
  t.data = d.real ? d.memory.get() : nullptr;  // a call that takes it must have looked at all else first
  return d;
}

struct frees {
  void operator()(kvpolicy_policy* policy) const { kvpolicy_policy_free(policy); }
  void operator()(kvpolicy_state* state) const { kvpolicy_state_free(state); }
};

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  input in(data, size);
  kvpolicy_policy* parsed = nullptr;
  constexpr std::uint8_t boundary[4] = {0, 1};
  kvpolicy_policy_parse(policies[static_cast<std::size_t>(in.below(std::ssize(policies)))], boundary, 4, &parsed);
  std::unique_ptr<kvpolicy_policy, frees> const policy(parsed);
  std::int64_t const kv_heads = 1 + in.below(3);
  kvpolicy_shape shape{1 + in.below(3),
                       kv_heads * (1 + in.below(3)),
                       kv_heads,
                       1 + in.below(12),
                       20 + in.below(60),
                       static_cast<std::int32_t>(in.below(3)),
                       in.below(4) == 0 ? in.below(16) : 0};
  if (in.below(16) == 0) shape.max_tokens = in.number();
  if (shape.max_tokens > 200) return 0;
  std::int64_t const value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
  kvpolicy_state* started = nullptr;
  if (kvpolicy_start(policy.get(), &shape, &started) != KVPOLICY_OK) return 0;
  std::unique_ptr<kvpolicy_state, frees> const state(started);

  kvpolicy_dtype const f32{2, 32, 1}, i32{0, 32, 1};
  kvpolicy_dtype const stored{static_cast<std::uint8_t>(shape.type == 2 ? 4 : 2),
                              static_cast<std::uint8_t>(shape.type == 0 ? 32 : 16), 1};
  std::vector<described> bound;  // lives as long as the state
  bound.reserve(400);
  std::int64_t tokens = 0;
  for (int calls = 0; calls < 60 && !in.empty(); ++calls) {
    std::uint8_t const what = in.byte();
    std::int64_t const layer = what >= 250 ? in.number() : what / 16 % shape.layers;
    auto const make = [&](std::vector<std::int64_t> const& extents, kvpolicy_dtype dtype) -> described& {
      return bound.emplace_back(describe(in, extents, dtype));
    };
    switch (what % 16) {
      case 0:
      case 1: {
        described& keys = make({shape.kv_heads, shape.max_tokens, shape.head_dim}, stored);
        described& values = make({shape.kv_heads, shape.max_tokens, value_dim}, stored);
        kvpolicy_bind(state.get(), layer, keys.get(), values.get(), nullptr);
        break;
      }
      case 2:
      case 3: {
        std::int64_t const page = 1 + in.below(9), physical = 1 + in.below(12);
        std::int64_t const used = (shape.max_tokens + page - 1) / page;
        described& keys = make({physical, shape.kv_heads, page, shape.head_dim}, stored);
        described& values = make({physical, shape.kv_heads, page, value_dim}, stored);
        described& table = make({used}, i32);
        if (table.real && table.tensor.byte_offset == 0 && table.tensor.dtype.bits == 32) {
          std::int64_t const entries = table.shape[0] > 0 && table.tensor.ndim == 1 ? table.shape[0] : 0;
          bool const dense = table.tensor.strides == nullptr || table.strides[0] == 1 || entries <= 1;
          for (std::int64_t i = 0; dense && i < entries; ++i) {
            auto const entry = static_cast<std::int32_t>(in.below(20) == 0 ? in.number() : in.below(physical));
            std::memcpy(table.memory.get() + i * 4, &entry, 4);
          }
        }
        kvpolicy_bind(state.get(), layer, keys.get(), values.get(), table.get());
        break;
      }
      case 4:
      case 5:
      case 6: {
        std::int64_t const length = what % 16 == 6 ? in.number() : in.below(shape.max_tokens) + 1;
        std::int64_t const first = what % 16 == 4 ? 0 : in.below(length > 0 ? length : 1);
        std::int64_t const of_layer = what % 16 == 6 ? in.number() : shape.layers;
        std::int64_t const window = kvpolicy_observation_queries(policy.get());
        std::int64_t const known = length > 0 && length <= shape.max_tokens ? length : 1;
        described& queries = make({window < known ? window : known, shape.q_heads, shape.head_dim}, f32);
        described& pairs = make({shape.head_dim / 2}, f32);
        described& ids = make({known - (first < known ? first : 0)}, i32);
        std::int64_t const repeated = in.below(4) == 0 ? in.below(shape.max_tokens) : 0;
        kvpolicy_prompt const prompt{first,
                                     queries.get(),
                                     .5f,
                                     static_cast<std::int32_t>(in.below(3)),
                                     pairs.get(),
                                     ids.get(),
                                     repeated > 0 ? in.below(repeated) : 0,
                                     repeated};
        if (of_layer != shape.layers) {
          kvpolicy_prefill(state.get(), of_layer, length, &prompt);
          break;
        }
        for (std::int64_t l = 0; l < shape.layers; ++l) {
          if (kvpolicy_prefill(state.get(), l, length, &prompt) == KVPOLICY_OK) tokens = length;
        }
        break;
      }
      case 7: {
        described& logits = make({1 + in.below(9)}, f32);
        kvpolicy_observe(state.get(), logits.get());
        break;
      }
      default: {
        std::int64_t const now = what % 16 == 15 ? in.number() : what % 16 == 14 ? tokens - in.below(4) : tokens + 1;
        described& queries = make({shape.q_heads, shape.head_dim}, f32);
        described& out = make({shape.q_heads, value_dim}, f32);
        for (std::int64_t l = 0; l < shape.layers; ++l) {
          if (kvpolicy_choose(state.get(), l, now, queries.get(), .5f, in.byte()) != KVPOLICY_OK) break;
          tokens = now;
          for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
            kvpolicy_range const* ranges = nullptr;
            std::int64_t count = 0;
            require(kvpolicy_list(state.get(), l, h, &ranges, &count) == KVPOLICY_OK);
            for (std::int64_t i = 0; i < count; ++i) require(ranges[i].begin < ranges[i].end && ranges[i].end <= now);
            require(kvpolicy_retained(state.get(), l, h, &ranges, &count) == KVPOLICY_OK);
            std::array<std::int32_t, 40> pages;
            std::int32_t last = 0;
            kvpolicy_page_table(state.get(), l, h, pages.data(), in.below(40), &count, &last);
          }
          kvpolicy_attend(state.get(), l, queries.get(), .5f, out.get());
        }
        break;
      }
    }
  }
  return 0;
}
