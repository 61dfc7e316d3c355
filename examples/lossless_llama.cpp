// Lossless decoding in a loop with a sampler of its own: the text is that of dense decoding, token by token.
#include <kvpolicy/interop/llama/lossless.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace kv = kvpolicy;

int main(int argc, char** argv) try {
  if (argc != 3) throw kv::invalid_value("usage: lossless_llama MODEL.gguf PROMPT_FILE");
  std::ifstream file(argv[2]);
  std::string const prompt{std::istreambuf_iterator<char>(file), {}};
  llama_log_set([](ggml_log_level, char const*, void*) {}, nullptr);
  llama_model* const model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) throw kv::invalid_value("can't load " + std::string(argv[1]));
  llama_vocab const* const vocab = llama_model_get_vocab(model);
  std::vector<llama_token> tokens(prompt.size() + 8);
  tokens.resize(
      static_cast<std::size_t>(std::max(0, llama_tokenize(vocab, prompt.data(), static_cast<int>(prompt.size()), tokens.data(),
                                                          static_cast<int>(tokens.size()), true, true))));
  if (tokens.empty()) throw kv::invalid_value("the prompt has no tokens");

  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = static_cast<std::uint32_t>(tokens.size()) + 128;
  kv::llama::session session(kv::llama::verified_draft{});  // what drafts read; any policy that keeps every row may draft
  session.attach(params, model);
  llama_context* const context = llama_init_from_model(model, params);
  if (llama_decode(context, llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size()))) != 0) session.check();

  kv::llama::lossless fast(session, context);
  auto const sample = [&](float const* logits) {  // greedy here; yours may draw
    return static_cast<llama_token>(std::max_element(logits, logits + llama_vocab_n_tokens(vocab)) - logits);
  };
  llama_token token = sample(llama_get_logits_ith(context, -1));
  for (int i = 0; i < 100 && !llama_vocab_is_eog(vocab, token); ++i) {
    char piece[64];
    int const size = llama_token_to_piece(vocab, token, piece, sizeof piece, 0, false);
    std::fwrite(piece, 1, static_cast<std::size_t>(std::max(size, 0)), stdout);
    token = sample(fast.decode(token).data());  // in place of llama_decode and llama_get_logits
  }
  kv::llama::lossless_statistics const did = fast.statistics();
  std::printf("\n%ld tokens in %ld rounds, %ld of %ld drafts taken\n", static_cast<long>(did.tokens),
              static_cast<long>(did.rounds), static_cast<long>(did.accepted), static_cast<long>(did.drafted));
  llama_free(context);
  llama_model_free(model);
} catch (std::exception const& e) {
  std::fprintf(stderr, "lossless_llama: %s\n", e.what());
  return 2;
}
