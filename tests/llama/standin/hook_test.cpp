// libkvpolicy-ggml.so's code before the device: prompts are the engine's, steps read what a policy chooses, by the library's
// kernels from their PTX. Logits are those of a session on the host.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "decoding.hpp"
#include "device.hpp"
#include "hook.hpp"
#include "published.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

std::vector<std::string> said;  ///< by the hook, since the last policy

void put_before_device(std::string const& policy) {
  register_standin();
  ggml::expect_sequences(1);
  said.clear();
  ggml::put_before_devices(policy, [](std::string const& line) { said.push_back(line); });
}

/// Contexts of a model on the device decode under the policy from here on.
model_owner under(std::string const& policy, tiny_shape shape = {}) {
  put_before_device(policy);
  shape.gpu_layers = 99;
  return tiny_llama(shape);
}

/// A batch of these sequences' tokens: the logits behind each one's last.
std::vector<logits> decode(decoder& with, session* by, std::vector<std::pair<llama_seq_id, token_list>> const& parts) {
  std::size_t count = 0;
  for (auto const& [sequence, tokens] : parts) count += tokens.size();
  llama_batch batch = llama_batch_init(static_cast<std::int32_t>(count), 0, 1);
  std::vector<std::int32_t> last;
  for (auto const& [sequence, tokens] : parts) {
    llama_pos position = llama_memory_seq_pos_max(with.memory(), sequence) + 1;
    for (llama_token const token : tokens) {
      std::int32_t const i = batch.n_tokens++;
      batch.token[i] = token;
      batch.pos[i] = position++;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = sequence;
      batch.logits[i] = 0;
    }
    last.push_back(batch.n_tokens - 1);
    batch.logits[last.back()] = 1;
  }
  if (by != nullptr) by->set_batch(batch);
  int const status = llama_decode(with.context(), batch);
  llama_batch_free(batch);
  if (by != nullptr) by->check();
  if (status != 0) throw std::runtime_error(said.empty() ? "not decoded" : said.back());
  std::vector<logits> all;
  for (std::int32_t const i : last) {
    float const* const row = llama_get_logits_ith(with.context(), i);
    all.emplace_back(row, row + tiny_vocabulary);
  }
  return all;
}

/// A prompt in two batches, steps, a further prompt and steps.
std::vector<logits> chat(decoder& with) {
  std::vector<logits> all;
  with.feed(random_tokens(130));
  all.push_back(with.feed(random_tokens(40, 2)));
  for (logits& each : decode_each(with, random_tokens(8, 3))) all.push_back(std::move(each));
  all.push_back(with.feed(random_tokens(50, 4)));
  for (logits& each : decode_each(with, random_tokens(6, 5))) all.push_back(std::move(each));
  return all;
}

std::vector<logits> on_host(std::string const& policy, context_options const& options, tiny_shape const& shape) {
  put_before_device("");
  model_owner const model = tiny_llama(shape);
  session by(known_policies().parse(policy, {}).policy);
  llama_context_params params = parameters(options);
  by.attach(params, model.get());
  decoder with(model.get(), params);
  return chat(with);
}

std::vector<logits> on_device(std::string const& policy, context_options const& options, tiny_shape const& shape) {
  model_owner const model = under(policy, shape);
  decoder with(model.get(), parameters(options));
  return chat(with);
}

void as_on_host(std::string const& policy, context_options const& options = {}, tiny_shape const& shape = {}) {
  CAPTURE(policy, options.type, options.micro_batch, shape.head_dim);
  REQUIRE(difference(on_device(policy, options, shape), on_host(policy, options, shape)) < .02);
}

TEST_CASE("steps before a device's engine are those of a session on the host", "[standin]") {
  as_on_host("full");
  as_on_host("quest:tokens=48,page=8");
  as_on_host("quest:tokens=48,page=8", {.micro_batch = 32}, {.head_dim = 64});
  as_on_host("snapkv:tokens=40,after=0", {.micro_batch = 12});
  as_on_host("full", {.type = GGML_TYPE_BF16});
}

