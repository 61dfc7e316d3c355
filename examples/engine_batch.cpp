// A user's own engine on CPUs: three sequences share a pool of pages, each with one block table for all layers; four query
// heads read one KV head; kvpolicy works on the engine's two threads. Pages that no layer retains go back to the pool.
#include <kvpolicy/exec/simd.hpp>
#include <kvpolicy/interop/flashinfer.hpp>
#include <kvpolicy/kvpolicy.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace kv = kvpolicy;

constexpr kv::cache_shape model{.layers = 4, .q_heads = 8, .kv_heads = 2, .head_dim = 64, .max_tokens = 4096};
constexpr std::int64_t page = 16, pool_pages = 256, layer_elements = pool_pages * 2 * page * 2 * 64;

// Whole pages, and one choice for all layers: what a step no longer reads is pages that the engine can free.
constexpr kv::presets::chunkkv policy{.tokens = 256, .chunk = page, .layers = {.reuse = model.layers}, .after = 0};

struct sequence {
  std::vector<std::int32_t> table;  // the page of each 16 tokens; -1: freed
  std::int64_t tokens = 0;
  decltype(kv::start(policy, model)) request = kv::start(policy, model);
};

class engine {
 public:
  engine() : free_(pool_pages) {
    std::iota(free_.begin(), free_.end(), 0);
    for (std::uint16_t& element : pool_) element = kv::float_to_half(normal_(random_));  // as if every row were written
  }
  std::size_t used() const { return pool_pages - free_.size(); }

  void prefill(sequence& of, std::int64_t tokens, kv::simd_exec& exec) {
    extend(of, tokens);
    std::vector<float> const queries = normals(policy.window * model.q_heads * model.head_dim);
    kv::prompt_signals const prompt{
        .queries = {queries.data(), policy.window, model.q_heads, model.q_heads * model.head_dim, model.head_dim, .125f}};
    std::vector<kv::selection> retained;
    for (std::int64_t l = 0; l < model.layers; ++l) of.request.prefill(view(of), {l}, prompt, exec);
    for (std::int64_t l = 0; l < model.layers; ++l) retained.push_back(of.request.retained({l}));
    for (std::int32_t const entry : kv::freeable_pages(retained, of.tokens, page)) {
      std::int32_t& freed = of.table[static_cast<std::size_t>(entry)];
      free_.push_back(freed);
      freed = -1;
    }
  }

  /// Decodes a token of each sequence. Returns how many tokens a head read of all of them, on average.
  std::int64_t step(std::vector<sequence>& batch, kv::simd_exec& exec) {
    for (sequence& of : batch) extend(of, 1);
    std::vector<float> out(model.q_heads * model.head_dim);
    std::int64_t read = 0;
    for (std::int64_t l = 0; l < model.layers; ++l) {
      for (sequence& of : batch) {
        std::vector<float> const query = normals(model.q_heads * model.head_dim);
        kv::query_heads const queries{query.data(), model.q_heads, model.head_dim, .125f};
        kv::selection const reads = of.request.choose(view(of), {l}, {queries}, exec);
        kv::attend(queries, view(of).keys({l}), view(of).values({l}), reads, {out.data(), 8, 64, 64}, {}, exec);
        read += reads.tokens();
      }
    }
    return read / (model.layers * model.kv_heads);
  }

 private:
  kv::paged_view<> view(sequence const& of) const {
    auto made = kv::flashinfer::packed_view(kv::page_layout::nhd, model, page, pool_.data(), layer_elements * 2);
    made.pages = of.table.data();
    made.token_count = of.tokens;
    return made;
  }
  void extend(sequence& of, std::int64_t tokens) {
    of.tokens += tokens;
    while (std::ssize(of.table) * page < of.tokens) {
      of.table.push_back(free_.back());
      free_.pop_back();
    }
  }
  std::vector<float> normals(std::int64_t count) {
    std::vector<float> made(static_cast<std::size_t>(count));
    std::ranges::generate(made, [&] { return normal_(random_); });
    return made;
  }

  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
  std::vector<std::int32_t> free_;
  std::vector<std::uint16_t> pool_ = std::vector<std::uint16_t>(model.layers * layer_elements);  // [layer][page][K, V][...]
};

int main() {
  kv::team threads(2);
  kv::simd_exec exec(model, &threads);
  std::atomic<bool> ended = false;
  std::jthread const second([&] {
    while (!ended) threads.follow();
  });

  engine own;
  std::vector<sequence> batch(3);
  threads.lead([&] {
    for (std::size_t s = 0; s < batch.size(); ++s) {
      std::size_t const before = own.used();
      own.prefill(batch[s], s == 0 ? 1800 : s == 1 ? 700 : 1200, exec);
      std::printf("a prompt of %zu pages keeps %zu\n", batch[s].table.size(), own.used() - before);
    }
    std::int64_t read = 0;
    for (int i = 0; i < 100; ++i) read = own.step(batch, exec);
    std::printf("after 100 steps: a step reads %d of 4000 tokens, %zu of %zu pages are in use\n", static_cast<int>(read),
                own.used(), batch[0].table.size() + batch[1].table.size() + batch[2].table.size());
    ended = true;
  });
}
