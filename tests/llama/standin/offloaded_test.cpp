// Models on a device: the engine itself, compaction of cells there, and sessions, which refuse them.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <ggml-backend.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "compacting.hpp"
#include "decoding.hpp"
#include "device.hpp"
#include "hook.hpp"
#include "kvpolicy/presets/chunkkv.hpp"
#include "kvpolicy/presets/knorm.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr std::int32_t all_layers = 99;

model_owner on_device(tiny_shape shape = {}) {
  register_standin();
  ggml::put_before_devices("", {});
  if (shape.gpu_layers == 0) shape.gpu_layers = all_layers;
  return tiny_llama(shape);
}

std::vector<logits> dense(llama_model* model, context_options const& options) {
  decoder engine(model, parameters(options));
  engine.feed(random_tokens(150));
  return decode_each(engine, random_tokens(10, 3));
}

TEST_CASE("the engine computes on the device what it computes on the host", "[standin]") {
  register_standin();
  ggml::put_before_devices("", {});
  for (ggml_type const type : {GGML_TYPE_F16, GGML_TYPE_Q8_0}) {
    context_options const options{.micro_batch = 64, .type = type};
    std::vector<logits> const wanted = dense(tiny_llama().get(), options);
    std::int64_t const before = standin_nodes();
    REQUIRE(identical(dense(on_device().get(), options), wanted));
    REQUIRE(standin_nodes() > before + 100);
  }
}

TEST_CASE("the device's memory traps", "[standin]") {
  register_standin();
  ggml_backend_buffer_t const buffer =
      ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(ggml_backend_dev_by_name("CUDA0")), 64);
  pid_t const child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    _exit(*static_cast<char volatile const*>(ggml_backend_buffer_get_base(buffer)));
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGSEGV);
  ggml_backend_buffer_free(buffer);
}

/// `shape` says how many layers lie on the device, and `cache_there` whether their rows do.
template <class Policy>
void compacts_alike(Policy const& policy, context_options const& options, tiny_shape shape = {}, bool cache_there = true) {
  CAPTURE(Policy::name, options.sequences, options.type, shape.gpu_layers, cache_there);
  model_owner const device = on_device(shape);
  shape.gpu_layers = 0;
  model_owner const host = tiny_llama(shape);
  compacting<Policy> here(host.get(), policy, options);
  compacting<Policy> there(device.get(), policy, options, cache_there);
  auto const both = [&](token_list const& tokens, llama_seq_id of) {
    std::vector<llama_seq_id> const sequences(tokens.size(), of);
    here.with.set_batch(sequences);
    there.with.set_batch(sequences);
    REQUIRE(here.engine.status_of(tokens, sequences) == 0);
    REQUIRE(there.engine.status_of(tokens, sequences) == 0);
    float const* const wanted = llama_get_logits_ith(here.engine.context(), -1);
    float const* const got = llama_get_logits_ith(there.engine.context(), -1);
    REQUIRE(identical(logits(got, got + tiny_vocabulary), logits(wanted, wanted + tiny_vocabulary)));
  };
  for (int turn = 0; turn < 2; ++turn) {
    for (llama_seq_id s = 0; s < static_cast<llama_seq_id>(options.sequences); ++s) {
      both(random_tokens(100 + 30 * s, static_cast<std::uint64_t>(1 + s + 5 * turn)), s);
      compaction const made = there.with.compact(there.engine.context(), s);
      REQUIRE(here.with.compact(here.engine.context(), s).kept == made.kept);
      REQUIRE(made.kept < made.tokens);
      REQUIRE(cells_of(there.engine, s) == made.kept);
    }
    for (llama_token step = 5; step < 10; ++step) {
      for (llama_seq_id s = 0; s < static_cast<llama_seq_id>(options.sequences); ++s) both({step}, s);
    }
  }
}

TEST_CASE("cells on a device are compacted as cells on the host are", "[standin]") {
  compacts_alike(presets::snapkv{.tokens = 40, .after = 0}, {});
  compacts_alike(presets::snapkv{.tokens = 40, .after = 0}, {.micro_batch = 32, .sequences = 2, .unified = true});
  compacts_alike(presets::snapkv{.tokens = 40, .after = 0}, {.type = GGML_TYPE_Q8_0}, {.head_dim = 64});
  compacts_alike(presets::chunkkv{.tokens = 40, .after = 0}, {});
  compacts_alike(presets::knorm{.tokens = 40}, {.sequences = 2, .unified = true});
  compacts_alike(presets::snapkv{.tokens = 40, .after = 0}, {}, {.layers = 4, .gpu_layers = 2});
  compacts_alike(presets::snapkv{.tokens = 40, .after = 0}, {}, {}, false);
}

TEST_CASE("a session refuses a cache on a device by name, or leaves it to the engine", "[standin]") {
  model_owner const model = on_device();
  llama_context_params params = parameters({});
  for (bool const cache_there : {true, false}) {
    params.offload_kqv = cache_there;
    try {
      session by(presets::quest{});
      by.attach(params, model.get());
      FAIL("a session read a device's rows");
    } catch (unsupported const& refusal) {
      REQUIRE_THAT(refusal.what(), ContainsSubstring("attention runs on a device"));
    }
  }
  params.offload_kqv = true;
  session_options lenient;
  lenient.lenient = true;
  session by(presets::quest{}, lenient);
  by.attach(params, model.get());
  decoder engine(model.get(), params);
  engine.feed(random_tokens(150));
  REQUIRE(identical(decode_each(engine, random_tokens(10, 3)), dense(model.get(), {})));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