TEST_CASE("every policy that a device serves steps there as on the host", "[standin][all]") {
  for (std::string const policy :
       {"streaming_llm:tokens=48", "snapkv:tokens=40,after=0", "snapkv:tokens=40,after=3",
        "pyramidkv:tokens=48,window=4,after=0", "adakv:tokens=40,after=0", "chunkkv:tokens=48,chunk=6,after=0",
        "knorm:tokens=40", "keydiff:tokens=30,sinks=2,recent=3", "lagkv:ratio=0.5,lag=8", "tova:tokens=40",
        "omnikv:tokens=40,dense_first=0,reuse=2", "chess:tokens=64,page=8,sink_pages=1,recent_pages=2,after=0",
        "twilight:tokens=40,page=8,mass=0.6", "rocketkv:tokens=24,kept=60,channels=3,after=0", "quest:tokens=48,page=8,after=2",
        "snapkv:tokens=60,window=8,after=0+quest:tokens=24,page=4"})
    as_on_host(policy);
}

TEST_CASE("a sequence on a device is taken back, begun anew and restored", "[standin]") {
  for (std::string const policy : {"snapkv:tokens=40,after=0", "quest:tokens=48,page=8", "knorm:tokens=40"}) {
    CAPTURE(policy);
    model_owner const model = under(policy);
    decoder with(model.get(), parameters({}));
    with.feed(random_tokens(150));
    std::vector<logits> const once = decode_each(with, random_tokens(6, 3));
    REQUIRE(with.cut(150));
    REQUIRE(difference(decode_each(with, random_tokens(6, 3)), once) < .02);
    std::vector<std::uint8_t> const state = with.state();
    std::vector<logits> const next = decode_each(with, random_tokens(3, 4));

    // Behind another text of as many tokens, or more, the restored one is a prompt.
    std::vector<std::vector<logits>> restored;
    for (std::int64_t const tokens : {153, 170}) {
      with.clear();
      with.feed(random_tokens(tokens, 9));
      decode_each(with, random_tokens(3, 8));
      with.restore(state);
      if (policy.starts_with("snapkv")) break;
      restored.push_back(decode_each(with, random_tokens(3, 4)));
    }
    if (policy.starts_with("quest")) restored.push_back(next);
    for (std::vector<logits> const& one : restored) REQUIRE(difference(one, restored.front()) < .02);
    if (!restored.empty()) continue;
    // Its choice needs queries that a state does not have: the engine goes on, as without a policy.
    std::vector<logits> const dense = decode_each(with, random_tokens(3, 4));
    REQUIRE(said.size() == 2);
    REQUIRE_THAT(said.back(), Catch::Matchers::ContainsSubstring("cache_prompt=false"));
    put_before_device("");
    decoder plain(model.get(), parameters({}));
    plain.restore(state);
    REQUIRE(difference(dense, decode_each(plain, random_tokens(3, 4))) < 1e-6);
  }
}

TEST_CASE("short turns, answers made anew and shifted positions go on as on the host", "[standin]") {
  auto const turns = [](decoder& with) {
    std::vector<logits> all;
    auto const steps = [&](std::int64_t count, std::uint64_t seed) {
      for (logits& each : decode_each(with, random_tokens(count, seed))) all.push_back(std::move(each));
    };
    with.feed(random_tokens(150));
    steps(5, 3);
    all.push_back(with.feed(random_tokens(3, 4)));
    steps(3, 5);
    llama_memory_seq_add(with.memory(), 0, 0, -1, 7);
    steps(3, 6);
    with.clear();
    with.feed(random_tokens(150, 8));
    steps(5, 3);
    with.cut(149);  // as a server makes an answer anew: the prompt's last token alone comes again
    all.push_back(with.feed(token_list{random_tokens(150, 8).back()}));
    steps(4, 7);
    return all;
  };
  for (std::string const policy : {"full", "quest:tokens=48,page=8"}) {
    CAPTURE(policy);
    model_owner const there = under(policy);
    decoder device(there.get(), parameters({}));
    std::vector<logits> const got = turns(device);
    put_before_device("");
    model_owner const here = tiny_llama();
    session by(known_policies().parse(policy, {}).policy);
    llama_context_params params = parameters({});
    by.attach(params, here.get());
    decoder host(here.get(), params);
    REQUIRE(difference(got, turns(host)) < .02);
  }
  // A policy that looks at a window has its queries, though the last one comes twice.
  model_owner const model = under("snapkv:tokens=40,after=0");
  decoder with(model.get(), parameters({}));
  with.feed(random_tokens(150));
  decode_each(with, random_tokens(5, 3));
  REQUIRE(with.cut(149));
  REQUIRE(with.status_of({random_tokens(150).back()}) == 0);
  REQUIRE(with.status_of(random_tokens(3, 4)) == 0);
  REQUIRE(with.status_of({5}) == 0);
}

