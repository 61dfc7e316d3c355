// A text that the model repeats: what kvzip keeps of it is what the engine's own queries attended to, and later prompts go on.
#include "kvpolicy/interop/llama/repetition.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <vector>

#include "attention_probe.hpp"
#include "decoding.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/kvzip.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/tiers/host.hpp"
#include "managed_cache_context.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr tiny_shape shape{};
constexpr std::int64_t text = 260;
constexpr std::int64_t piece = 100;

/// The largest weights that the piece of this node gives tokens [begin, end) of the text, `[kv_heads, end - begin]`. Its
/// queries attend to the first `sinks` tokens, to what they repeat and to themselves.
std::vector<std::vector<double>> largest_weights(seen_attention const& node, std::int64_t sinks, std::int64_t begin,
                                                 std::int64_t end) {
  std::vector<std::vector<double>> most(static_cast<std::size_t>(node.kv_heads),
                                        std::vector<double>(static_cast<std::size_t>(end - begin)));
  for (std::int64_t q = 0; q < node.q_heads; ++q) {
    std::int64_t const head = q / (node.q_heads / node.kv_heads);
    for (std::int64_t i = 0; i < node.queries; ++i) {
      double total = 0;
      auto const weight = [&](std::int64_t t) {
        double sum = 0;
        for (std::int64_t d = 0; d < node.head_dim; ++d) {
          sum += static_cast<double>(node.q[static_cast<std::size_t>((i * node.q_heads + q) * node.head_dim + d)]) *
                 static_cast<double>(node.keys[static_cast<std::size_t>((t * node.kv_heads + head) * node.head_dim + d)]);
        }
        return std::exp(sum / std::sqrt(static_cast<double>(node.head_dim)));
      };
      std::vector<double> of_text;
      for (std::int64_t t = 0; t < std::min(sinks, begin); ++t) total += weight(t);
      for (std::int64_t t = begin; t < end; ++t) total += of_text.emplace_back(weight(t));
      for (std::int64_t t = text; t <= text + i; ++t) total += weight(t);
      for (std::size_t t = 0; t < of_text.size(); ++t) {
        double& best = most[static_cast<std::size_t>(head)][t];
        best = std::max(best, of_text[t] / total);
      }
    }
  }
  return most;
}

TEST_CASE("kvzip keeps what the engine's own queries attend to while the model repeats the text") {
  model_owner const model = tiny_llama(shape);
  presets::kvzip const policy{.tokens = 60, .sinks = 3};
  std::vector<made_choice> choices;
  session ours(policy, recording(choices));
  llama_context_params params = parameters({});
  ours.attach(params, model.get());
  attention_probe probe(params);
  decoder engine(model.get(), params);
  engine.feed(random_tokens(text));
  probe.seen.clear();
  repeat(ours, engine.context(), {.piece = piece});
  REQUIRE(llama_memory_seq_pos_max(engine.memory(), 0) == text - 1);
  REQUIRE(std::ssize(probe.seen) == 3 * shape.layers);  // three pieces

  struct scored {
    double score;
    std::int64_t layer, head, token;
  };
  std::vector<scored> all;
  for (std::int64_t p = 0; p < 3; ++p) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      seen_attention const& node = probe.seen[static_cast<std::size_t>(p * shape.layers + l)];
      std::int64_t const begin = p * piece;
      std::int64_t const end = std::min(text, begin + piece);
      REQUIRE(node.first == text);
      REQUIRE(node.queries ==
              end - begin + (p == 0 ? 0 : 8));  // the text, behind the last tokens before it; tiny models have no words
      auto const most = largest_weights(node, policy.sinks, begin, end);
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        for (std::int64_t t = std::max<std::int64_t>(begin, policy.sinks); t < end; ++t)
          all.push_back({most[static_cast<std::size_t>(h)][static_cast<std::size_t>(t - begin)], l, h, t});
      }
    }
  }
  std::ranges::sort(all, std::ranges::greater{}, &scored::score);
  all.resize(static_cast<std::size_t>((policy.tokens - policy.sinks) * shape.layers * shape.kv_heads));

  engine.feed(random_tokens(20, 5));  // a question
  decode_each(engine, random_tokens(2, 3));
  ours.check();
  REQUIRE(std::ssize(choices) == 2 * shape.layers);
  std::int64_t differ = 0;
  std::vector<std::size_t> lengths;
  for (made_choice const& choice : choices) {
    REQUIRE(std::ssize(choice.lists) == shape.kv_heads);
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      std::vector<bool> want(static_cast<std::size_t>(choice.tokens));
      for (std::int64_t t = 0; t < choice.tokens; ++t) want[static_cast<std::size_t>(t)] = t < policy.sinks || t >= text;
      for (scored const& one : all) {
        if (one.layer == choice.layer && one.head == h) want[static_cast<std::size_t>(one.token)] = true;
      }
      std::vector<bool> got(want.size());
      for (token_range const& range : choice.lists[static_cast<std::size_t>(h)]) {
        for (std::int32_t t = range.begin; t < range.end; ++t) got[static_cast<std::size_t>(t)] = true;
      }
      for (std::size_t t = 0; t < want.size(); ++t) differ += got[t] != want[t] ? 1 : 0;
      lengths.push_back(static_cast<std::size_t>(std::ranges::count(got, true)));
    }
  }
  CHECK(differ == 0);
  CHECK(std::ranges::adjacent_find(lengths, std::ranges::not_equal_to{}) != lengths.end());  // heads keep other numbers
}

