#include "kvpolicy/exec/ranked.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <condition_variable>
#include <memory>

#include "conformance/communicator.hpp"
#include "kvpolicy/exec/simd.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "ranks/local_group.hpp"
#include "ranks/split_request.hpp"

namespace kvpolicy_test {
namespace {

using namespace ranks;
using std::chrono::milliseconds;

constexpr milliseconds patient = std::chrono::minutes(5);

/// A rank among ranks that give zeros: they have nothing to say.
struct alone {
  std::vector<std::size_t> sums;  ///< how many numbers each
  std::size_t fails_at = SIZE_MAX;

  int rank() const { return 0; }
  int size() const { return 1; }
  void sum(std::span<float> values) {
    sums.push_back(values.size());
    if (sums.size() == fails_at) throw ranks_error("rank 0 of 1 is told to fail");
  }
};

/// Four layers of two heads, one token's key different from the next.
request plain_request(random_source& random, std::int32_t every) {
  request r;
  r.shape = {4, 2, 2, 3, 64, element_type::f32};
  r.policy = {.fractions = {.tokens = 24}, .units = {4, 2, 2}, .recent_pages = 1, .every = every};
  r.cells = random.reals(4 * 2 * 64 * 3);
  r.prompt = 40;
  r.parts = {{0, 4, {0, 1}}, {0, 4, {1, 1}}};
  for (std::int64_t n = 41; n <= 64; ++n) {
    r.steps.push_back(n);
    r.logits.push_back(random.reals(8));
  }
  return r;
}

TEST_CASE("a communicator between threads keeps the concept's promises", "[ranks]") {
  for (int const size : {1, 2, 3, 4, 7}) {
    for (std::string const& thrown : on_ranks(size, patient, [](auto& all) { check_communicator(all); }))
      REQUIRE(thrown.empty());
  }
}

template <class Exec>
void compare_ranks(keys_are kind, std::uint64_t seed, int rounds) {
  random_source random(seed);
  std::int64_t sums = 0;
  std::int64_t narrow = 0;
  for (int round = 0; round < rounds; ++round) {
    constexpr std::array sizes{1, 2, 3, 4, 6, 8};
    int const size = random.pick(sizes);
    request const r = draw_request(kind, size, random);
    host_exec exec;
    choices const want = run(r, {}, exec);
    std::vector<choices> got(static_cast<std::size_t>(size));
    std::vector<std::string> const thrown = on_ranks(size, patient, [&](auto& all) {
      auto const rank = static_cast<std::size_t>(all.rank());
      if constexpr (std::same_as<Exec, simd_exec>) {
        ranked<simd_exec, local_communicator> mine(all, r.view_of(rank, 0).shape());
        got[rank] = run(r, rank, mine);
      } else {
        ranked<Exec, local_communicator> mine(all);
        got[rank] = run(r, rank, mine);
      }
    });
    for (std::size_t rank = 0; rank < got.size(); ++rank) {
      INFO("round " << round << " rank " << rank << " of " << size << " depth " << r.policy.depth << " heads "
                    << r.parts[rank].heads.count << " of " << r.shape.kv_heads << " layers " << r.parts[rank].layers << " of "
                    << r.shape.layers << " standardised " << r.policy.standardised << " literal " << r.policy.paper_literal);
      REQUIRE(thrown[rank] == "");
      REQUIRE(got[rank] == want);
    }
    alone counted;
    ranked<host_exec, alone> whole(counted);
    REQUIRE(run(r, {}, whole) == want);
    sums += std::ssize(counted.sums);
    for (std::size_t i = 0; i < want.size(); ++i) narrow += token_count(want[i]) < r.steps[i] ? 1 : 0;
  }
  REQUIRE(sums > rounds);
  REQUIRE(narrow > rounds);
}

TEST_CASE("ranks choose what one rank would, ties and NaN included, where sums are exact", "[ranks]") {
  compare_ranks<host_exec>(keys_are::whole_numbers, 4101, 150);
}
TEST_CASE("ranks choose what one rank would of Gaussian keys", "[ranks]") {
  compare_ranks<host_exec>(keys_are::gaussian, 4102, 150);
}
TEST_CASE("ranks on the compiled executor choose what one rank would on the oracle", "[ranks]") {
  compare_ranks<simd_exec>(keys_are::whole_numbers, 4103, 60);
}

TEST_CASE("a choice that is due is one sum, of one shape whatever a rank holds and however many tokens there are", "[ranks]") {
  random_source random(4104);
  for (std::int32_t depth = 1; depth <= 3; ++depth) {
    std::vector<std::size_t> sizes;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      request r = plain_request(random, 5);
      r.policy.depth = depth;
      r.policy.entropy = r.policy.varentropy = std::numeric_limits<float>::infinity();
      r.parts[1] = {1, 2, {0, 2}};
      alone counted;
      ranked<host_exec, alone> exec(counted);
      run(r, rank, exec);
      REQUIRE(counted.sums.size() == 5);  // at 41, 46, 51, 56, 61
      sizes.insert(sizes.end(), counted.sums.begin(), counted.sums.end());
    }
    REQUIRE(std::ranges::count(sizes, sizes.front()) == std::ssize(sizes));
    constexpr std::array units{16u, 16u + 8u, 16u + 8u + 4u};
    REQUIRE(sizes.front() >= units[static_cast<std::size_t>(depth - 1)]);
  }
}

TEST_CASE("policies that choose for each head have nothing to sum", "[ranks]") {
  random_source random(4105);
  request const r = plain_request(random, 1);
  std::vector<float> const query = random.reals(2 * 3);
  presets::quest const policy{.tokens = 16, .page = 4};
  alone counted;
  ranked<host_exec, alone> exec(counted);
  auto state = start(policy, r.shape);
  for (std::int64_t l = 0; l < 4; ++l) state.prefill(r.view(40), {l}, r.told(), exec);
  for (std::int64_t l = 0; l < 4; ++l) {
    selection const kept = state.choose(r.view(41), {l}, {query.data(), 2, 3, 1}, exec);
    REQUIRE(token_count(kept.of({0})) < 41);
  }
  REQUIRE(counted.sums.empty());
}

TEST_CASE("a rank without layers or heads is refused", "[ranks]") {
  random_source random(4106);
  request r = plain_request(random, 1);
  r.parts = {{4, 0, {0, 2}}, {0, 4, {2, 0}}};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    cache_shape shape = r.shape;
    shape.layers = r.parts[rank].layers;
    shape.kv_heads = r.parts[rank].heads.count;
    REQUIRE_THROWS_AS(shape_of(strided_view<>{.cache = shape}), invalid_value);
  }
}