/// Three users of one cache, together and alone; then what else happens to a sequence.
std::vector<logits> users(decoder& with, session* by, bool cuts, bool copies) {
  std::vector<logits> all;
  std::uint64_t seed = 20;
  auto const turn = [&](std::vector<std::pair<llama_seq_id, std::int64_t>> const& parts) {
    std::vector<std::pair<llama_seq_id, token_list>> given;
    for (auto const& [sequence, tokens] : parts) given.emplace_back(sequence, random_tokens(tokens, ++seed));
    for (logits& each : decode(with, by, given)) all.push_back(std::move(each));
  };
  turn({{0, 130}, {1, 90}});
  for (int i = 0; i < 6; ++i) turn({{0, 1}, {1, 1}});
  turn({{0, 1}, {2, 70}, {1, 1}});  // a prompt between steps
  for (int i = 0; i < 4; ++i) turn({{0, 1}, {1, 1}, {2, 1}});
  for (int i = 0; i < 3; ++i) turn({{1, 1}});
  for (int i = 0; i < 3; ++i) turn({{0, 1}, {2, 1}});
  if (cuts) REQUIRE(llama_memory_seq_rm(with.memory(), 1, 97, -1));
  turn({{1, 1}, {0, 1}});
  turn({{1, 30}, {0, 1}});
  for (int i = 0; i < 3; ++i) turn({{0, 1}, {1, 1}});
  REQUIRE(llama_memory_seq_rm(with.memory(), 2, -1, -1));
  turn({{2, 60}, {1, 1}});
  for (int i = 0; i < 3; ++i) turn({{0, 1}, {1, 1}, {2, 1}});
  if (!copies) return all;
  llama_memory_seq_cp(with.memory(), 2, 3, -1, -1);
  for (int i = 0; i < 3; ++i) turn({{3, 1}, {2, 1}, {1, 1}});
  return all;
}

TEST_CASE("several sequences of a cache step on a device as on the host, in streams and without", "[standin]") {
  for (std::string const policy : {"full", "quest:tokens=48,page=8", "snapkv:tokens=40,after=0", "snapkv:tokens=40,after=3",
                                   "omnikv:tokens=40,dense_first=0,reuse=2"})
    for (bool const unified : {true, false}) {
      CAPTURE(policy, unified);
      bool const cuts = !policy.starts_with("omnikv");            // on a device, what a cut leaves is a prompt, all of it
      bool const copies = cuts && !policy.starts_with("snapkv");  // a copy behind steps has not all of its prompt's queries
      context_options const options{.sequences = 4, .unified = unified};
      model_owner const there = under(policy);
      ggml::expect_sequences(4);
      decoder device(there.get(), parameters(options));
      std::vector<logits> const got = users(device, nullptr, cuts, copies);
      REQUIRE(said.size() == 1);
      put_before_device("");
      model_owner const here = tiny_llama();
      session by(known_policies().parse(policy, {}).policy);
      llama_context_params params = parameters(options);
      by.attach(params, here.get());
      decoder host(here.get(), params);
      std::vector<logits> const wanted = users(host, &by, cuts, copies);
      REQUIRE(got.size() == wanted.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        REQUIRE(difference(got[i], wanted[i]) < .02);
      }
    }
}

