// Sessions that hold the rows themselves: what the engine computes with all of its cells comes out with few of them.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "decoding.hpp"
#include "kvpolicy/interop/llama.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "kvpolicy/store/row_store.hpp"
#include "managed_cache_context.hpp"
#include "model_kinds.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr tiny_shape shape{};
constexpr std::int64_t row_bytes = 2 * shape.head_dim * 2;

template <class Policy>
host_policy erased(Policy const& policy) {
  return erase<layer_table_view, simd_exec>(policy);
}

/// A prompt, then its steps.
template <class Feed>
std::vector<logits> request(Feed feed, std::int64_t prompt, std::int64_t steps, std::uint64_t seed = 3) {
  std::vector<logits> all{feed(random_tokens(prompt, seed))};
  for (llama_token const token : random_tokens(steps, seed + 100)) all.push_back(feed({token}));
  return all;
}

template <class Policy>
std::vector<logits> on_engine_rows(Policy const& policy, std::int64_t prompt, std::int64_t steps) {
  model_owner const model = tiny_llama(shape);
  session plain(policy);
  decoder engine(model.get(), &plain, {.tokens = 1024});
  return request([&](token_list tokens) { return engine.feed(std::move(tokens)); }, prompt, steps);
}

template <class Policy>
std::vector<logits> on_managed_cache(owner& with, std::int64_t prompt, std::int64_t steps, Policy const&) {
  return request([&](token_list tokens) { return with.feed(std::move(tokens)); }, prompt, steps);
}

}  // namespace

TEST_CASE("a managed cache gives what the engine's cells give, bit for bit, where a prompt is one piece") {
  auto const same = [](auto const& policy) {
    INFO(policy.name);
    owner own(policy, {.tokens = 1024});
    REQUIRE(identical(on_managed_cache(own, 400, 30, policy), on_engine_rows(policy, 400, 30)));
    REQUIRE(own.cells_used() == 8);
  };
  same(presets::full{});
  same(presets::quest{.tokens = 64});
  same(presets::infllm{.tokens = 96, .block = 16, .representatives = 2});
  same(presets::snapkv{.tokens = 96, .after = 0});
  same(presets::pyramidkv{.tokens = 96, .after = 0});
  same(presets::adakv{.tokens = 96, .after = 0});
  same(presets::knorm{.tokens = 96});
  same(presets::chunkkv{.tokens = 96, .after = 0});
  same(presets::streaming_llm{.tokens = 64});
  same(presets::tova{.tokens = 64});
  same(presets::h2o{.tokens = 64});
  same(presets::lagkv{.tokens = 96, .lag = 32});
  same(presets::expected_attention{.tokens = 96});
}

TEST_CASE("a prompt longer than n_ctx, and the steps behind it, come out as in a context that holds it all") {
  for (ggml_type const type : {GGML_TYPE_F16, GGML_TYPE_Q8_0}) {
    for (std::uint32_t const cells : {256u, 512u}) {
      CAPTURE(ggml_type_name(type), cells);
      owner few(presets::full{}, {.tokens = cells, .batch = 100, .micro_batch = 64, .type = type});
      owner all(presets::full{}, {.tokens = 2048, .batch = 2048, .micro_batch = 64, .type = type});
      auto const expected = on_managed_cache(all, 1500, 40, presets::full{});
      REQUIRE(difference(on_managed_cache(few, 1500, 40, presets::full{}), expected) < .05);
      REQUIRE(few.own().last_step().tokens == 1540);
    }
  }
}

TEST_CASE("what a policy drops is gone, and the store's own count says so") {
  constexpr std::int64_t kept = 128;
  owner own(presets::snapkv{.tokens = kept, .after = 0}, {.tokens = 256});
  own.feed(random_tokens(2000));
  memory_statistics const whole = own.own().memory();
  CHECK(whole.rows == 2000 * shape.layers * shape.kv_heads);
  own.feed(random_tokens(1, 5));
  memory_statistics const after = own.own().memory();
  CHECK(after.rows == (kept + 1) * shape.layers * shape.kv_heads);
  CHECK(after.bytes == 3 * row_store::rows_of_block * row_bytes * shape.layers * shape.kv_heads);
  CHECK(after.most_bytes == whole.bytes);
  CHECK(after.bytes * 10 < whole.bytes);
  // A prompt that goes on is decided among what is left.
  own.feed(random_tokens(300, 6));
  own.feed(random_tokens(1, 7));
  CHECK(own.own().memory().rows == (kept + 1) * shape.layers * shape.kv_heads);
  own.engine().clear();
  own.feed(random_tokens(50, 8), 0, 0);
  CHECK(own.own().memory().rows == 50 * shape.layers * shape.kv_heads);
}

