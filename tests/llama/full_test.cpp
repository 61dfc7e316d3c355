// The policy that keeps everything computes what the engine computes.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "decoding.hpp"
#include "kvpolicy/presets/full.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

// Where the two differ, in units of the logits' standard deviation: the engine's kernel rounds each query to the cache's type
// (f16: 2^-11, bf16: 2^-8 relative) and, over an f16 cache, adds up values in f16; ours keeps f32 throughout. A score is a sum
// of 32 rounded products near 2, so that it moves by about 2^-10 (bf16: 2^-7), and the logits follow over two layers, each of
// which stores its rounded keys and values. Measured at most .0063 over f16
// and .0068 over bf16 (f32 accumulation there makes up for the coarser query).
constexpr double tolerance = .02;

double full_against_engine(tiny_shape const& shape, context_options const& options, std::int64_t prompt, std::int64_t steps) {
  model_owner const model = tiny_llama(shape);
  token_list const tokens = random_tokens(prompt + steps);
  token_list const first(tokens.begin(), tokens.begin() + prompt);
  token_list const rest(tokens.begin() + prompt, tokens.end());
  decoder engine(model.get(), nullptr, options);
  session policy(presets::full{});
  decoder ours(model.get(), &policy, options);
  double const prompts_apart = difference(ours.feed(first), engine.feed(first));
  double const apart = std::max(prompts_apart, difference(decode_each(ours, rest), decode_each(engine, rest)));
  CHECK(policy.steps() == steps + (prompt == 1 ? 1 : 0));
  CHECK(policy.last_step().tokens == prompt + steps);
  CHECK(policy.last_step().tokens_read == static_cast<double>(prompt + steps));
  return apart;
}

TEST_CASE("full equals the engine's logits across the graph's 256-cell boundaries") {
  ggml_type const type = GENERATE(GGML_TYPE_F16, GGML_TYPE_BF16);
  int const threads = GENERATE(1, 2);
  std::int64_t const prompt = GENERATE(2, 31, 249, 255, 256, 505, 767);
  double const apart = full_against_engine({}, {.threads = threads, .type = type}, prompt, 12);
  CAPTURE(ggml_type_name(type), threads, prompt, apart);
  CHECK(apart < tolerance);
}

TEST_CASE("full equals the engine's logits for query groups of 1, 2, 3 and 4 and heads of several sizes") {
  ggml_type const type = GENERATE(GGML_TYPE_F16, GGML_TYPE_BF16);
  tiny_shape const shape =
      GENERATE(tiny_shape{.q_heads = 2, .kv_heads = 2}, tiny_shape{.layers = 3}, tiny_shape{.q_heads = 9, .kv_heads = 3},
               tiny_shape{.q_heads = 4, .kv_heads = 1}, tiny_shape{.q_heads = 4, .kv_heads = 2, .head_dim = 64},
               tiny_shape{.head_dim = 80}, tiny_shape{.head_dim = 24});
  double const apart = full_against_engine(shape, {.threads = 2, .type = type}, 300, 20);
  CAPTURE(ggml_type_name(type), shape.q_heads, shape.kv_heads, shape.head_dim, apart);
  CHECK(apart < tolerance);
}

TEST_CASE("full equals the engine's logits from the first token to the last of a context") {
  model_owner const model = tiny_llama();
  token_list const tokens = random_tokens(512);
  context_options const options{.tokens = 512};
  decoder engine(model.get(), nullptr, options);
  session policy(presets::full{});
  decoder ours(model.get(), &policy, options);
  double const apart = difference(decode_each(ours, tokens), decode_each(engine, tokens));
  CAPTURE(apart);
  CHECK(apart < tolerance);
  CHECK(policy.steps() == 512);
  CHECK(ours.status_of({1}) == 1);  // no cell is left, which is the engine's to say
  CHECK_NOTHROW(policy.check());
}

TEST_CASE("full equals the engine's logits over keys and values of f32, and of different types") {
  auto const [keys, values] = GENERATE(std::pair{GGML_TYPE_F32, GGML_TYPE_F32}, std::pair{GGML_TYPE_F32, GGML_TYPE_F16},
                                       std::pair{GGML_TYPE_F16, GGML_TYPE_BF16}, std::pair{GGML_TYPE_BF16, GGML_TYPE_F32});
  double const apart = full_against_engine({}, {.threads = 2, .type = keys, .value_type = values}, 300, 12);
  CAPTURE(ggml_type_name(keys), ggml_type_name(values), apart);
  CHECK(apart < tolerance);
}

/// Counts what it is shown of the layers' outputs, and asks for them.
struct somebody {
  int asked = 0;
  int shown = 0;

  static bool on_node(ggml_tensor* node, bool ask, void* self_data) {
    auto& self = *static_cast<somebody*>(self_data);
    bool const wanted = std::string_view(node->name).starts_with("l_out");
    self.asked += ask ? 1 : 0;
    self.shown += !ask && wanted ? 1 : 0;
    return !ask || wanted;
  }
};

TEST_CASE("a cb_eval that was there before is asked for every node, and shown what it asked for") {
  model_owner const model = tiny_llama();
  token_list const tokens = random_tokens(40);
  auto const run = [&](somebody& own, session* policy) {
    llama_context_params params = parameters({});
    params.cb_eval = &somebody::on_node;
    params.cb_eval_user_data = &own;
    if (policy != nullptr) policy->attach(params, model.get());
    decoder with(model.get(), params);
    std::vector<logits> made = decode_each(with, tokens);
    made.push_back(with.feed(random_tokens(30, 2)));
    return made;
  };
  somebody alone;
  somebody beside;
  session policy(presets::full{});
  std::vector<logits> const wanted = run(alone, nullptr);
  std::vector<logits> const got = run(beside, &policy);
  CHECK(difference(got, wanted) < tolerance);
  CHECK(policy.steps() == 40);
  CHECK(alone.shown > 40);
  CHECK(beside.asked == alone.asked);
  CHECK(beside.shown == alone.shown);
}

TEST_CASE("a session that leaves prompts to the engine gives their logits bit by bit") {
  model_owner const model = tiny_llama();
  token_list const prompt = random_tokens(300);
  decoder engine(model.get(), nullptr);
  session left(presets::full{}, {.prompts = false});
  decoder theirs(model.get(), &left);
  session kept(presets::full{});
  decoder ours(model.get(), &kept);
  logits const wanted = engine.feed(prompt);
  CHECK(identical(theirs.feed(prompt), wanted));
  CHECK_FALSE(identical(ours.feed(prompt), wanted));
}

TEST_CASE("full does not depend on the number of threads") {
  model_owner const model = tiny_llama();
  token_list const prompt = random_tokens(300);
  token_list const rest = random_tokens(10, 3);
  session one(presets::full{});
  session two(presets::full{});
  decoder alone(model.get(), &one, {.threads = 1});
  decoder together(model.get(), &two, {.threads = 2});
  CHECK(identical(alone.feed(prompt), together.feed(prompt)));
  CHECK(identical(decode_each(alone, rest), decode_each(together, rest)));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