TEST_CASE("tokens whose order is not known are the engine's", "[standin]") {
  put_before_device("");
  model_owner const model = tiny_llama({.gpu_layers = 99});
  auto const state_of = [&](token_list const& tokens) {
    decoder elsewhere(model.get(), parameters({}));  // another process, for what the hook knows
    elsewhere.feed(tokens);
    return elsewhere.state();
  };
  token_list const text = random_tokens(150);
  std::vector<std::uint8_t> const longer = state_of(random_tokens(170));
  std::vector<std::uint8_t> const others[] = {state_of(random_tokens(150, 5)), state_of(random_tokens(150, 6))};
  put_before_device("streaming_llm:tokens=16");
  decoder with(model.get(), parameters({}));
  put_before_device("");
  decoder plain(model.get(), parameters({}));
  auto const goes_on_densely = [&](std::vector<std::uint8_t> const& state) {
    with.restore(state);
    plain.restore(state);
    return difference(decode_each(with, random_tokens(3, 4)), decode_each(plain, random_tokens(3, 4))) < 1e-5;
  };
  with.feed(text);
  std::vector<std::uint8_t> const known = with.state();
  CHECK(goes_on_densely(longer));  // its first tokens are known, and those behind them are not
  with.clear();
  with.feed(random_tokens(40, 9));
  with.restore(known);
  CHECK(goes_on_densely(longer));
  for (std::vector<std::uint8_t> const& other : others) CHECK(goes_on_densely(other));
  plain.restore(known);
  with.restore(known);
  CHECK(difference(decode_each(with, random_tokens(3, 4)), decode_each(plain, random_tokens(3, 4))) > .1);  // its own again
}

TEST_CASE("a new text takes the place of one that is over, and others keep what they know", "[standin]") {
  model_owner const model = under("snapkv:tokens=40,after=0");
  ggml::expect_sequences(4);
  for (bool const unified : {true, false}) {
    decoder with(model.get(), parameters({.tokens = 2048, .sequences = 4, .unified = unified}));
    for (llama_seq_id of = 0; of < 4; ++of) {
      decode(with, nullptr, {{of, random_tokens(100, 20 + static_cast<std::uint64_t>(of))}});
      decode(with, nullptr, {{of, {5}}});
    }
    REQUIRE(llama_memory_seq_rm(with.memory(), 0, -1, -1));
    decode(with, nullptr, {{0, random_tokens(90, 30)}, {1, {6}}, {2, {6}}, {3, {6}}});
    decode(with, nullptr, {{3, {7}}, {0, {7}}, {1, {7}}, {2, {7}}});
    llama_memory_seq_add(with.memory(), 2, 0, -1, 9);
    decode(with, nullptr, {{1, {8}}, {3, {8}}});
    CAPTURE(said.back());
    REQUIRE(std::ranges::none_of(said, [](std::string const& line) { return line.find("reads everything") != line.npos; }));
    decode(with, nullptr, {{2, {8}}});  // this one was shifted
    REQUIRE(said.back().find("reads everything") != std::string::npos);
    said.clear();
  }
}

TEST_CASE("a further prompt that is taken back does no harm", "[standin]") {
  model_owner const model = under("snapkv:tokens=40,after=0");
  decoder with(model.get(), parameters({}));
  with.feed(random_tokens(150));
  std::vector<logits> const once = decode_each(with, random_tokens(3, 4));
  with.feed(random_tokens(20, 5));
  REQUIRE(with.cut(153));
  decode_each(with, random_tokens(2, 6));
  REQUIRE(said.size() == 1);
}