TEST_CASE("where another text may go on is told: behind what a policy chose for the one it saw") {
  owner own(presets::snapkv{.tokens = 64, .after = 0}, {.tokens = 512});
  CHECK(own.own().tokens() == 0);
  CHECK(own.own().goes_on_from() == 0);
  own.feed(random_tokens(300));
  CHECK(own.own().tokens() == 300);
  CHECK(own.own().goes_on_from() == 0);  // nothing is chosen yet
  own.feed({5});
  own.feed({6});
  CHECK(own.own().tokens() == 302);
  CHECK(own.own().goes_on_from() == 299);
  // The prompt's last token once more, as of a request that is repeated: it reads what was chosen.
  own.engine().cut(299);
  own.own().cut(0, 299);
  CHECK(own.own().tokens() == 299);
  own.feed({random_tokens(300).back()});
  CHECK(own.own().last_step().tokens_read <= 64);
  CHECK(own.own().goes_on_from() == 299);
  // More of the same conversation, and a copy of it.
  own.feed(random_tokens(100, 9));
  own.feed({5});
  CHECK(own.own().goes_on_from() == 399);
  own.own().end(0);
  CHECK(own.own().tokens() == 0);
  CHECK(own.own().goes_on_from() == 0);

  owner evicting(presets::streaming_llm{.tokens = 64}, {.tokens = 512});
  evicting.feed(random_tokens(60));
  for (llama_token token = 0; token < 20; ++token) evicting.feed({token});
  CHECK(evicting.own().goes_on_from() == 78);

  owner decides_by_all(presets::h2o{.tokens = 64}, {.tokens = 512});
  decides_by_all.feed(random_tokens(60));
  CHECK(decides_by_all.own().goes_on_from() == 0);
  for (llama_token token = 0; token < 20; ++token) decides_by_all.feed({token});
  CHECK(decides_by_all.own().goes_on_from() == 81);

  owner whole(presets::quest{.tokens = 64}, {.tokens = 512});
  whole.feed(random_tokens(300));
  whole.feed({5});
  CHECK(whole.own().goes_on_from() == 0);
}

TEST_CASE("a prompt's token that comes alone is no step where it has no output, and nothing is dropped for it") {
  owner own(presets::snapkv{.tokens = 64, .after = 0}, {.tokens = 1024, .sequences = 2, .unified = true});
  std::array<llama_seq_id, 1> const of{0};
  llama_token token = 5;
  llama_pos position = 300;
  std::int32_t one = 1;
  llama_seq_id sequence = 0;
  llama_seq_id* named = &sequence;
  for (std::int8_t const output : std::array<std::int8_t, 2>{0, 1}) {
    own.feed(random_tokens(300), 0, 0);
    own.own().set_batch(of, std::array{output});
    std::int8_t wanted = 1;
    REQUIRE(llama_decode(own.engine().context(), {1, &token, nullptr, &position, &one, &named, &wanted}) == 0);
    own.own().give_back(own.engine().context(), of);
    CHECK(own.own().steps() == output);
    CHECK((own.own().goes_on_from() > 0) == (output == 1));
    own.engine().clear();
    own.own().end(0);
  }
  CHECK_THROWS_AS(own.own().set_batch(of, std::array<std::int8_t, 2>{}), invalid_value);
}

TEST_CASE("a tail that is cut far behind the engine's cells is gone from both, and positions are counted on") {
  owner own(presets::full{}, {.tokens = 512});
  auto const all = random_tokens(300);
  own.feed(all);
  own.engine().cut(100);
  own.own().cut(0, 100);
  REQUIRE(own.cells_used() < 8);
  // Without positions: the engine itself would begin anew.
  logits const again = own.feed(token_list(all.begin() + 100, all.end()));
  CHECK(own.own().tokens() == 300);
  owner once(presets::full{}, {.tokens = 512});
  CHECK(difference(again, once.feed(all)) < .01);
}

