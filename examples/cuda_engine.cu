// A GPU engine's decode step: its paged cache as it is, pages chosen by CHESS, sentences by SentenceKV or tokens by a scorer of
// its own on the device, the whole step captured in one CUDA graph and replayed while sequences grow.
#include <kvpolicy/compose.hpp>
#include <kvpolicy/gpu/decoder.hpp>
#include <kvpolicy/gpu/gpu_exec.hpp>
#include <kvpolicy/gpu/score_tokens.cuh>
#include <kvpolicy/interop/flashinfer.hpp>
#include <kvpolicy/kvpolicy.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <thrust/device_vector.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

namespace kv = kvpolicy;

void check(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}

// What the engine has: one pool of pages of 16 tokens for all sequences, `[layer][page][token][head][dim]`, and page tables.
constexpr kv::cache_shape shape{
    .layers = 4, .q_heads = 8, .kv_heads = 2, .head_dim = 128, .max_tokens = 4096, .type = kv::element_type::bf16};
constexpr int sequences = 4, page = 16, table_pages = 4096 / page, pool_pages = sequences * table_pages, vocabulary = 1000;
constexpr int row = 2 * 128, page_elements = page * row;

template <class T>
T* raw(thrust::device_vector<T>& of) {
  return thrust::raw_pointer_cast(of.data());
}

// The engine's kernels; this "model" makes its keys, values, queries and logits up from positions.
__device__ float made_up(unsigned a, unsigned b, unsigned c) {
  unsigned x = a * 2654435761u ^ b * 2246822519u ^ c * 3266489917u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return static_cast<float>(x & 0xffffu) / 32768.0f - 1.0f;
}
__global__ void write_tokens(__nv_bfloat16* keys, __nv_bfloat16* values, int const* tables, int layer, int const* lengths) {
  int const s = blockIdx.x, token = lengths[s] - 1 - static_cast<int>(blockIdx.y);
  if (token < 0) return;
  long const at =
      (static_cast<long>(layer) * pool_pages + tables[s * table_pages + token / page]) * page_elements + token % page * row;
  for (int i = threadIdx.x; i < row; i += blockDim.x) {
    keys[at + i] = __float2bfloat16(made_up(s + 97 * layer, token, i));
    values[at + i] = __float2bfloat16(made_up(s + 89 * layer, token, i + 7));
  }
}
__global__ void make_step(float* queries, float* logits, int* ids, int const* lengths) {
  int const s = blockIdx.x;
  for (int i = threadIdx.x; i < 8 * 128; i += blockDim.x) queries[s * 8 * 128 + i] = made_up(s, lengths[s], i);
  for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) logits[s * vocabulary + i] = 4 * made_up(lengths[s], s, i);
  if (threadIdx.x == 0) ids[s] = lengths[s] % 19 == 0 ? 1 : 2;  // 1 ends a sentence
}

// An engine with any policy that has kernels for every step.
template <class Policy>
class engine {
  using decoder = kv::gpu::decoder<Policy, kv::gpu::stream_device>;

 public:
  explicit engine(Policy const& policy) : policy_(policy) {
    check(cudaStreamCreate(&stream_));
    exec_ = std::make_unique<kv::gpu_exec>(stream_);
    decoder_ = std::make_unique<decoder>(policy, shape, sequences, exec_->device());
    std::vector<int> table(pool_pages);
    for (int i = 0; i < pool_pages; ++i)
      table[static_cast<std::size_t>(i)] = static_cast<int>(i * 37L % pool_pages);  // scattered
    tables_ = table;
    // Runs every kernel once, since a capture may not be what loads it. With nobody there it changes nothing.
    std::vector<int> const nobody(sequences);
    decoder_->plan(nobody);
    enqueue();
  }
  engine(engine const&) = delete;
  engine& operator=(engine const&) = delete;
  ~engine() {
    cudaStreamSynchronize(stream_);
    if (step_ != nullptr) cudaGraphExecDestroy(step_);
    cudaStreamDestroy(stream_);
  }

  // What kvpolicy needs to know of the cache.
  kv::gpu::paged_batch view() {
    return {.pool = kv::flashinfer::view<kv::device_memory>(kv::page_layout::nhd, shape, page, raw(keys_), raw(values_),
                                                            pool_pages * page_elements * kv::size_of(shape.type)),
            .pages = {raw(tables_), pool_pages},
            .table_stride = table_pages};
  }

