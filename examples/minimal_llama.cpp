// The smallest llama.cpp program with a policy: three lines are kvpolicy's, the rest is any decode loop.
#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/kvpolicy.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace kv = kvpolicy;

int main(int argc, char** argv) try {
  if (argc != 3) throw kv::invalid_value("usage: minimal_llama MODEL.gguf PROMPT");
  std::string const prompt = argv[2];
  llama_log_set([](ggml_log_level, char const*, void*) {}, nullptr);
  llama_model* const model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) throw kv::invalid_value("can't load " + std::string(argv[1]));
  llama_vocab const* const vocab = llama_model_get_vocab(model);

  llama_context_params params = llama_context_default_params();
  params.n_ctx = 2048;
  kv::llama::session session(kv::presets::quest{.tokens = 512, .after = 16});  // 1: choose a policy
  session.attach(params, model);                                               // 2: before the context is made
  llama_context* const context = llama_init_from_model(model, params);

  std::vector<llama_token> tokens(prompt.size() + 8);
  tokens.resize(
      static_cast<std::size_t>(std::max(0, llama_tokenize(vocab, prompt.data(), static_cast<int>(prompt.size()), tokens.data(),
                                                          static_cast<int>(tokens.size()), true, true))));
  if (tokens.empty()) throw kv::invalid_value("the prompt has no tokens");
  llama_batch batch = llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size()));
  llama_token token = 0;
  for (int i = 0; i < 32; ++i) {
    if (llama_decode(context, batch) != 0) {
      session.check();  // 3: throws the reason, where it is the policy's
      throw kv::error("llama_decode failed");
    }
    float const* const logits = llama_get_logits_ith(context, -1);
    token = static_cast<llama_token>(std::max_element(logits, logits + llama_vocab_n_tokens(vocab)) - logits);
    if (llama_vocab_is_eog(vocab, token)) break;
    char piece[64];
    int const size = llama_token_to_piece(vocab, token, piece, sizeof piece, 0, false);
    std::fwrite(piece, 1, static_cast<std::size_t>(std::max(size, 0)), stdout);
    std::fflush(stdout);
    batch = llama_batch_get_one(&token, 1);
  }
  std::puts("");
  llama_free(context);
  llama_model_free(model);
} catch (std::exception const& e) {
  std::fprintf(stderr, "minimal_llama: %s\n", e.what());
  return 2;
}
