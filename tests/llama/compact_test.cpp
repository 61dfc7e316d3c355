// What the engine's own steps compute from compacted cells is what a session computes from the rows that its policy retained.
#include "kvpolicy/interop/llama/compact.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <vector>

#include "compacting.hpp"
#include "decoding.hpp"
#include "kvpolicy/presets/adakv.hpp"
#include "kvpolicy/presets/chunkkv.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/h2o.hpp"
#include "kvpolicy/presets/knorm.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "model_kinds.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

/// Both decode a prompt and then steps; a second prompt may follow, and a compaction after it.
template <class Policy>
void compare(Policy const& policy, context_options const& options, std::int64_t kept, tiny_shape const& shape = {}) {
  model_owner const model = tiny_llama(shape);
  compacting<Policy> compacted(model.get(), policy, options);
  session_options plain;
  plain.prompts = false;  // by the engine, as the other's
  session by(policy, plain);
  decoder reference(model.get(), &by, options);
  decoder dense(model.get(), nullptr, options);
  token_list const prompt = random_tokens(300);
  token_list const rest = random_tokens(20, 11);
  for (std::size_t first = 0; first < prompt.size(); first += 90) {
    token_list const piece(prompt.begin() + static_cast<std::ptrdiff_t>(first),
                           prompt.begin() + static_cast<std::ptrdiff_t>(std::min(first + 90, prompt.size())));
    compacted.engine.feed(piece);
    dense.feed(piece);
  }
  reference.feed(prompt);
  compaction const made = compacted.with.compact(compacted.engine.context());
  REQUIRE(made.tokens == 300);
  REQUIRE(made.kept == kept);
  REQUIRE(cells_of(compacted.engine) == kept);
  REQUIRE(llama_memory_seq_pos_max(compacted.engine.memory(), 0) == 299);
  auto const got = decode_each(compacted.engine, rest);
  auto const wanted = decode_each(reference, rest);
  auto const whole = decode_each(dense, rest);
  CAPTURE(difference(got, wanted), difference(got, whole));
  REQUIRE(difference(got, wanted) < .1);
  REQUIRE(difference(got, wanted) * 5 < difference(got, whole));  // it is not what everything would give
  REQUIRE(cells_of(compacted.engine) == kept + 20);
}

TEST_CASE("compacted cells give what the policy's rows give", "[llama]") {
  compare(presets::snapkv{.tokens = 64, .after = 0}, {}, 64);
  compare(presets::snapkv{.tokens = 64, .after = 0}, {.micro_batch = 64, .type = GGML_TYPE_Q8_0}, 64);
  compare(presets::snapkv{.tokens = 64, .after = 0}, {.type = GGML_TYPE_Q8_0}, 64, {.head_dim = 64});
  compare(presets::knorm{.tokens = 80}, {.type = GGML_TYPE_BF16}, 80);
  compare(presets::chunkkv{.tokens = 64, .after = 0}, {}, 58);  // whole chunks
}

TEST_CASE("a compacted sequence goes on, and is compacted again after another prompt", "[llama]") {
  model_owner const model = tiny_llama();
  compacting<presets::snapkv> compacted(model.get(), presets::snapkv{.tokens = 64, .after = 0});
  compacted.engine.feed(random_tokens(200));
  REQUIRE(compacted.with.compact(compacted.engine.context()).kept == 64);
  decode_each(compacted.engine, random_tokens(10, 3));
  compacted.engine.feed(random_tokens(100, 5));
  compaction const again = compacted.with.compact(compacted.engine.context());
  REQUIRE(again.tokens == 174);
  REQUIRE(again.kept == 64);
  REQUIRE(llama_memory_seq_pos_max(compacted.engine.memory(), 0) == 309);
  REQUIRE(compacted.with.compact(compacted.engine.context()).kept == 64);  // nothing is left to drop
  compacted.engine.feed(random_tokens(50, 9));
  REQUIRE(compacted.engine.cut(340));
  REQUIRE_THROWS_AS(compacted.with.compact(compacted.engine.context()), invalid_value);  // whose are the last queries?
  compacted.engine.feed(random_tokens(10, 10));
  REQUIRE(compacted.with.compact(compacted.engine.context()).tokens == 64 + 30 + 10);
  compacted.engine.feed(random_tokens(20, 12));
  REQUIRE(compacted.engine.cut(369));
  compacted.engine.feed(random_tokens(2, 13));  // those before the cut count, those behind it do not
  REQUIRE(compacted.with.compact(compacted.engine.context()).tokens == 64 + 19 + 2);
  compacted.engine.clear();
  compacted.engine.feed(random_tokens(3, 8));  // fewer than the policy looks at; those before were another's
  REQUIRE(compacted.with.compact(compacted.engine.context()).kept == 3);
}

TEST_CASE("sequences of a unified cache are compacted one by one, by keys", "[llama]") {
  model_owner const model = tiny_llama();
  context_options const options{.sequences = 2, .unified = true};
  compacting<presets::knorm> compacted(model.get(), presets::knorm{.tokens = 40}, options);
  decoder reference(model.get(), parameters({}));
  for (llama_seq_id s = 0; s < 2; ++s) {
    token_list const tokens = random_tokens(100, static_cast<std::uint64_t>(s + 1));
    REQUIRE(compacted.engine.status_of(tokens, std::vector<llama_seq_id>(tokens.size(), s)) == 0);
  }
  REQUIRE(compacted.with.compact(compacted.engine.context(), 1).kept == 40);
  REQUIRE(cells_of(compacted.engine, 1) == 40);
  REQUIRE(cells_of(compacted.engine, 0) == 100);
}