/// Adds nothing: a caller's sum that reduces a copy of the values.
struct forgotten {
  static int rank() noexcept { return 0; }
  static int size() noexcept { return 2; }
  static void sum(std::span<float>) noexcept {}
};

TEST_CASE("a sum that does not come back in place is refused", "[ranks]") {
  random_source random(4110);
  request const r = plain_request(random, 4);
  forgotten link;
  ranked<host_exec, forgotten> exec(link);
  auto state = start(r.policy, r.shape);
  for (std::int64_t l = 0; l < 4; ++l) state.prefill(r.view(40), {l}, r.told(), exec);
  REQUIRE_THROWS_WITH(state.choose(r.view(41), {0}, {}, exec),
                      Catch::Matchers::ContainsSubstring("a sum over 2 ranks counted 1"));
}

TEST_CASE("a sum that fails leaves the choice that stood, and the step can be made again", "[ranks]") {
  random_source random(4107);
  for (std::size_t const fails_at : {1u, 2u, 3u, 6u}) {
    request const r = plain_request(random, 4);
    host_exec plain;
    choices const want = run(r, {}, plain);
    alone link{.sums = {}, .fails_at = fails_at};
    ranked<host_exec, alone> exec(link);
    auto state = start(r.policy, r.shape);
    for (std::int64_t l = 0; l < 4; ++l) state.prefill(r.view(40), {l}, r.told(), exec);
    int failed = 0;
    for (std::size_t i = 0; i < r.steps.size(); ++i) {
      range_list const before = i == 0 ? range_list{} : state.kept({0}).of({0});
      bool threw = false;
      state.cut(r.steps[i] - 1);
      try {
        state.choose(r.view(r.steps[i]), {0}, {}, exec);
      } catch (ranks_error const&) {
        threw = true;
      }
      if (threw) {
        ++failed;
        if (i > 0) REQUIRE(state.kept({0}).of({0}) == before);
        state.choose(r.view(r.steps[i]), {0}, {}, exec);
      }
      state.observe({.logits = {}, .entropy = 0.0f}, exec);
      REQUIRE(state.kept({0}).of({0}) == want[i]);
    }
    REQUIRE(failed == 1);
  }
}

