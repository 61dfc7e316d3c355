// What a state holds beside the rows: nothing that depends on the sequence's length before tokens come, whatever it may become.
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

#include "c/c_api.hpp"
#include "moments_file.hpp"

namespace {

/// What `new` made. Large blocks are pages of their own, and count as far as something was written there.
class ledger {
 public:
  void* take(std::size_t bytes, std::size_t alignment) {
    std::lock_guard const lock(guard_);
    if (bytes < least_large) {
      void* const made =
          std::aligned_alloc(alignment, (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment);
      if (made == nullptr) throw std::bad_alloc();
      small_ += malloc_usable_size(made);
      return made;
    }
    auto const free = std::ranges::find(large_, nullptr, &block::at);
    void* const made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (free == large_.end() || made == MAP_FAILED) throw std::bad_alloc();
    *free = {made, bytes};
    return made;
  }
  void give_back(void* made) noexcept {
    if (made == nullptr) return;
    std::lock_guard const lock(guard_);
    auto const of = std::ranges::find(large_, made, &block::at);
    if (of == large_.end()) {
      small_ -= malloc_usable_size(made);
      return std::free(made);
    }
    munmap(of->at, of->bytes);
    *of = {};
  }
  std::int64_t bytes() {
    std::lock_guard const lock(guard_);
    std::int64_t sum = static_cast<std::int64_t>(small_);
    static std::array<unsigned char, std::size_t{1} << 20> there;  // a large block has fewer pages
    for (block const& one : large_) {
      if (one.at == nullptr) continue;
      std::size_t const pages = (one.bytes + page - 1) / page;
      if (pages > there.size() || mincore(one.at, one.bytes, there.data()) != 0) std::abort();
      for (std::size_t i = 0; i < pages; ++i) sum += (there[i] & 1) != 0 ? std::int64_t{page} : 0;
    }
    return sum;
  }

 private:
  struct block {
    void* at = nullptr;
    std::size_t bytes = 0;
  };
  static constexpr std::size_t least_large = std::size_t{256} << 10;
  static constexpr std::size_t page = 4096;

  std::mutex guard_;
  std::size_t small_ = 0;
  std::array<block, 4096> large_{};
};
constinit ledger held;

}  // namespace

void* operator new(std::size_t bytes) { return held.take(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return held.take(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* made) noexcept { held.give_back(made); }
void operator delete(void* made, std::size_t) noexcept { held.give_back(made); }
void operator delete(void* made, std::align_val_t) noexcept { held.give_back(made); }
void operator delete(void* made, std::size_t, std::align_val_t) noexcept { held.give_back(made); }

namespace kvpolicy_test {
namespace {

constexpr std::int64_t prompt = 100;
constexpr float scale = .09f;

/// A state's memory in bytes: when it was started, and when it has seen 100 tokens.
struct measured {
  std::int64_t started = 0;
  std::int64_t prompted = 0;
};

/// A model's shape, 32 layers of 32 query heads and 8 KV heads, and one of everything that a call takes.
struct model {
  cache_shape shape{32, 32, 8, 128, 1024, element_type::f16};
  random_source random{7501};
  std::vector<std::uint16_t> rows = std::vector<std::uint16_t>(static_cast<std::size_t>(8 * (prompt + 1) * 128 + 32), 0x3c00);
  std::vector<std::uint16_t> value_rows = rows;
  std::vector<float> vectors = random.reals((prompt + 1) * 32 * 128);
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(prompt, 3);
  std::vector<std::uint8_t> boundary{0, 0, 0, 0, 1};

  std::string moments_path() const {
    moments_file file{.model = "none", .layers = shape.layers, .q_heads = shape.q_heads, .pairs = 64, .moments = {}};
    file.moments.resize(static_cast<std::size_t>(32 * 32 * 64), {.1f, .1f, .2f});
    std::string const path = (std::filesystem::temp_directory_path() / "kvpolicy-c-moments.json").string();
    std::ofstream(path) << to_json(file);
    return path;
  }
  std::string text_of(std::string const& name) const {
    if (name == "heterocache") return "heterocache:profile=" + profile_path(shape);
    if (name == "duoattention") return "duoattention:heads=" + profile_path(shape);
    if (name == "triattention") return "triattention:moments=" + moments_path();
    return name;
  }

  measured of(std::string const& name, std::int64_t max_tokens) {
    shape.max_tokens = max_tokens;
    c_policy const policy = parsed(text_of(name), boundary);
    INFO(kvpolicy_message());
    REQUIRE(policy != nullptr);
    std::int64_t const before = held.bytes();
    c_state const state = started(policy, shape);
    REQUIRE(state != nullptr);
    measured made{.started = held.bytes() - before};
    std::int64_t const wanted = std::min(prompt, kvpolicy_observation_queries(policy.get()));
    c_tensor const queries(vectors.data(), c_float, {wanted, 32, 128});
    c_tensor const current(vectors.data(), c_float, {32, 128});
    c_tensor const frequencies(vectors, {64});
    c_tensor const token_ids(ids.data(), c_int, {prompt});
    unsigned const needs = kvpolicy_policy_needs(policy.get());
    kvpolicy_prompt told{.first = 0,
                         .queries = wanted > 0 ? &queries.t : nullptr,
                         .scale = scale,
                         .pairing = KVPOLICY_HALVES,
                         .inverse_frequencies = (needs & KVPOLICY_NEEDS_ROTATION) != 0 ? &frequencies.t : nullptr,
                         .token_ids = (needs & KVPOLICY_NEEDS_TOKEN_IDS) != 0 ? &token_ids.t : nullptr,
                         .repeats_begin = 0,
                         .repeats_end = 0};
    for (std::int64_t l = 0; l < shape.layers; ++l) {  // each one's rows begin a number later
      c_tensor const keys(rows.data() + l, c_dtype(shape.type), {8, prompt + 1, 128});
      c_tensor const values(value_rows.data() + l, c_dtype(shape.type), {8, prompt + 1, 128});
      REQUIRE(kvpolicy_bind(state.get(), l, keys, values, nullptr) == KVPOLICY_OK);
    }
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      CAPTURE(l);
      REQUIRE(kvpolicy_prefill(state.get(), l, prompt, &told) == KVPOLICY_OK);
    }
    for (std::int64_t l = 0; l < shape.layers; ++l)
      REQUIRE(kvpolicy_choose(state.get(), l, prompt + 1, current, scale, 3) == KVPOLICY_OK);
    made.prompted = held.bytes() - before;
    return made;
  }
};

TEST_CASE("every policy's memory follows the tokens that came, and not those that may come", "[c]") {
  model of_a_user;
  for (char const* const* name = kvpolicy_policies(); *name != nullptr; ++name) {
    CAPTURE(*name);
    measured const small = of_a_user.of(*name, 1024);
    measured const large = of_a_user.of(*name, 131072);
    CHECK(large.started < 1 << 20);
    CHECK(large.prompted < small.prompted + small.prompted / 8 + (64 << 10));
  }
}

TEST_CASE("the table of docs/memory.md", "[.table]") {
  model of_a_user;
  auto const mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  for (char const* const* name = kvpolicy_policies(); *name != nullptr; ++name) {
    measured const at[] = {of_a_user.of(*name, 1024), of_a_user.of(*name, 16384), of_a_user.of(*name, 131072)};
    std::printf("| `%s` | %.2f | %.2f | %.2f | %.2f |\n", *name, mib(at[2].started), mib(at[0].prompted), mib(at[1].prompted),
                mib(at[2].prompted));
  }
}

}  // namespace
}  // namespace kvpolicy_test