TEST_CASE("compressed piece by piece, a prompt never holds more than what is kept and a piece") {
  owner own(presets::snapkv{.tokens = 128, .after = 0}, {.tokens = 256, .batch = 128, .micro_batch = 128},
            {.between_pieces = erased(presets::snapkv{.tokens = 128, .after = 0})});
  auto const steps = on_managed_cache(own, 3000, 10, presets::snapkv{.after = 0});
  CHECK(own.own().memory().most_bytes == (128 + 128) * row_bytes * shape.layers * shape.kv_heads);
  CHECK(own.own().memory().rows == (128 + 10) * shape.layers * shape.kv_heads);
  CHECK(std::ranges::all_of(steps.back(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("compressed in one piece, a prompt is as it is without pieces") {
  auto const same = [](auto const& policy) {
    INFO(policy.name);
    owner pieces(policy, {.tokens = 1024}, {.between_pieces = erased(policy)});
    owner whole(policy, {.tokens = 1024});
    REQUIRE(identical(on_managed_cache(pieces, 400, 20, policy), on_managed_cache(whole, 400, 20, policy)));
  };
  same(presets::snapkv{.tokens = 96, .after = 0});
  same(presets::tova{.tokens = 64});
  same(presets::streaming_llm{.tokens = 64});
}

TEST_CASE("endless steps with streaming_llm hold as many rows as ever") {
  owner own(presets::streaming_llm{.tokens = 64}, {.tokens = 256});
  own.feed(random_tokens(100));
  for (llama_token const token : random_tokens(700, 4)) own.feed({token});
  memory_statistics const memory = own.own().memory();
  CHECK(memory.rows == 64 * shape.layers * shape.kv_heads);
  CHECK(memory.bytes <= 2 * row_store::rows_of_block * row_bytes * shape.layers * shape.kv_heads);
  CHECK(own.cells_used() == 8);
}

TEST_CASE("tails that are removed and sequences that are copied are followed, rows shared") {
  auto const policy = presets::snapkv{.tokens = 96, .after = 0};
  owner own(policy, {.tokens = 1024, .sequences = 2, .unified = true});
  own.feed(random_tokens(400), 0, 0);
  for (int i = 0; i < 5; ++i) own.feed(random_tokens(1, 20 + static_cast<std::uint64_t>(i)), 0, 400 + i);
  std::int64_t const before = own.own().memory().bytes;
  llama_memory_seq_cp(own.engine().memory(), 0, 1, -1, -1);
  logits const copied = own.feed({7}, 1, 405);
  CHECK(own.own().memory().bytes <= before + shape.layers * shape.kv_heads * row_store::rows_of_block * row_bytes);
  CHECK(identical(own.feed({7}, 0, 405), copied));
  CHECK(identical(own.feed({9}, 0, 406), own.feed({9}, 1, 406)));
  // Back to where nothing was decoded after the prompt.
  owner again(policy, {.tokens = 1024});
  again.feed(random_tokens(400), 0, 0);
  again.feed(random_tokens(1, 20), 0, 400);
  logits const once = again.feed({11}, 0, 401);
  again.feed({12}, 0, 402);
  llama_memory_seq_rm(again.engine().memory(), 0, 401, -1);
  CHECK(identical(again.feed({11}, 0, 401), once));
  // Further back than the engine has cells.
  llama_memory_seq_rm(own.engine().memory(), 0, 300, -1);
  CHECK_NOTHROW(own.feed({3}, 0, 300));
  CHECK(own.own().last_step(0).tokens == 301);
}

TEST_CASE("a copy under another policy decides for itself, and what it drops is not the original's") {
  owner own(presets::full{}, {.tokens = 1024, .sequences = 2, .unified = true}, {}, {}, {.observation_queries = 8});
  own.feed(random_tokens(400), 0, 0);
  llama_memory_seq_cp(own.engine().memory(), 0, 1, -1, -1);
  own.own().use(presets::snapkv{.tokens = 96, .after = 0}, 1);
  own.own().copy(0, 1);
  logits const chosen = own.feed({7}, 1, 400);
  CHECK(own.own().memory(1).rows == 97 * shape.layers * shape.kv_heads);
  CHECK(own.own().memory(0).rows == 400 * shape.layers * shape.kv_heads);
  owner alone(presets::snapkv{.tokens = 96, .after = 0}, {.tokens = 1024});
  alone.feed(random_tokens(400));
  CHECK(identical(chosen, alone.feed({7})));
  owner dense(presets::full{}, {.tokens = 1024});
  dense.feed(random_tokens(400));
  CHECK(identical(own.feed({7}, 0, 400), dense.feed({7})));
}

TEST_CASE("a sequence that is used again for a copy has the whole prefix, told or not") {
  auto const policy = presets::snapkv{.tokens = 96, .after = 0};
  owner own(presets::full{}, {.tokens = 1024, .sequences = 2, .unified = true}, {}, {}, {.observation_queries = 8});
  own.own().use(policy, 1);
  own.feed(random_tokens(400), 0, 0);
  std::vector<logits> answers;
  for (int request = 0; request < 3; ++request) {
    llama_memory_seq_rm(own.engine().memory(), 1, -1, -1);
    llama_memory_seq_cp(own.engine().memory(), 0, 1, -1, -1);
    own.feed(random_tokens(20, 50), 1, 400);
    answers.push_back(own.feed({7}, 1, 420));
  }
  CHECK(identical(answers[1], answers[0]));
  CHECK(identical(answers[2], answers[0]));
}

TEST_CASE("a copy over a sequence that had another prompt is of the other's tokens, not of its own") {
  auto const policy = presets::snapkv{.tokens = 96, .after = 0};
  owner own(policy, {.tokens = 2048, .sequences = 2, .unified = true});
  own.feed(random_tokens(400, 1), 0, 0);
  own.feed(random_tokens(400, 2), 1, 0);
  llama_memory_seq_rm(own.engine().memory(), 1, -1, -1);
  llama_memory_seq_cp(own.engine().memory(), 0, 1, -1, -1);
  logits const copied = own.feed({7}, 1, 400);
  CHECK(identical(own.feed({7}, 0, 400), copied));
}

TEST_CASE("a retain that waits for the answer frees rows when it has decided, and reads what one on the engine's rows reads") {
  auto const policy = presets::snapkv{.tokens = 96, .after = 3};
  owner own(policy, {.tokens = 1024});
  session of_engine(policy);
  model_owner const model = tiny_llama();
  decoder on_engine(model.get(), &of_engine, {.tokens = 1024});
  own.feed(random_tokens(400));
  on_engine.feed(random_tokens(400));
  for (int step = 1; step <= 6; ++step) {
    llama_token const token = random_tokens(1, static_cast<std::uint64_t>(step)).front();
    CHECK(difference(own.feed({token}), on_engine.feed(token)) < .01);
    std::int64_t const left = step < 3 ? 400 + step : 96 + step - 3;
    CHECK(own.own().memory().rows == left * shape.layers * shape.kv_heads);
    CHECK(of_engine.last_step().tokens_read == static_cast<double>(left));
  }
}

TEST_CASE("a copy is of what was decoded, not of what failed") {
  owner own(presets::full{}, {.tokens = 1024, .sequences = 2, .unified = true}, {.longest = 450});
  own.feed(random_tokens(400), 0, 0);
  CHECK(own.status_of(random_tokens(100, 3), 0, 400) != 0);
  CHECK_THROWS_AS(own.own().check(), error);
  llama_memory_seq_cp(own.engine().memory(), 0, 1, -1, -1);
  own.own().copy(0, 1);
  CHECK(own.own().memory(1).rows == 400 * shape.layers * shape.kv_heads);
  CHECK(identical(own.feed({7}, 1, 400), own.feed({7}, 0, 400)));
}

TEST_CASE("one batch of several prompts, each longer than the context") {
  owner few(presets::full{}, {.tokens = 256, .batch = 256, .micro_batch = 64, .sequences = 3, .unified = true});
  owner all(presets::full{}, {.tokens = 2048, .batch = 2048, .micro_batch = 64, .sequences = 3, .unified = true});
  std::vector<llama_token> ids;
  std::vector<llama_pos> positions;
  std::vector<llama_seq_id> of;
  for (llama_seq_id s = 0; s < 3; ++s) {
    token_list const tokens = random_tokens(400, 30 + static_cast<std::uint64_t>(s));
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    for (llama_pos p = 0; p < 400; ++p) positions.push_back(p), of.push_back(s);
  }
  std::vector<std::int32_t> ones(ids.size(), 1);
  std::vector<llama_seq_id*> owners;
  for (llama_seq_id& one : of) owners.push_back(&one);
  for (owner* const with : {&few, &all}) {
    REQUIRE(with->own().decode(with->engine().context(), {static_cast<std::int32_t>(ids.size()), ids.data(), nullptr,
                                                          positions.data(), ones.data(), owners.data(), nullptr}) == 0);
  }
  for (llama_seq_id s = 0; s < 3; ++s) CHECK(difference(few.feed({5}, s, 400), all.feed({5}, s, 400)) < .05);
}

TEST_CASE("another policy decides among what is left of each head, or refuses") {
  owner own(presets::tova{.tokens = 96}, {.tokens = 1024});
  own.feed(random_tokens(400));
  for (int i = 0; i < 5; ++i) own.feed({7});
  own.own().use(presets::streaming_llm{.tokens = 48});  // the same tokens in all layers, which have others each
  CHECK(own.status_of({7}) != 0);
  CHECK_THROWS_WITH(own.own().check(), ContainsSubstring("are gone"));
  own.own().use(presets::snapkv{.tokens = 48, .after = 0});
  CHECK(own.status_of(random_tokens(30, 9)) == 0);
  CHECK_NOTHROW(own.feed({7}));
}

TEST_CASE("a managed cache refuses by name what it can't follow, and goes on") {
  owner own(presets::snapkv{.tokens = 96, .after = 0}, {.tokens = 256, .sequences = 2, .unified = true}, {.longest = 500});
  CHECK(own.status_of(random_tokens(10), 1, 20) != 0);
  CHECK_THROWS_WITH(own.own().check(),
                    ContainsSubstring("token 20 of sequence 1 comes behind tokens whose rows the session does not have"));
  own.feed(random_tokens(300), 0, 0);
  own.feed({5}, 0, 300);
  own.own().use(presets::knorm{.tokens = 48});  // among what the other left
  CHECK_NOTHROW(own.feed({5}, 0, 301));
  CHECK(own.own().memory().rows == 49 * shape.layers * shape.kv_heads);
  own.own().use(presets::quest{.tokens = 96});
  CHECK(own.status_of({5}, 0, 302) != 0);
  CHECK_THROWS_WITH(own.own().check(), ContainsSubstring("keeps every token, but rows of some were dropped"));
  llama_memory_seq_rm(own.engine().memory(), 0, -1, -1);
  CHECK_NOTHROW(own.feed(random_tokens(100), 0, 0));
  own.own().detach();
  CHECK(own.status_of({5}, 0, 100) != 0);
  CHECK_THROWS_WITH(own.own().check(), ContainsSubstring("detached"));
  own.own().use(presets::full{});
  CHECK_NOTHROW(own.feed({5}, 0, 100));
  CHECK(own.status_of(random_tokens(450), 0, 101) != 0);
  CHECK_THROWS_WITH(own.own().check(), ContainsSubstring("the managed cache is for 500 at most"));
  CHECK_THROWS_AS(own.own().load({.tokens = 3}), unsupported);
  for (session_options const& wrong :
       {session_options{.prompts = false, .cache = managed_cache{}}, session_options{.lenient = true, .cache = managed_cache{}},
        session_options{.cache = managed_cache{.longest = -5}}, session_options{.cache = managed_cache{.memory = -5}}}) {
    CHECK_THROWS_AS(session(presets::full{}, wrong), invalid_value);
  }
  model_owner const model = tiny_llama(shape);
  for (auto const& [policy, pieces, says] :
       {std::tuple{erased(presets::h2o{.tokens = 64}), erased(presets::snapkv{.tokens = 96, .after = 0}),
                   "looks at every token"},
        std::tuple{erased(presets::snapkv{.tokens = 96, .after = 0}), erased(presets::snapkv{.ratio = .5, .after = 0}),
                   "a share"},
        std::tuple{erased(presets::quest{.tokens = 96}), erased(presets::snapkv{.tokens = 96, .after = 0}),
                   "keeps every token"},
        std::tuple{erased(presets::snapkv{.tokens = 96, .after = 0}), erased(presets::quest{.tokens = 96}), "retains all"}}) {
    session of(policy, {.cache = managed_cache{.between_pieces = pieces}});
    llama_context_params params = parameters({});
    CHECK_THROWS_WITH(of.attach(params, model.get()), ContainsSubstring(says));
  }
  session small(presets::full{}, {.cache = managed_cache{.memory = 1000}});
  llama_context_params of_small = parameters({});
  CHECK_THROWS_WITH(small.attach(of_small, model.get()), ContainsSubstring("memory for rows of 1000 bytes"));
  model_owner const shared = tiny_shared_cache();
  session of(presets::full{}, {.cache = managed_cache{}});
  llama_context_params params = parameters({});
  CHECK_THROWS_WITH(of.attach(params, shared.get()),
                    ContainsSubstring("a managed cache needs the session to serve all layers"));
  model_owner const windows = tiny_sliding_window();
  session beside(presets::full{}, {.cache = managed_cache{}});
  llama_context_params of_windows = parameters({});
  beside.attach(of_windows, windows.get());
  CHECK_THROWS_WITH(beside.save_state("full", 0), ContainsSubstring("sliding windows"));
}

TEST_CASE("a sequence that exhausts the memory fails alone, and others go on") {
  constexpr std::int64_t blocks = shape.layers * shape.kv_heads * 6;
  owner own(presets::full{}, {.tokens = 1024, .sequences = 2, .unified = true},
            {.memory = blocks * row_store::rows_of_block * row_bytes});
  own.feed(random_tokens(100), 0, 0);
  CHECK(own.status_of(random_tokens(400), 1, 0) != 0);
  CHECK_THROWS_WITH(own.own().check(), ContainsSubstring("memory is exhausted"));
  CHECK_NOTHROW(own.feed({5}, 0, 100));
  CHECK_NOTHROW(own.feed(random_tokens(200), 1, 0));
  CHECK(own.status_of(random_tokens(200), 1, 200) != 0);
  CHECK_THROWS_AS(own.own().check(), error);
  CHECK_NOTHROW(own.feed({5}, 1, 200));  // what it had before is there
  CHECK(own.own().last_step(1).tokens == 201);
  llama_memory_seq_rm(own.engine().memory(), 1, -1, -1);
  own.own().end(1);
  CHECK(own.own().memory(1).bytes == 0);
  CHECK_NOTHROW(own.feed(random_tokens(200), 1, 0));
  CHECK(own.own().memory().rows == 301 * shape.layers * shape.kv_heads);
  CHECK(own.own().memory().limit == blocks * row_store::rows_of_block * row_bytes);
}

// KVPOLICY_ENDLESS: how many tokens (docs/results/memory.md: 100,000).
TEST_CASE("a chat without end holds as many rows throughout under a policy that evicts") {
  char const* const set = std::getenv("KVPOLICY_ENDLESS");
  std::int64_t const tokens = set == nullptr ? 3000 : std::atoll(set);
  owner ours(presets::streaming_llm{.tokens = 256}, {.tokens = 512, .batch = 256, .micro_batch = 256},
             {.longest = tokens + 600});
  ours.feed(random_tokens(500));
  auto const resident = [] {  // of the whole process, bytes
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages >> pages;
    return pages * sysconf(_SC_PAGESIZE);
  };
  for (std::int64_t t = 0; t < 600; ++t) ours.feed({static_cast<llama_token>(t % 200)});
  std::int64_t const rows = ours.own().memory().bytes;
  std::int64_t const process = resident();
  for (std::int64_t t = 600; t < tokens; ++t) ours.feed({static_cast<llama_token>(t % 200)});
  CHECK(ours.own().memory().bytes == rows);
  CHECK(ours.own().memory().most_bytes < 3 * rows);
  // What grows is what tells tokens apart: 4 bytes a layer and head, and 40 or so (decision 18).
  std::int64_t const grown = resident() - process;
  if (set != nullptr) {
    std::printf("%lld tokens: rows %.1f KB throughout, process %.1f MB and in the end %.2f MB more\n",
                static_cast<long long>(tokens), static_cast<double>(rows) / 1e3, static_cast<double>(process) / 1e6,
                static_cast<double>(grown) / 1e6);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose own memory grows
  CHECK(grown < (1 << 20) + 80 * tokens);
#endif
}

}  // namespace kvpolicy::llama::testing