TEST_CASE("a step whose sum failed is made again before the next, and the choice then stands until one is due", "[ranks]") {
  random_source random(4108);
  request const r = plain_request(random, 4);
  host_exec plain;
  choices const want = run(r, {}, plain);
  alone link{.sums = {}, .fails_at = 2};  // at 45 tokens
  ranked<host_exec, alone> exec(link);
  auto state = start(r.policy, r.shape);
  for (std::int64_t l = 0; l < 4; ++l) state.prefill(r.view(40), {l}, r.told(), exec);
  auto const observed = [&] { state.observe({.logits = {}, .entropy = 0.0f}, exec); };
  for (std::int64_t n = 41; n <= 44; ++n) {
    state.choose(r.view(n), {0}, {}, exec);
    observed();
  }
  REQUIRE_THROWS_AS(state.choose(r.view(45), {0}, {}, exec), ranks_error);
  REQUIRE(state.kept({0}).of({0}) == want[3]);
  REQUIRE_THROWS_AS(state.choose(r.view(46), {0}, {}, exec), invalid_value);
  for (std::int64_t n = 45; n <= 48; ++n) {
    REQUIRE_NOTHROW(state.choose(r.view(n), {0}, {}, exec));
    observed();
  }
  REQUIRE(link.sums.size() == 3);
  REQUIRE_NOTHROW(state.choose(r.view(49), {0}, {}, exec));
  REQUIRE(link.sums.size() == 4);
}

TEST_CASE("a rank that stays away ends the others with a message within the deadline, and for good", "[ranks]") {
  random_source random(4109);
  request r = plain_request(random, 4);
  random_source shares(1);
  r.parts = split(r.shape, 2, 2, true, shares);
  std::vector<int> again(4, 0);
  std::vector<std::string> const thrown = on_ranks(4, milliseconds(300), [&](auto& all) {
    auto const rank = static_cast<std::size_t>(all.rank());
    if (rank == 2) return;
    ranked<host_exec, local_communicator> exec(all);
    try {
      run(r, rank, exec);
    } catch (ranks_error const&) {
      std::vector<float> one(1);
      try {
        all.sum(one);
      } catch (ranks_error const&) {
        again[rank] = 1;
      }
      throw;
    }
  });
  REQUIRE(again == std::vector<int>{1, 1, 0, 1});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    INFO("rank " << rank << ": " << thrown[rank]);
    REQUIRE(thrown[rank].empty() == (rank == 2));
    if (rank == 2) continue;
    REQUIRE(thrown[rank].starts_with("rank " + std::to_string(rank) + " of 4 waited 300 ms"));
  }
}

TEST_CASE("a deadline is at least a millisecond", "[ranks]") {
  REQUIRE_THROWS_AS(ranks_deadline(0, 2, milliseconds(0)), invalid_value);
}

