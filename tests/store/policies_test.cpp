// Policies on rows that they really let go of: the same choices and the same attention as on a cache that keeps everything.
#include <catch2/catch_test_macros.hpp>
#include <optional>
#include <string>
#include <vector>

#include "conformance/small_presets.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/exec/simd.hpp"
#include "kvpolicy/interop/dense.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/store/row_store.hpp"
#include "kvpolicy/testing/random_cache.hpp"

namespace kvpolicy {
namespace {

using testing::content;
using testing::random_cache;
using testing::random_signals;
using testing::random_source;

constexpr cache_shape shape{
    .layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .max_tokens = 200, .type = element_type::f32};

/// One request on rows that stay, another on a store that has only what the request retains.
template <class Policy>
class pair_of_requests {
 public:
  pair_of_requests(Policy const& policy, std::uint64_t seed)
      : random_(seed),
        cache_(shape, random_, random_.between(0, 3) == 0 ? content::tied : content::normal),
        told_(shape, random_),
        evicts_(requirements_of(policy).evicts),
        dense_(start(policy, shape)),
        owned_(start(policy, shape)) {}

  /// False where both refuse: the policy looks back at what was dropped.
  bool prompt(std::int64_t first, std::int64_t tokens) {
    bool const whole = first == 0;
    store_.truncate(first);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      append(l, tokens);
      there_.resize(whole ? 0 : static_cast<std::size_t>(shape.kv_heads));
      for (std::size_t h = 0; h < there_.size(); ++h) store_.list({l}, static_cast<std::int64_t>(h), tokens, there_[h]);
      bool const served = prefills(dense_, cache_.view(tokens), l, first);
      REQUIRE(served == prefills(owned_, store_.view(tokens), l, first));
      if (!served) return false;
      same_lists(dense_.retained({l}), owned_.retained({l}));
      store_.retain({l}, owned_.retained({l}), tokens);
    }
    return true;
  }

  void step(std::int64_t tokens) {
    store_.truncate(tokens - 1);
    dense_.cut(tokens - 1);
    owned_.cut(tokens - 1);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      append(l, tokens);
      selection const expected = dense_.choose(cache_.view(tokens), {l}, told_.step(tokens), exec_);
      selection const kept = owned_.choose(store_.view(tokens), {l}, told_.step(tokens), exec_);
      same_lists(kept, expected);
      REQUIRE(attended(store_.view(tokens), l, kept) == attended(cache_.view(tokens), l, expected));
      if (evicts_) store_.retain({l}, owned_.retained({l}), tokens);
    }
    dense_.observe(told_.outcome(tokens), exec_);
    owned_.observe(told_.outcome(tokens), exec_);
  }

  /// Rows that the store has, and those that the request retains.
  std::pair<std::int64_t, std::int64_t> counts() const {
    std::int64_t retained = 0;
    for (std::int64_t l = 0; l < shape.layers; ++l) retained += owned_.retained({l}).tokens();
    return {store_.rows_held(), retained};
  }

 private:
  using request_type = decltype(start(std::declval<Policy const&>(), shape));

  void append(std::int64_t layer, std::int64_t tokens) {
    std::int64_t const before = store_.tokens({layer});
    auto const behind = [&](rows all) {
      all.base += before * all.token_stride;
      all.tokens = tokens - before;
      return all;
    };
    store_.append({layer}, behind(cache_.view(tokens).keys({layer})), behind(cache_.view(tokens).values({layer})));
  }
  template <class View>
  bool prefills(request_type& request, View const& view, std::int64_t layer, std::int64_t first) {
    try {
      prompt_signals told = told_.prompt(first, view.tokens());
      told.resident = there_;
      request.prefill(view, {layer}, told, exec_);
      return true;
    } catch (unsupported const&) {
      return false;
    }
  }
  void same_lists(selection const& a, selection const& b) const {
    REQUIRE(a.granularity() == b.granularity());
    REQUIRE(std::ranges::equal(a.lists(), b.lists()));
  }
  template <class View>
  std::vector<float> attended(View const& view, std::int64_t layer, selection const& kept) {
    std::vector<float> out(static_cast<std::size_t>(shape.q_heads * shape.head_dim));
    attend(told_.step(view.tokens()).queries, view.keys({layer}), view.values({layer}), kept,
           table<float>{out.data(), shape.q_heads, shape.head_dim, shape.head_dim}, {}, exec_);
    return out;
  }