TEST_CASE("a repetition that drops nothing changes nothing of what follows") {
  model_owner const model = tiny_llama(shape);
  auto const follow = [&](auto const& policy, bool repeated = true) {
    session ours(policy);
    decoder engine(model.get(), &ours, {});
    engine.feed(random_tokens(text));
    if (repeated) repeat(ours, engine.context(), {.piece = piece});
    std::vector<logits> all{engine.feed(random_tokens(20, 5))};
    for (logits const& one : decode_each(engine, random_tokens(6, 3))) all.push_back(one);
    return all;
  };
  REQUIRE(difference(follow(presets::kvzip{.ratio = 0.0}), follow(presets::full{})) < 1e-3);
  REQUIRE(difference(follow(presets::kvzip{.tokens = 20}), follow(presets::full{})) > 1e-2);
  presets::snapkv const snapkv{.tokens = 60, .after = 0};  // which needs no repetition, so there is none
  REQUIRE(identical(follow(snapkv), follow(snapkv, false)));
}

TEST_CASE("a managed cache frees what a repetition did not choose, and its state goes on elsewhere") {
  presets::kvzip const policy{.tokens = 50};
  constexpr context_options few_cells{.tokens = 256, .batch = 128, .micro_batch = 128};
  constexpr std::int64_t long_text = 600;
  owner own(policy, few_cells);
  own.feed(random_tokens(long_text));
  memory_statistics const whole = own.own().memory();
  REQUIRE(whole.rows == long_text * shape.layers * shape.kv_heads);
  repeat(own.own(), own.engine().context(), {.piece = 200});
  REQUIRE(own.own().memory().rows == 50 * shape.layers * shape.kv_heads);
  REQUIRE(own.own().tokens() == long_text);
  REQUIRE(own.own().goes_on_from() <= long_text);
  std::vector<std::byte> const saved = own.own().save_state("kvzip");

  owner other(policy, few_cells);
  other.own().load_state(saved, "kvzip");
  auto const ask = [](owner& with) {
    std::vector<logits> all{with.feed(random_tokens(30, 8), 0, static_cast<llama_pos>(long_text))};
    llama_pos next = static_cast<llama_pos>(long_text) + 30;
    for (llama_token const token : random_tokens(5, 9)) all.push_back(with.feed({token}, 0, next++));
    return all;
  };
  REQUIRE(identical(ask(other), ask(own)));
  REQUIRE(other.own().memory().rows == (50 + 35) * shape.layers * shape.kv_heads);

  // The engine's own cells choose the same.
  model_owner const model = tiny_llama(shape);
  session plain(policy);
  decoder engine(model.get(), &plain, {.micro_batch = 128});
  engine.feed(random_tokens(long_text));
  repeat(plain, engine.context(), {.piece = 200});
  std::vector<logits> all{engine.feed(random_tokens(30, 8))};
  for (llama_token const token : random_tokens(5, 9)) all.push_back(engine.feed(token));
  owner third(policy, few_cells);
  third.feed(random_tokens(long_text));
  repeat(third.own(), third.engine().context(), {.piece = 200});
  REQUIRE(difference(ask(third), all) < .05);
}