TEST_CASE("ranks that are not in step are found out, all of them", "[ranks]") {
  random_source random(4110);
  request r = plain_request(random, 1);
  r.shape.max_tokens = 128;
  r.cells = random.reals(4 * 2 * 128 * 3);
  for (std::int64_t const other : {42, 105}) {
    std::vector<std::string> const thrown = on_ranks(2, patient, [&](auto& all) {
      auto const rank = static_cast<std::size_t>(all.rank());
      request mine = r;
      mine.prompt = rank == 0 ? 40 : other - 1;
      mine.steps.assign(1, mine.prompt + 1);
      ranked<host_exec, local_communicator> exec(all);
      run(mine, rank, exec);
    });
    REQUIRE(thrown[0].find("chooses among 40 tokens") != std::string::npos);
    REQUIRE(thrown[1].find("chooses among " + std::to_string(other - 1) + " tokens") != std::string::npos);
  }
}

/// What one stage of a pipeline hands the next.
class mailbox {
 public:
  void put() {
    std::lock_guard const lock(mutex_);
    ++full_;
    changed_.notify_all();
  }
  /// False where nothing came in time.
  bool take(milliseconds most) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, most, [&] { return full_ > 0; })) return false;
    --full_;
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int full_ = 0;
};

/// Four stages of a pipeline; each step's choices, and what each stage threw.
std::vector<std::string> run_pipeline(request const& r, bool chooses_first, milliseconds deadline, std::vector<choices>& made) {
  std::vector<std::unique_ptr<mailbox>> from(4);
  for (auto& box : from) box = std::make_unique<mailbox>();
  mailbox& sampled = *from[0];  // the last stage tells what it sampled
  return on_ranks(4, deadline, [&](auto& all) {
    auto const rank = static_cast<std::size_t>(all.rank());
    ranked<host_exec, local_communicator> exec(all);
    auto state = start(r.policy, r.view_of(rank, 0).shape());
    state.prefill(r.view_of(rank, r.prompt), {0}, r.told(), exec);
    for (std::size_t i = 0; i < r.steps.size(); ++i) {
      auto const decide = [&] {
        state.cut(r.steps[i] - 1);
        state.choose(r.view_of(rank, r.steps[i]), {0}, {}, exec);
      };
      if (chooses_first) decide();
      if (rank > 0 && !from[rank]->take(deadline)) throw error("no activations came");
      if (!chooses_first) decide();
      if (rank < 3) from[rank + 1]->put();
      made[rank].push_back(state.kept({0}).of({0}));
      if (rank == 3) sampled.put();
      if (rank == 0 && !sampled.take(deadline)) throw error("no token came");
      state.observe({.entropy = 1.f}, exec);
    }
  });
}

TEST_CASE("stages of a pipeline that choose before they wait for activations make one choice", "[ranks]") {
  random_source random(4111);
  request r = plain_request(random, 3);
  r.policy.entropy = r.policy.varentropy = 9;
  r.parts = {{0, 1, {0, 2}}, {1, 1, {0, 2}}, {2, 1, {0, 2}}, {3, 1, {0, 2}}};
  host_exec exec;
  choices const want = run(r, {}, exec);
  std::vector<choices> made(4);
  for (std::string const& thrown : run_pipeline(r, true, patient, made)) REQUIRE(thrown == "");
  for (choices const& of_stage : made) REQUIRE(of_stage == want);
}

TEST_CASE("stages that wait for activations before they choose are ended by the deadline", "[ranks]") {
  random_source random(4112);
  request r = plain_request(random, 3);
  r.parts = {{0, 1, {0, 2}}, {1, 1, {0, 2}}, {2, 1, {0, 2}}, {3, 1, {0, 2}}};
  std::vector<choices> made(4);
  std::vector<std::string> const thrown = run_pipeline(r, false, milliseconds(300), made);
  REQUIRE(thrown[0].find("waited 300 ms") != std::string::npos);
  for (choices const& of_stage : made) REQUIRE(of_stage.empty());
}

}  // namespace
}  // namespace kvpolicy_test
