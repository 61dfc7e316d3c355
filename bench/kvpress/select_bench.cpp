// What a policy does when a prompt ends, for one layer: scores and the selection. kvpress_bench.py times the same of kvpress.
#include <benchmark/benchmark.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <kvpolicy/exec/simd.hpp>
#include <kvpolicy/kvpolicy.hpp>

namespace kvpolicy::bench {
namespace {

constexpr std::int64_t tokens = 8192;
constexpr std::int64_t head_dim = 128;
constexpr double ratio = .5;  // fraction removed

cache_shape shape_of(element_type type) {
  return {.layers = 1, .q_heads = 32, .kv_heads = 8, .head_dim = head_dim, .max_tokens = tokens, .type = type};
}

/// Keys and values, [kv_heads, tokens, head_dim] as in torch, and the last 64 queries; standard normal.
class prompt {
 public:
  explicit prompt(element_type type) : shape_(shape_of(type)) {
    std::minstd_rand random{1};
    std::normal_distribution<float> normal;
    auto const fill = [&](std::vector<std::byte>& rows) {
      auto const count = static_cast<std::size_t>(shape_.kv_heads * tokens * head_dim);
      rows.resize(count * static_cast<std::size_t>(size_of(type)));
      for (std::size_t i = 0; i < count; ++i) {
        auto const bits = std::bit_cast<std::uint32_t>(normal(random));
        if (type == element_type::f32) std::memcpy(rows.data() + 4 * i, &bits, 4);
        else std::memcpy(rows.data() + 2 * i, reinterpret_cast<char const*>(&bits) + 2, 2);
      }
    };
    fill(keys_);
    fill(values_);
    queries_.resize(static_cast<std::size_t>(window * shape_.q_heads * head_dim));
    for (float& q : queries_) q = normal(random);
  }

  strided_view<> view() const {
    std::int64_t const element = size_of(shape_.type);
    byte_strides const strides{.layer = 0, .head = tokens * head_dim * element, .token = head_dim * element, .dim = element};
    return {.cache = shape_,
            .token_count = tokens,
            .key_base = keys_.data(),
            .value_base = values_.data(),
            .key_strides = strides,
            .value_strides = strides};
  }
  prompt_signals signals() const {
    return {.first = 0,
            .queries = {queries_.data(), window, shape_.q_heads, shape_.q_heads * head_dim, head_dim,
                        static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))}};
  }
  cache_shape const& shape() const { return shape_; }

 private:
  static constexpr std::int64_t window = 64;
  cache_shape shape_;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
  std::vector<float> queries_;
};

prompt const& prompt_of(element_type type) {
  static prompt const f32(element_type::f32);
  static prompt const bf16(element_type::bf16);
  return type == element_type::f32 ? f32 : bf16;
}

template <class Policy>
void add(char const* name, Policy const& policy) {
  for (auto const& [type, type_name] : {std::pair{element_type::f32, "float32"}, {element_type::bf16, "bfloat16"}}) {
    benchmark::RegisterBenchmark((std::string(name) + "/" + type_name).c_str(), [=, type = type](benchmark::State& state) {
      prompt const& p = prompt_of(type);
      simd_exec exec(p.shape());
      auto held = start(policy, p.shape());
      for (auto _ : state) {
        held.prefill(p.view(), {0}, p.signals(), exec);
        benchmark::ClobberMemory();
      }
    })->UseRealTime();
  }
}

/// A layer's keys read once and nothing else: less than any of these can take.
void reading(benchmark::State& state, element_type type) {
  auto const* const words = static_cast<std::uint64_t const*>(prompt_of(type).view().key_base.address);
  std::int64_t const count = shape_of(type).kv_heads * tokens * head_dim * size_of(type) / 8;
  for (auto _ : state) {
    std::uint64_t sums[16] = {};
    for (std::int64_t i = 0; i < count; i += 16) {
      for (int j = 0; j < 16; ++j) sums[j] += words[i + j];
    }
    benchmark::DoNotOptimize(sums);
  }
}

bool const registered = [] {
  benchmark::RegisterBenchmark("reading the keys/float32", reading, element_type::f32)->UseRealTime();
  benchmark::RegisterBenchmark("reading the keys/bfloat16", reading, element_type::bf16)->UseRealTime();
  presets::snapkv snapkv = presets::snapkv::paper();
  snapkv.ratio = ratio;
  add("snapkv", snapkv);
  presets::chunkkv chunkkv = presets::chunkkv::kvpress();
  chunkkv.ratio = ratio;
  add("chunkkv", chunkkv);
  add("keydiff", presets::keydiff{.ratio = ratio});
  add("knorm", presets::knorm{.ratio = ratio});
  presets::adakv adakv = presets::adakv::paper();
  adakv.ratio = ratio;
  add("adakv", adakv);
  return true;
}();

}  // namespace
}  // namespace kvpolicy::bench