TEST_CASE("a repetition that can't be is refused, and the sequence goes on as it was") {
  model_owner const model = tiny_llama(shape);
  session ours(presets::kvzip{.tokens = 50});
  REQUIRE_THROWS_WITH(repeat(ours, nullptr, {}), ContainsSubstring("call attach() first"));
  decoder engine(model.get(), &ours, {.tokens = 512});
  REQUIRE_THROWS_WITH(repeat(ours, engine.context(), {}), ContainsSubstring("has seen no token of sequence 0"));
  engine.feed(random_tokens(300));
  REQUIRE_THROWS_WITH(repeat(ours, engine.context(), {.first = 300}), ContainsSubstring("has 300 tokens"));
  REQUIRE_THROWS_WITH(repeat(ours, engine.context(), {.piece = 0}), ContainsSubstring("a piece at least 1"));
  engine.feed(llama_token{1});
  REQUIRE(ours.last_step().tokens_read == 301);
  repeat(ours, engine.context());  // in pieces as small as the room behind the text
  REQUIRE(llama_memory_seq_pos_max(engine.memory(), 0) == 300);
  engine.feed(llama_token{2});
  REQUIRE(ours.last_step().tokens_read == 51);
  engine.feed(random_tokens(205, 4));
  REQUIRE_THROWS_WITH(repeat(ours, engine.context()), ContainsSubstring("raise n_ctx"));
  engine.feed(llama_token{2});
  REQUIRE(ours.last_step().tokens_read == 50 + 1 + 205 + 1);
}

TEST_CASE("a text is repeated whatever else the session keeps of the prompt, and a retrieve chooses among what is left") {
  model_owner const model = tiny_llama(shape);
  auto const read = [&](auto const& policy, std::int64_t queries) {
    std::vector<made_choice> choices;
    session ours(policy, recording(choices, queries));
    decoder engine(model.get(), &ours, {});
    engine.feed(random_tokens(text));
    repeat(ours, engine.context(), {.piece = piece});
    decode_each(engine, random_tokens(2, 3));
    return choices;
  };
  auto const few = read(presets::kvzip{.tokens = 60}, 0);
  REQUIRE(read(presets::kvzip{.tokens = 60}, all_queries) == few);
  auto const both = read(presets::kvzip{.tokens = 60} + presets::quest{.tokens = 16}, 0);
  REQUIRE(both.size() == few.size());
  for (std::size_t i = 0; i < few.size(); ++i) {
    for (std::size_t h = 0; h < few[i].lists.size(); ++h) {
      REQUIRE(token_count(both[i].lists[h]) <= 16);
      for (token_range const& range : both[i].lists[h]) {
        for (std::int32_t t = range.begin; t < range.end; ++t) {
          REQUIRE(std::ranges::any_of(few[i].lists[h], [&](token_range const& r) { return r.begin <= t && t < r.end; }));
        }
      }
    }
  }
}

TEST_CASE("a copy of a compressed text goes on with what was chosen, and other tokens are not taken for it") {
  model_owner const model = tiny_llama(shape);
  session ours(presets::kvzip{.tokens = 50});
  decoder engine(model.get(), &ours, {.tokens = 2048, .sequences = 2});
  engine.feed(random_tokens(300));
  repeat(ours, engine.context());
  llama_memory_seq_cp(engine.memory(), 0, 1, -1, -1);
  for (llama_seq_id const of : {0, 1}) {
    REQUIRE(engine.status_of({5}, {of}) == 0);
    REQUIRE(ours.last_step(of).tokens_read == 51);
  }
  // Sequence 1 becomes another text of the same length, which the session sees when its next tokens are decoded.
  llama_memory_seq_rm(engine.memory(), -1, -1, -1);
  engine.feed(random_tokens(301, 11));
  llama_memory_seq_cp(engine.memory(), 0, 1, -1, -1);
  REQUIRE_THROWS_WITH(repeat(ours, engine.context(), {}, 1), ContainsSubstring("other tokens than the session knew"));
  REQUIRE(llama_memory_seq_pos_max(engine.memory(), 1) == 300);
  REQUIRE(engine.status_of({5}, {1}) == 0);
  REQUIRE(ours.last_step(1).tokens_read == 302);
  repeat(ours, engine.context(), {}, 1);
  REQUIRE(engine.status_of({6}, {1}) == 0);
  REQUIRE(ours.last_step(1).tokens_read == 51);
}

TEST_CASE("a text whose rows a tier may have is not repeated") {
  tiers::any_tier host = tiers::any_tier::of<tiers::host>(std::int64_t{128}, std::int64_t{1} << 12);
  owner own(presets::kvzip{.tokens = 50}, {.tokens = 512}, {.tier = &host});
  own.feed(random_tokens(200));
  REQUIRE_THROWS_WITH(repeat(own.own(), own.engine().context()), ContainsSubstring("leave the tier out"));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
