// What a host writes for each engine: its cache as a view, a choice, and the arrays that the engine's attention reads. The
// caches are in host memory here; on a GPU views are of kv::device_memory (docs/cuda.md). The snippets of docs/engines.md are
// from here.
#include <kvpolicy/interop/dense.hpp>
#include <kvpolicy/interop/flashinfer.hpp>
#include <kvpolicy/interop/sglang.hpp>
#include <kvpolicy/interop/tensorrt_llm.hpp>
#include <kvpolicy/interop/vllm.hpp>
#include <kvpolicy/kvpolicy.hpp>

#include <cstdio>
#include <random>
#include <vector>

namespace kv = kvpolicy;

namespace {

constexpr std::int64_t requests = 2, pool_pages = 128, max_pages = 32;
constexpr kv::cache_shape shape{
    .layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .max_tokens = 512, .type = kv::element_type::f16};
constexpr kv::layer_id layer{0};
constexpr kv::presets::quest policy{.tokens = 128, .page = 16};

/// What an engine has: memory for keys and values, each request's length, pages and slots, and a step's queries.
struct engine {
  std::vector<std::uint16_t> memory = std::vector<std::uint16_t>(2 * pool_pages * 16 * 2 * 64);
  std::vector<std::uint16_t> more = memory;
  std::int64_t tokens[requests] = {300, 77};
  std::vector<std::int32_t> pages[requests], value_pages[requests], slots[requests];
  std::vector<float> floats = std::vector<float>(4 * 64);
  kv::query_heads queries{floats.data(), 4, 64, .125f};

  engine() {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (auto& x : memory) x = kv::float_to_half(normal(random));
    for (auto& x : more) x = kv::float_to_half(normal(random));
    for (auto& x : floats) x = normal(random);
    for (std::int64_t s = 0; s < requests; ++s) {
      for (std::int64_t i = 0; i < max_pages; ++i) {
        auto const page = static_cast<std::int32_t>((i * 37 + s * 5) % 64);
        pages[s].push_back(page);
        value_pages[s].push_back(page + 64);
        for (std::int32_t n = 0; n < 16; ++n) slots[s].push_back(page * 16 + n);
      }
    }
  }
};

/// Policies' states; a request's prompt is taken in with the first view of it.
struct chooser {
  std::vector<kv::request_of<kv::presets::quest>> states;
  kv::host_exec exec;

  template <class View>
  kv::selection choose(engine const& e, View const& view) {
    states.push_back(kv::start(policy, kv::shape_of(view)));
    View before = view;  // the last token is the step's
    --before.token_count;
    states.back().prefill(before, layer, {}, exec);
    return states.back().choose(view, layer, {e.queries}, exec);
  }
  chooser() { states.reserve(requests); }
};

void print(char const* name, std::span<std::int32_t const> entries, std::int64_t count) {
  std::printf("%s:", name);
  for (std::int64_t i = 0; i < count; ++i) std::printf(" %d", entries[static_cast<std::size_t>(i)]);
  std::printf("\n");
}

void flashinfer(engine const& e) {
  chooser c;
  std::vector<kv::paged_sequence> batch(requests);
  std::vector<std::int32_t> indptr(requests * 2 + 1), indices(requests * 2 * max_pages), last_page_len(requests * 2);
  auto view = kv::flashinfer::packed_view(kv::page_layout::hnd, shape, 16, e.memory.data());
  auto const how = kv::entries_of(view, kv::entry_size::page, kv::head_rows::folded);
  for (std::size_t s = 0; s < requests; ++s) {
    view.pages = e.pages[s].data();
    view.token_count = e.tokens[s];
    batch[s] = {c.choose(e, view), e.tokens[s], e.pages[s]};
  }
  kv::flashinfer::page_counts(batch, how, indptr, last_page_len);
  kv::flashinfer::emit(batch, how, {indptr, indices, last_page_len});
  print("flashinfer", indices, indptr[1]);
}

void vllm(engine const& e) {
  chooser c;
  std::vector<kv::paged_sequence> batch(requests);
  std::vector<std::int32_t> block_table(requests * 2 * max_pages), seq_lens(requests * 2);
  auto view = kv::vllm::view(shape, 16, e.memory.data());
  auto const how = kv::entries_of(view, kv::entry_size::page, kv::head_rows::folded);
  for (std::size_t s = 0; s < requests; ++s) {
    view.pages = e.pages[s].data();
    view.token_count = e.tokens[s];
    batch[s] = {c.choose(e, view), e.tokens[s], e.pages[s]};
  }
  kv::vllm::emit(batch, how, {block_table.data(), requests * 2, max_pages, max_pages}, seq_lens);
  print("vllm", block_table, (seq_lens[0] + 15) / 16);
}

void sglang(engine const& e) {
  chooser c;
  std::vector<kv::paged_sequence> batch(requests);
  std::vector<std::int32_t> page_table(requests * 2 * max_pages), cache_seqlens(requests * 2);
  auto view = kv::sglang::view(shape, e.memory.data(), e.more.data());
  auto const how = kv::sglang::entries_of(view, 16, kv::head_rows::folded);
  for (std::size_t s = 0; s < requests; ++s) {
    view.pages = e.slots[s].data();
    view.token_count = e.tokens[s];
    batch[s] = {c.choose(e, view), e.tokens[s], e.slots[s]};
  }
  kv::sglang::emit(batch, how, {page_table.data(), requests * 2, max_pages, max_pages}, cache_seqlens);
  print("sglang", page_table, (cache_seqlens[0] + 15) / 16);
}

void tensorrt_llm(engine const& e) {
  chooser c;
  std::vector<kv::paged_sequence> batch(requests);
  std::vector<std::int32_t> indices(2 * requests * max_pages), offsets(requests + 1);
  auto view = kv::tensorrt_llm::view(shape, 16, e.memory.data());
  for (std::size_t s = 0; s < requests; ++s) {
    view.pages = e.pages[s].data();
    view.value_pages = e.value_pages[s].data();
    view.token_count = e.tokens[s];
    batch[s] = {c.choose(e, view), e.tokens[s], e.pages[s], e.value_pages[s]};
  }
  kv::tensorrt_llm::sparse_indices(batch, 16, {indices.data(), 2, requests * max_pages, requests * max_pages}, offsets);
  print("tensorrt_llm", indices, offsets[1]);
}

void hugging_face(engine const& e) {
  chooser c;
  std::vector<float> out(4 * 64);
  for (std::int64_t s = 0; s < requests; ++s) {
    auto view = kv::hugging_face::view(shape, 512, e.memory.data(), e.more.data(), s);
    view.token_count = e.tokens[s];
    kv::selection const kept = c.choose(e, view);
    kv::attend(e.queries, view.keys(layer), view.values(layer), kept, {out.data(), 4, 64, 64}, {}, c.exec);
    std::printf("hugging_face: %lld of %lld rows\n", static_cast<long long>(kept.tokens()),
                static_cast<long long>(2 * e.tokens[s]));
  }
}

}  // namespace

int main() {
  engine const e;
  flashinfer(e);
  vllm(e);
  sglang(e);
  tensorrt_llm(e);
  hugging_face(e);
}