  // Prompts of different lengths, all sequences at once here.
  void prompts() {
    for (int s = 0; s < sequences; ++s) tokens_.push_back(1500 + 300 * s);
    lengths_ = tokens_;
    for (int layer = 0; layer < shape.layers; ++layer) write_tokens_of(layer, 2400);
    make_step<<<sequences, 128, 0, stream_>>>(raw(queries_), raw(logits_), raw(ids_), raw(lengths_));
    std::vector<std::int32_t> const ids(2400, 2);
    std::vector<float> frequency(64);  // of the keys' rotary embedding
    for (int i = 0; i < 64; ++i) frequency[static_cast<std::size_t>(i)] = std::pow(5e5f, -static_cast<float>(i) / 64);
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (int s = 0; s < sequences; ++s) {
        kv::prompt_signals prompt{};
        prompt.queries = {raw(queries_) + s * 8 * 128, 1, 8, 8 * 128, 128, .088f};
        // The last query is all it has; an engine gives its window.
        prompt.observed_from = tokens_[static_cast<std::size_t>(s)] - 1;
        prompt.rope = {frequency.data(), 64};
        prompt.token_ids = std::span(ids).first(static_cast<std::size_t>(tokens_[static_cast<std::size_t>(s)]));
        decoder_->prefill(s, view(), tokens_[static_cast<std::size_t>(s)], {layer}, prompt, *exec_);
      }
    }
  }

  // One token of every sequence. The kernels' arguments never change: they are captured at the first step.
  void step() {
    for (int& n : tokens_) ++n;
    decoder_->plan(tokens_);
    check(cudaMemcpyAsync(raw(lengths_), tokens_.data(), tokens_.size() * sizeof(int), cudaMemcpyHostToDevice, stream_));
    if (step_ == nullptr) {
      cudaGraph_t graph = nullptr;
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
      enqueue();
      check(cudaStreamEndCapture(stream_, &graph));
      check(cudaGraphInstantiate(&step_, graph, 0));
      cudaGraphDestroy(graph);
    }
    check(cudaGraphLaunch(step_, stream_));
  }

  // Tokens that the first sequence's first head reads in the last layer.
  int read() {
    int named = 0;
    if (lists_.named.data == nullptr) return tokens_[0];
    check(cudaStreamSynchronize(stream_));
    check(cudaMemcpy(&named, lists_.named.data, sizeof named, cudaMemcpyDeviceToHost));
    int tail = tokens_[0];
    if (lists_.tail.values.data != nullptr)
      check(cudaMemcpy(&tail, lists_.tail.values.data, sizeof tail, cudaMemcpyDeviceToHost));
    return named + tokens_[0] - tail;
  }
  int tokens() const { return tokens_[0]; }

 private:
  void write_tokens_of(int layer, unsigned last) {
    write_tokens<<<dim3(sequences, last), 128, 0, stream_>>>(raw(keys_), raw(values_), raw(tables_), layer, raw(lengths_));
  }
  void enqueue() {
    kv::gpu::vector_rows const queries{raw(queries_), sequences * 8 * 128, kv::element_type::f32, 8 * 128, 0, 128};
    kv::gpu::vector_rows out = queries;
    out.base = raw(out_);
    make_step<<<sequences, 128, 0, stream_>>>(raw(queries_), raw(logits_), raw(ids_), raw(lengths_));
    for (int layer = 0; layer < shape.layers; ++layer) {
      write_tokens_of(layer, 1);
      lists_ = decoder_->choose(view(), {layer}, queries, .088f, {raw(ids_), sequences});
      decoder_->attend(view(), {layer}, lists_, queries, .088f, out);
    }
    check(cudaGetLastError());
    decoder_->observe({raw(logits_), sequences * vocabulary, kv::element_type::f32, vocabulary, 0, 0}, vocabulary);
  }

  Policy policy_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<kv::gpu_exec> exec_;
  std::unique_ptr<decoder> decoder_;
  static constexpr std::size_t pool = shape.layers * pool_pages * page_elements;
  thrust::device_vector<__nv_bfloat16> keys_ = thrust::device_vector<__nv_bfloat16>(pool), values_ = keys_;
  thrust::device_vector<float> queries_ = thrust::device_vector<float>(sequences * 8 * 128), out_ = queries_;
  thrust::device_vector<float> logits_ = thrust::device_vector<float>(sequences * vocabulary);
  thrust::device_vector<int> ids_ = thrust::device_vector<int>(sequences), lengths_ = ids_, tables_;
  std::vector<int> tokens_;
  kv::gpu::token_lists lists_{};
  cudaGraphExec_t step_ = nullptr;
};

template <class Policy>
void run(char const* name, Policy const& policy) {
  engine<Policy> one(policy);
  one.prompts();
  for (int i = 0; i < 100; ++i) one.step();
  int const read = one.read();
  std::printf("%s: %d of %d tokens after 100 replays of one graph\n", name, read, one.tokens());
}

// A scorer of our own: tokens with large values, and of these rather the newer ones.
struct value_recency {
  __device__ float operator()(kv::gpu::row, kv::gpu::row value, std::int64_t age) const { return norm(value) - age / 4096.0f; }
};

int main() try {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device here: compiled and linked, not run");
    return 0;
  }
  run("chess", kv::presets::chess{});
  static std::vector<std::uint8_t> const boundary{0, 1};
  kv::presets::sentencekv sentences{.window = 1, .after = 0};
  sentences.sentences.boundary = boundary;
  run("sentencekv", sentences);
  run("value_recency", kv::retain(kv::gpu::score_tokens(value_recency{}), {.tokens = 512, .sinks = 4}));
} catch (std::exception const& e) {
  std::fprintf(stderr, "cuda_engine: %s\n", e.what());
  return 1;
}