  random_source random_;
  random_cache cache_;
  random_signals told_;
  bool evicts_;
  simd_exec exec_{shape};
  block_arena arena_{row_store::block_bytes(shape), 1000};
  row_store store_{arena_, shape};
  std::vector<range_list> there_;  ///< of the layer that is prefilled
  request_type dense_;
  request_type owned_;
};

template <class Policy>
void check_on_store(Policy const& policy) {
  bool goes_on = true;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    pair_of_requests<Policy> both(policy, seed);
    REQUIRE(both.prompt(0, 90));
    for (std::int64_t n = 91; n <= 100; ++n) both.step(n);
    auto const [there, retained] = both.counts();
    REQUIRE(there == retained);
    for (std::int64_t n = 95; n <= 99; ++n) both.step(n);  // a tail was removed
    goes_on = both.prompt(99, 140);
    if (!goes_on) continue;
    for (std::int64_t n = 141; n <= 144; ++n) both.step(n);
    REQUIRE(both.prompt(0, 50));
    both.step(51);
  }
  // Those whose scores are of all tokens that there ever were, and those that keep all, which have all.
  std::string const name = Policy::name;
  requirements const retain = requirements_of(parts_of(policy).retain);
  bool const keeps_all = retain.keeps_all || retain.hides;
  REQUIRE(goes_on == (name != "h2o" && name != "expected_attention" && !keeps_all));
}

TEST_CASE("every preset chooses and attends on a row store as it does on a cache that keeps all", "[store]") {
  presets::all::each([](auto const& preset) {
    INFO(preset.name);
    check_on_store(kvpolicy_test::small(preset));
  });
}

TEST_CASE("rotation is not undone of latent rows, whose values a store has copied", "[store]") {
  cache_shape const latent{
      .layers = 1, .q_heads = 4, .kv_heads = 1, .head_dim = 24, .max_tokens = 100, .type = element_type::f16, .value_dim = 16};
  random_source random(1);
  std::vector<std::uint16_t> of_keys(100 * 24), of_values(100 * 16);
  for (auto* const all : {&of_keys, &of_values})
    for (std::uint16_t& element : *all) element = static_cast<std::uint16_t>(random.between(0x3000, 0x3bff));
  std::vector<float> const inverse_frequency{1, .1f, .01f, .001f};
  prompt_signals told;
  told.rope = {inverse_frequency.data(), 4, rotation::pairing::neighbours};
  host_exec exec(latent);
  auto keys_alone = hugging_face::view(latent, 100, of_keys.data(), nullptr);  // the policy reads no values
  keys_alone.token_count = 60;
  CHECK_NOTHROW(
      start(presets::chess{.fractions = {.tokens = 40}, .units = {.page = 4}}, latent).prefill(keys_alone, {0}, told, exec));
  for (bool const parts : {true, false}) {  // values that are parts of the keys' rows, or rows of their own
    block_arena arena(row_store::block_bytes(latent), 100);
    row_store store(arena, latent);
    auto cache = hugging_face::view(latent, 100, of_keys.data(), parts ? of_keys.data() : of_values.data());
    cache.token_count = 60;
    store.append({0}, cache.keys({0}), cache.values({0}));
    auto request = start(presets::chess{.fractions = {.tokens = 40}, .units = {.page = 4}}, latent);
    if (parts) CHECK_THROWS_AS(request.prefill(store.view(60), {0}, told, exec), unsupported);
    else CHECK_NOTHROW(request.prefill(store.view(60), {0}, told, exec));
  }
}

}  // namespace
}  // namespace kvpolicy