TEST_CASE("sequences of a unified cache are compacted by their own queries, whatever batches bring them", "[llama]") {
  model_owner const model = tiny_llama();
  presets::snapkv const policy{.tokens = 40, .after = 0};
  compacting<presets::snapkv> both(model.get(), policy, {.micro_batch = 32, .sequences = 2, .unified = true});
  token_list const prompts[2] = {random_tokens(150, 1), random_tokens(110, 2)};
  std::size_t next[2] = {0, 0};
  auto const bring = [&](token_list const& tokens, std::vector<llama_seq_id> const& of) {
    both.with.set_batch(of);
    REQUIRE(both.engine.status_of(tokens, of) == 0);
  };
  for (std::size_t turn = 0; next[0] < prompts[0].size() || next[1] < prompts[1].size(); ++turn) {
    token_list tokens;
    std::vector<llama_seq_id> of;
    for (std::size_t i = 0; i < 50; ++i) {  // first in runs, then token by token
      std::size_t s = turn % 2 == 0 ? i / 25 : i % 2;
      if (next[s] == prompts[s].size()) s = 1 - s;
      if (next[s] == prompts[s].size()) break;
      tokens.push_back(prompts[s][next[s]++]);
      of.push_back(static_cast<llama_seq_id>(s));
    }
    bring(tokens, of);
  }
  REQUIRE(both.with.compact(both.engine.context(), 1).kept == 40);
  bring({5, 6, 7}, {0, 0, 0});
  REQUIRE(both.with.compact(both.engine.context(), 0).tokens == 153);
  REQUIRE(cells_of(both.engine, 1) == 40);
  for (llama_seq_id s = 0; s < 2; ++s) {
    CAPTURE(s);
    compacting<presets::snapkv> alone(model.get(), policy);
    alone.engine.feed(prompts[s]);
    if (s == 0) alone.engine.feed({5, 6, 7});
    alone.with.compact(alone.engine.context());
    logits const wanted = alone.engine.feed(llama_token{9});
    bring({9}, {s});
    float const* const got = llama_get_logits_ith(both.engine.context(), -1);
    REQUIRE(difference(logits(got, got + wanted.size()), wanted) < .02);
  }
  // One goes on while the other one's next prompt comes.
  bring({3, 4, 5, 6}, {0, 1, 1, 1});
  REQUIRE(both.with.compact(both.engine.context(), 1).tokens == 44);
}

TEST_CASE("a callback that the parameters had still gets the nodes that it asks for", "[llama]") {
  struct counts {
    int asked = 0;
    int got = 0;
  } seen;
  model_owner const model = tiny_llama();
  compactor with(presets::snapkv{.tokens = 32, .after = 0});
  llama_context_params params = parameters({});
  params.cb_eval = [](ggml_tensor* node, bool ask, void* data) {
    auto& mine = *static_cast<counts*>(data);
    bool const wanted = node->op == GGML_OP_ROPE;
    if (ask) mine.asked += wanted ? 1 : 0;
    else mine.got += wanted ? 1 : 1000;
    return ask ? wanted : true;
  };
  params.cb_eval_user_data = &seen;
  with.attach(params, model.get());
  decoder engine(model.get(), params);
  engine.feed(random_tokens(50));
  REQUIRE(seen.asked > 0);
  REQUIRE(seen.got == seen.asked);
  REQUIRE(with.compact(engine.context()).kept == 32);
}

TEST_CASE("what can't be compacted is refused by name", "[llama]") {
  auto const says = [](auto const& call, char const* part) {
    try {
      call();
    } catch (error const& refusal) {
      REQUIRE_THAT(refusal.what(), ContainsSubstring(part));
      return;
    }
    FAIL("nothing was refused; wanted: " << part);
  };
  says([] { compactor(presets::quest{}); }, "chooses what to read");
  says([] { compactor(presets::full{}); }, "drops nothing");
  says([] { compactor(presets::h2o{}); }, "drops tokens in steps");
  says([] { compactor(presets::snapkv{.after = 16}); }, "set its after to 0");

  model_owner const model = tiny_llama();
  compactor by_queries(presets::snapkv{.tokens = 32, .after = 0});
  says([&] { by_queries.compact(nullptr); }, "before attach()");
  llama_context_params encoder = parameters({});
  says([&] { by_queries.attach(encoder, header_of("t5").get()); }, "encoder");
  compacting<presets::snapkv> two(model.get(), presets::snapkv{.tokens = 32, .after = 0}, {.sequences = 2, .unified = true});
  two.engine.feed(random_tokens(50));
  says([&] { two.with.compact(two.engine.context()); }, "call set_batch()");
  llama_context_params params = parameters({.sequences = 2});
  says([&] { by_queries.attach(params, model.get()); }, "set kv_unified");
  params = parameters({});
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  says([&] { by_queries.attach(params, model.get()); }, "flash attention");
  model_owner const windowed = tiny_sliding_window();
  params = parameters({});
  says([&] { by_queries.attach(params, windowed.get()); }, "sliding windows");

  compacting<presets::adakv> uneven(model.get(), presets::adakv{.tokens = 40, .after = 0});
  says([&] { uneven.with.compact(uneven.engine.context()); }, "has no tokens");
  uneven.engine.feed(random_tokens(200));
  says([&] { uneven.with.compact(uneven.engine.context()); }, "the same in all layers and heads");
  REQUIRE(cells_of(uneven.engine) == 200);
  says([&] { uneven.with.compact(uneven.engine.context(), -1); }, "sequence -1");
  says([&] { uneven.with.compact(uneven.engine.context(), 1); }, "sequence 1 of a context for 1");
}

}  // namespace
}  // namespace kvpolicy::llama::testing
