// Every family of models that people run, against the engine itself; docs/llama.md has what comes out as a table.
#include "families.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "decoding.hpp"
#include "kvpolicy/presets/expected_attention.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "published.hpp"

namespace kvpolicy::llama::testing {
namespace {

token_list const tokens = random_tokens(330);
token_list const prompt(tokens.begin(), tokens.begin() + 300);
token_list const answer(tokens.begin() + 300, tokens.begin() + 310);
token_list const question(tokens.begin() + 310, tokens.begin() + 325);
token_list const second(tokens.begin() + 325, tokens.end());

struct run {
  std::vector<logits> answers{};  ///< of the steps, of a further prompt's end, and of further steps
  std::string refused{};          ///< empty: it was served
  std::string left{};             ///< the report's lines
  double read = 0;                ///< tokens, in the last step
  std::int64_t layers = 0;        ///< that a step chose for
  std::int64_t bytes = 0;         ///< of a managed cache
  llama_pos cells = 0;            ///< of the sequence, in the engine's cache
};

/// A managed cache keeps a window's cells, of which Llama 4 has 8,192.
llama_context_params parameters_for(llama_model const* model) {
  return parameters({.tokens = llama_model_n_swa(model) > 300 ? 16384u : 1024u, .micro_batch = 128, .threads = 2});
}

template <class Preset>
run decoded(llama_model* model, Preset const& preset, session_options options = {}) {
  run made;
  bool const managed = options.cache.has_value();
  std::vector<std::int64_t> chosen;
  options.on_choice = [&](llama_seq_id, layer_id layer, std::int64_t, selection const&) { chosen.push_back(layer.value); };
  try {
    session policy(preset, options);
    llama_context_params params = parameters_for(model);
    policy.attach(params, model);
    decoder ours(model, params);
    auto const feed = [&](token_list some) {
      llama_batch const batch = llama_batch_get_one(some.data(), static_cast<std::int32_t>(some.size()));
      int const status = managed ? policy.decode(ours.context(), batch) : llama_decode(ours.context(), batch);
      policy.check();
      REQUIRE(status == 0);
      float const* const last = llama_get_logits_ith(ours.context(), -1);
      made.answers.emplace_back(last, last + tiny_vocabulary);
    };
    feed(prompt);
    for (llama_token const token : answer) feed({token});
    feed(question);
    for (llama_token const token : second) feed({token});
    made.read = policy.last_step().tokens_read;
    for (std::string const& line : policy.report()) made.left += (made.left.empty() ? "" : "; ") + line;
    std::ranges::sort(chosen);
    made.layers = std::distance(chosen.begin(), std::ranges::unique(chosen).begin());
    made.bytes = policy.memory().bytes;
    made.cells = llama_memory_seq_pos_max(ours.memory(), 0) - llama_memory_seq_pos_min(ours.memory(), 0) + 1;
  } catch (unsupported const& why) {
    made.refused = why.what();
  }
  return made;
}

std::vector<logits> of_engine(llama_model* model, bool flash = true) {
  llama_context_params params = parameters_for(model);
  if (!flash) params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  decoder engine(model, params);
  std::vector<logits> all{engine.feed(prompt)};
  for (logits& each : decode_each(engine, answer)) all.push_back(std::move(each));
  all.push_back(engine.feed(question));
  for (logits& each : decode_each(engine, second)) all.push_back(std::move(each));
  return all;
}

/// Reasons without the tiny model's numbers: "2 of 4 attention layers are the engine's: sliding windows of 64 tokens".
std::string reasons(std::string of) {
  of =
      std::regex_replace(of, std::regex("(no layer can be served: )?[0-9]+ of [0-9]+ attention layers are the engine's: "), "");
  of = std::regex_replace(of, std::regex(" \\(an encoder, or a cache of another kind\\) is not supported"), "");
  of = std::regex_replace(of, std::regex("sliding windows of [0-9]+ tokens"), "sliding windows");
  return std::regex_replace(of, std::regex("keys of [0-9]+ and values of [0-9]+ elements: heads of unequal size.*"),
                            "keys and values of unequal sizes");
}

/// A row of the documents' table.
std::string row_of(family const& of, run const& full, run const& undone, run const& managed) {
  bool const chosen = full.left.find("indexer chooses") != std::string::npos;
  std::string const layers = chosen
                                 ? "the model's own indexer chooses: `full` reads exactly that, and no other policy is served"
                             : !full.refused.empty() ? "none: " + reasons(full.refused)
                             : full.left.empty()     ? "all"
                                                     : "all but those with " + reasons(full.left);
  auto const said = [&](run const& each) {
    return chosen || !full.refused.empty() ? ""
           : each.refused.empty()          ? "yes"
                                           : "no: " + reasons(each.refused.substr(0, each.refused.find_first_of("(;")));
  };
  std::string const row = "| " + std::string(of.models) + " (`" + of.architecture + "`) | " + layers + " | " + said(undone) +
                          " | " + said(managed) + " |";
  return std::regex_replace(row, std::regex(" +"), " ");
}

std::string documented(std::string const& architecture) {
  std::ifstream from(KVPOLICY_TEST_DOCUMENTS "/llama.md");
  REQUIRE(from.good());
  for (std::string line; std::getline(from, line);)
    if (line.find("(`" + architecture + "`)") != std::string::npos && line.starts_with("| ")) return line;
  return "none";
}

TEST_CASE("every family of models is served as the documents' table says, with the engine's logits") {
  family const of = GENERATE(from_range(families().begin(), families().end()));
  model_owner const model = tiny_model_of(of.architecture);
  std::vector<logits> const engine = of_engine(model.get());
  run const full = decoded(model.get(), presets::full{});
  run const undone = decoded(model.get(), presets::expected_attention{.tokens = 64});
  run const managed =
      decoded(model.get(), presets::snapkv{.tokens = 64, .after = 0}, {.cache = managed_cache{.longest = 1024}});
  CAPTURE(of.architecture);
  std::string const row = row_of(of, full, undone, managed);
  CAPTURE(documented(of.architecture), row);
  CHECK(std::string_view(documented(of.architecture)) == row);
  if (!full.refused.empty()) return;

  // The engine's own two kernels say how much rounding is worth in this model.
  double const rounding = std::clamp(4 * difference(engine, of_engine(model.get(), false)), .0005, .5);
  CAPTURE(rounding, difference(full.answers, engine));
  CHECK(difference(full.answers, engine) < rounding);
  if (full.layers == 0) {  // the model chooses
    CHECK(undone.refused.find("own indexer chooses") != std::string::npos);
    return;
  }
  run const quest = decoded(model.get(), presets::quest{.tokens = 64});
  run const snapkv = decoded(model.get(), presets::snapkv{.tokens = 64, .after = 0});
  for (run const* const each : {&quest, &snapkv, &undone}) {
    if (!each->refused.empty()) continue;
    CHECK(each->layers == full.layers);
    CHECK((each->read > 40 && each->read < 130));
    CHECK(difference(each->answers.front(), engine.front()) < rounding);  // the prompt is whole
    CHECK(difference(each->answers[3], engine[3]) > std::min(.1, rounding));
  }
  if (!managed.refused.empty()) return;
  std::vector<logits> const once(managed.answers.begin(),
                                 managed.answers.begin() + 11);  // then a prompt lacks what was dropped
  CHECK(difference(once, {snapkv.answers.begin(), snapkv.answers.begin() + 11}) < rounding);
  CHECK((managed.cells < 200 || llama_model_n_swa(model.get()) > 300));
  CHECK(managed.bytes > 0);
}

// Values are a part of the keys' rows (DeepSeek), or have a width of their own (MiniCPM3).
TEST_CASE("policies serve keys and values of unequal widths, or say why not") {
  std::string const architecture = GENERATE("deepseek2", "minicpm3");
  model_owner const model = tiny_model_of(architecture);
  std::vector<logits> const engine = of_engine(model.get());
  CAPTURE(architecture);
  for (std::string const text : {"chess:tokens=100,pre_rope=0", "chunkkv:tokens=100,after=0", "streaming_llm:tokens=100",
                                 "h2o:tokens=100", "tova:tokens=100", "knorm:tokens=100", "snapkv:tokens=100,after=0",
                                 "pyramidkv:tokens=100,after=0", "adakv:tokens=100,after=0", "keydiff:tokens=100",
                                 "quest:tokens=100", "infllm:tokens=100,pre_rope=0,block=8,local=16,recent_blocks=2",
                                 "lagkv:tokens=100,lag=16", "omnikv:tokens=100,dense_first=0", "twilight:tokens=100",
                                 "rocketkv:tokens=100,after=0", "snapkv:tokens=200,after=0+quest:tokens=60"}) {
    CAPTURE(text);
    run const made = decoded(model.get(), known_policies().parse(text, {}).policy);
    CHECK(made.refused.empty());
    if (!made.refused.empty()) continue;
    CHECK(made.read < 320);
    CHECK(difference(made.answers, engine) > .02);
  }
  for (std::string const text : {"chess:tokens=100", "infllm:tokens=100", "expected_attention:tokens=100"}) {
    CAPTURE(text);
    CHECK(decoded(model.get(), known_policies().parse(text, {}).policy).refused.find("rotary embedding") != std::string::npos);
  }
}

/// Beside the cells that the session gives back, the engine has its own of these models.
TEST_CASE("a managed cache goes on only where the engine has what it needs of windows and recurrent states") {
  std::string const architecture = GENERATE("gemma3", "gpt-oss", "granitehybrid", "nemotron_h");
  CAPTURE(architecture);
  model_owner const model = tiny_model_of(architecture);
  bool const windows = llama_model_n_swa(model.get()) > 0;
  session by(presets::full{}, {.cache = managed_cache{.longest = 1024}});
  llama_context_params params = parameters({.micro_batch = 128, .threads = 2, .sequences = 2, .unified = true});
  by.attach(params, model.get());
  decoder ours(model.get(), params);
  auto const fed = [&](token_list some, llama_seq_id of, llama_pos from) {
    std::vector<llama_seq_id*> ids(some.size(), &of);
    std::vector<std::int32_t> const ones(some.size(), 1);
    std::vector<llama_pos> positions(some.size());
    for (std::size_t i = 0; i < some.size(); ++i) positions[i] = from + static_cast<llama_pos>(i);
    llama_batch const batch{static_cast<std::int32_t>(some.size()), some.data(), nullptr, positions.data(),
                            const_cast<std::int32_t*>(ones.data()), ids.data(),  nullptr};
    if (by.decode(ours.context(), batch) != 0) by.check();
    float const* const last = llama_get_logits_ith(ours.context(), -1);
    return logits(last, last + tiny_vocabulary);
  };
  // Two sequences in turns, in prompts of several micro-batches, give what each gives alone.
  decoder alone(model.get(), parameters({.micro_batch = 128, .threads = 2}));
  token_list const other = random_tokens(300, 5);
  std::vector<logits> const first{alone.feed(prompt), alone.feed(token_list{7})};
  alone.clear();
  std::vector<logits> const second_one{alone.feed(other), alone.feed(token_list{7})};
  CHECK(difference(fed(prompt, 0, 0), first[0]) < .05);
  CHECK(difference(fed(other, 1, 0), second_one[0]) < .05);
  CHECK(difference(fed({7}, 0, 300), first[1]) < .05);
  CHECK(difference(fed({7}, 1, 300), second_one[1]) < .05);
  // Tokens that the engine does not have the cells or states before.
  if (windows) {
    REQUIRE(llama_memory_seq_rm(ours.memory(), 0, 270, -1));
    by.cut(0, 270);
    CHECK_THROWS_WITH(fed({7}, 0, 270), Catch::Matchers::ContainsSubstring("goes on at position 270"));
  }
  llama_memory_seq_rm(ours.memory(), 0, -1, -1);
  by.end(0);
  by.copy(1, 0);  // without llama_memory_seq_cp
  CHECK_THROWS_WITH(fed({7}, 0, 301), Catch::Matchers::ContainsSubstring("goes on at position 301"));
  CHECK_NOTHROW(fed({7}, 1, 301));
}

TEST_CASE("where the model chooses, no sequence gets a policy that would choose otherwise") {
  model_owner const model = tiny_model_of("deepseek32");
  llama_context_params params = parameters({});
  session by(presets::full{});
  by.use(presets::quest{.tokens = 64}, 1);
  CHECK_THROWS_WITH(by.attach(params, model.get()), Catch::Matchers::ContainsSubstring("own indexer chooses"));
  session other(presets::full{});
  other.attach(params, model.get());
  CHECK_THROWS_WITH(other.use(presets::quest{.tokens = 64}), Catch::Matchers::ContainsSubstring("own indexer chooses"));
  CHECK_THROWS_WITH(other.use(presets::quest{.tokens = 64}, 1), Catch::Matchers::ContainsSubstring("own indexer chooses"));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
