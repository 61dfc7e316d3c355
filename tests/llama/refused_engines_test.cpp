// What attach refuses, by name, leaving the parameters as they were.
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "decoding.hpp"
#include "gguf_writer.hpp"
#include "kvpolicy/presets/chess.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

bool somebodys_abort(void*) { return false; }

/// attach throws Error with the message; the parameters' callbacks are as before; the session can still be attached.
template <class Error>
void check_refused(llama_context_params params, llama_model const* model, char const* message) {
  session policy(presets::full{});
  params.abort_callback = &somebodys_abort;
  int own = 0;
  params.abort_callback_data = &own;
  llama_context_params const before = params;
  CHECK_THROWS_AS(policy.attach(params, model), Error);
  CHECK_THROWS_WITH(policy.attach(params, model), ContainsSubstring(message));
  CHECK(params.cb_eval == before.cb_eval);
  CHECK(params.cb_eval_user_data == before.cb_eval_user_data);
  CHECK(params.abort_callback == before.abort_callback);
  CHECK(params.abort_callback_data == before.abort_callback_data);
  model_owner const good = tiny_llama();
  llama_context_params ordinary = parameters({});
  CHECK_NOTHROW(policy.attach(ordinary, good.get()));
}

TEST_CASE("attach refuses contexts that no policy can run in") {
  model_owner const model = tiny_llama();
  llama_context_params params = parameters({});
  SECTION("keys of another type") {
    params.type_k = GGML_TYPE_MXFP4;
    check_refused<unsupported>(params, model.get(), "a KV cache of type mxfp4 is not supported; set type_k and type_v to f16,");
  }
  SECTION("values of another type") {
    params.type_v = GGML_TYPE_Q6_K;
    check_refused<unsupported>(params, model.get(), "a KV cache of type q6_K");
  }
  SECTION("flash attention disabled") {
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    check_refused<unsupported>(params, model.get(), "flash attention is disabled");
  }
  SECTION("non-causal attention") {
    params.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL;
    check_refused<unsupported>(params, model.get(), "non-causal attention is not supported");
  }
  SECTION("no model") { check_refused<invalid_value>(params, nullptr, "attach needs the model"); }
}

TEST_CASE("attach refuses models that have no ordinary cache") {
  SECTION("recurrent") {
    model_owner const model = header_of(GENERATE("mamba", "rwkv7"));
    check_refused<unsupported>(parameters({}), model.get(), "recurrent models are not supported");
  }
  SECTION("encoder and decoder") {
    model_owner const model = header_of("t5");
    check_refused<unsupported>(parameters({}), model.get(), "models with an encoder are not supported");
  }
  SECTION("diffusion") {
    model_owner const model = header_of("dream");
    check_refused<unsupported>(parameters({}), model.get(), "diffusion models are not supported");
  }
}

TEST_CASE("a managed cache leaves a model the rotary factors that it has for contexts of that length") {
  tiny_shape const shape{};
  gguf_writer out("llama", shape.seed);
  write_sizes(out, shape);
  out.number("rope.scaling.original_context_length", 600);
  write_ends(out, shape, 1);
  write_layers(out, shape);
  out.matrix("output.weight", width_of(shape), tiny_vocabulary, 1);
  model_owner const model = out.load();
  auto const attach = [&](std::uint32_t cells, std::uint32_t sequences, std::int64_t longest) {
    session own(presets::full{}, {.cache = managed_cache{.longest = longest}});
    llama_context_params params = parameters({.tokens = cells, .sequences = sequences});
    own.attach(params, model.get());
  };
  CHECK_NOTHROW(attach(512, 1, 600));
  CHECK_NOTHROW(attach(1024, 1, 2000));
  CHECK_NOTHROW(attach(1024, 2, 500));
  for (auto const& [cells, sequences, longest] : {std::array<std::int64_t, 3>{512, 1, 601}, {1024, 1, 600}, {1024, 2, 2000}}) {
    CAPTURE(cells, sequences, longest);
    CHECK_THROWS_WITH(attach(static_cast<std::uint32_t>(cells), static_cast<std::uint32_t>(sequences), longest),
                      ContainsSubstring("rotary factors for contexts of more than 600 tokens"));
  }
}

TEST_CASE("a session is attached once") {
  model_owner const model = tiny_llama();
  session policy(presets::full{});
  llama_context_params first = parameters({});
  llama_context_params second = parameters({});
  policy.attach(first, model.get());
  CHECK_THROWS_AS(policy.attach(second, model.get()), invalid_value);
  CHECK_THROWS_WITH(policy.attach(second, model.get()), ContainsSubstring("attached already"));
  CHECK(second.cb_eval == nullptr);
  session other(presets::full{});
  CHECK_THROWS_WITH(other.attach(first, model.get()), ContainsSubstring("another session is attached to these parameters"));
}

TEST_CASE("attach and use refuse budgets that can't be") {
  model_owner const model = tiny_llama();
  auto const refused = [&](auto const& preset, char const* message) {
    session policy(preset);
    llama_context_params params = parameters({});
    CHECK_THROWS_AS(policy.attach(params, model.get()), invalid_value);
    CHECK_THROWS_WITH(policy.attach(params, model.get()), ContainsSubstring(message));
    CHECK(params.cb_eval == nullptr);

    std::vector<made_choice> choices;
    session running(presets::quest{.tokens = 64}, recording(choices));
    decoder ours(model.get(), &running);
    ours.feed(random_tokens(200));
    CHECK_THROWS_WITH(running.use(preset), ContainsSubstring(message));
    decode_each(ours, random_tokens(3));  // the running policy runs on
    CHECK(choices.size() == 6);
    CHECK(running.steps() == 3);
    CHECK(running.last_step().tokens_read < 80);
  };
  SECTION("nothing") { refused(presets::quest{.tokens = 0}, "a budget of 0 tokens keeps nothing"); }
  SECTION("less than nothing") { refused(presets::snapkv{.tokens = -3, .after = 0}, "a budget of -3 tokens"); }
  SECTION("less than the window") { refused(presets::snapkv{.tokens = 7, .after = 0}, "its window always keeps"); }
  SECTION("a fraction of nothing") { refused(presets::chess{.fractions = {.grids = 0}}, "a fraction of 0"); }
}

TEST_CASE("an attached session keeps the caller's abort callback") {
  model_owner const model = tiny_llama();
  session policy(presets::full{});
  llama_context_params params = parameters({});
  bool stop = false;
  params.abort_callback = [](void* data) { return *static_cast<bool*>(data); };
  params.abort_callback_data = &stop;
  policy.attach(params, model.get());
  decoder ours(model.get(), params);
  ours.feed(random_tokens(20));
  stop = true;
  CHECK(ours.status_of({1}) == 2);
  CHECK_NOTHROW(policy.check());
  stop = false;
  decoder engine(model.get(), nullptr);
  engine.feed(random_tokens(20));
  CHECK(difference(ours.feed(1), engine.feed(1)) < .02);
}

TEST_CASE("any number of queries to keep is accepted, below none is refused") {
  CHECK_NOTHROW(session(presets::full{}, {.observation_queries = all_queries}));
  CHECK_THROWS_WITH(session(presets::full{}, {.observation_queries = -1}), ContainsSubstring("observation_queries is -1"));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
