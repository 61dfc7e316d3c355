// capture MODEL.gguf FILE: keys of a prompt and of 40 tokens behind it, and how unsure the model was of each, for mpi_test.
// Ends with 77 where there is no model.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>

#include "captured_request.hpp"
#include "kvpolicy/interop/llama.hpp"
#include "kvpolicy/presets/full.hpp"
#include "llama/decoding.hpp"
#include "llama/tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using kvpolicy_test::ranks::captured_keys;

captured_keys capture(char const* path) {
  model_owner const model = load_model(path);
  if (model == nullptr) throw std::runtime_error(std::string("can't load ") + path);
  token_list const prompt = journey(model.get(), 16);
  captured_keys made{.layers = llama_model_n_layer(model.get()),
                     .kv_heads = llama_model_n_head_kv(model.get()),
                     .head_dim = llama_model_n_embd(model.get()) / llama_model_n_head(model.get()),
                     .tokens = std::ssize(prompt) + 40,
                     .steps = 40,
                     .keys = {},
                     .entropies = {}};
  made.keys.resize(static_cast<std::size_t>(made.layers * made.kv_heads * made.tokens * made.head_dim));
  session_options watch;
  watch.on_queries = [&](llama_seq_id, layer_id layer, layer_table_view const& view, query_heads const&, simd_exec&) {
    if (view.tokens() != made.tokens) return;
    rows const keys = view.keys(layer);
    for (std::int64_t h = 0; h < made.kv_heads; ++h) {
      for (std::int64_t t = 0; t < made.tokens; ++t) {
        std::int64_t const at = ((layer.value * made.kv_heads + h) * made.tokens + t) * made.head_dim;
        keys.load({h}, {t},
                  std::span(made.keys).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(made.head_dim)));
      }
    }
  };
  session policy(presets::full{}, watch);
  decoder engine(model.get(), &policy, {.threads = 2});
  logits last = engine.feed(prompt);
  host_exec exec;
  for (std::int64_t i = 0; i < made.steps; ++i) {
    last = engine.feed(static_cast<llama_token>(std::ranges::max_element(last) - last.begin()));
    made.entropies.push_back(entropy(last, exec).entropy);
  }
  if (std::ranges::all_of(made.keys, [](float x) { return x == 0; })) throw std::runtime_error("no keys passed by");
  return made;
}

}  // namespace
}  // namespace kvpolicy::llama::testing

int main(int argc, char** argv) try {
  if (argc != 3) throw std::invalid_argument("usage: capture MODEL.gguf FILE");
  if (!std::filesystem::exists(argv[1])) {
    std::printf("no model at %s\n", argv[1]);
    return 77;
  }
  auto const made = kvpolicy::llama::testing::capture(argv[1]);
  made.write(argv[2]);
  std::printf("%lld tokens of %lld layers with %lld KV heads\n", static_cast<long long>(made.tokens),
              static_cast<long long>(made.layers), static_cast<long long>(made.kv_heads));
  return 0;
} catch (std::exception const& e) {
  std::fprintf(stderr, "capture: %s\n", e.what());
  return 1;
}