TEST_CASE("what a device's steps can't serve is refused by name, and nothing is computed", "[standin]") {
  using Catch::Matchers::ContainsSubstring;
  REQUIRE_THROWS_WITH(put_before_device("sentencekv"), ContainsSubstring("token ids"));
  REQUIRE_THROWS_WITH(put_before_device("kvzip"), ContainsSubstring("repeated"));
  REQUIRE_THROWS_WITH(put_before_device("expected_attention"), ContainsSubstring("4096 queries"));
  REQUIRE_THROWS_WITH(put_before_device("questt"), ContainsSubstring("quest"));
  model_owner const model = under("full");
  for (ggml_type const type : {GGML_TYPE_Q8_0, GGML_TYPE_F32}) {
    decoder other(model.get(), parameters({.type = type}));
    REQUIRE(other.status_of(random_tokens(4)) != 0);
    REQUIRE_THAT(said.back(), ContainsSubstring("f16 or bf16"));
  }
  {
    llama_context_params params = parameters({});
    params.offload_kqv = false;
    decoder in_ram(model.get(), params);
    REQUIRE(in_ram.status_of(random_tokens(4)) != 0);
    REQUIRE_THAT(said.back(), ContainsSubstring("--no-kv-offload"));
  }
  {
    llama_context_params params = parameters({});
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    decoder plain(model.get(), params);
    REQUIRE(plain.status_of(random_tokens(4)) != 0);
    REQUIRE_THAT(said.back(), ContainsSubstring("--flash-attn on"));
  }
  for (std::int32_t const layers : {2, 0}) {  // the output, and one layer or none
    model_owner const in_part = tiny_llama({.layers = 4, .gpu_layers = layers});
    decoder with(in_part.get(), parameters({}));
    REQUIRE(with.status_of(random_tokens(4)) != 0);
    REQUIRE_THAT(said.back(), ContainsSubstring("--n-gpu-layers 999"));
  }
  {
    decoder drafts(model.get(), parameters({}));
    drafts.feed(random_tokens(20));
    token_list const tokens = random_tokens(3, 2);
    llama_batch batch = llama_batch_init(3, 0, 1);
    for (int i = 0; i < 3; ++i) {
      batch.token[i] = tokens[static_cast<std::size_t>(i)];
      batch.pos[i] = 20 + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    batch.n_tokens = 3;
    int const status = llama_decode(drafts.context(), batch);
    llama_batch_free(batch);
    REQUIRE(status != 0);
    REQUIRE_THAT(said.back(), ContainsSubstring("outputs of 3 tokens"));
  }
}

TEST_CASE("a wait that a device's engine forgets shows", "[standin]") {
  model_owner const model = under("full");
  auto const decoded = [&] {
    decoder with(model.get(), parameters({}));
    with.feed(random_tokens(60));
    return decode_each(with, random_tokens(1, 3));
  };
  std::vector<logits> const wanted = decoded();
  lose_events(true);
  std::vector<logits> const got = decoded();
  lose_events(false);
  REQUIRE(difference(got, wanted) > .1);
}

TEST_CASE("a capture that the engine's stream does not join is refused", "[standin]") {
  model_owner const model = under("full");
  decoder with(model.get(), parameters({}));
  with.feed(random_tokens(60));
  decode_each(with, random_tokens(1, 3));
  lose_events(true);
  int const status = with.status_of({5});
  lose_events(false);
  REQUIRE(status != 0);
  REQUIRE_THAT(said.back(), Catch::Matchers::ContainsSubstring("CUDA"));
}

TEST_CASE("a policy's steps before a device's engine differ from the engine's, and its prompts do not", "[standin]") {
  std::vector<logits> const full = on_device("full", {}, {});
  std::vector<logits> const little = on_device("streaming_llm:tokens=16", {}, {});
  REQUIRE(difference(little.front(), full.front()) < 1e-6);
  REQUIRE(difference(little[2], full[2]) > .1);
}

TEST_CASE("steps before a device's engine are replays of a graph", "[standin]") {
  model_owner const model = under("quest:tokens=48,page=8");
  decoder with(model.get(), parameters({}));
  with.feed(random_tokens(100));
  decode_each(with, random_tokens(2, 3));
  std::int64_t const given = standin_given();
  std::int64_t const computed = standin_nodes();
  decode_each(with, random_tokens(5, 4));
  REQUIRE(standin_nodes() - computed > 5 * 30);
  REQUIRE(standin_given() - given < 5 * 15);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
